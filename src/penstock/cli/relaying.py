"""`penstock relay`: moving rows of another database's outbox into a journal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import click

from penstock.cli import values
from penstock.cli.command import CommandContext, command
from penstock.core.consuming.stopping import StopSignals

GLANCE = 60.0
"""The number of seconds that one wait for a signal lasts."""


@command(
    "relay",
    "penstock relay postgresql://shop@db.example.com/shop",
    "penstock relay sqlite:///orders.sqlite --make --until-empty",
    also="create",
)
@click.argument(
    "database",
    envvar="PENSTOCK_DATABASE",
    help="postgresql://user:password@host/name, mysql://…, or sqlite:///path [or PENSTOCK_DATABASE]",
)
@click.option("--table", default="penstock_outbox", help="the outbox's table")
@click.option("--name", default="relay", help="the name under which it reports; the outbox's, if there are several")
@click.option("--batch", type=values.count, default="500", help="rows in a commit")
@click.option("--poll", type=values.duration, default="0.2", help="how often it looks for rows when there were none")
@click.option("--make", is_flag=True, help="make the table when it is not there")
@click.option("--until-empty", is_flag=True, help="end when the journal has every row that it takes now")
@values.choice(
    "--log-level",
    "debug info warning error",
    default="warning",
    help="what is logged: what is tried again is a warning, a refused row an error",
)
def relay(
    context: CommandContext,
    database: str,
    table: str,
    name: str,
    batch: int,
    poll: float,
    make: bool,
    until_empty: bool,
    log_level: str,
) -> None:
    """Moves rows of an outbox into the journal, each once, until SIGINT or SIGTERM.

    A program writes the rows with `penstock.outbox` in transactions of its own database. Several relays may run at
    once. A row that the journal refuses stays, with the reason in its column `error`.
    """
    import logging

    from penstock import outbox
    from penstock.core.names import shown_url
    from penstock.errors import StorageError
    from penstock.integrations.outbox.connections import connector, is_drivers

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    connect, shown = connector(database), shown_url(database)
    try:
        if make:
            _make(connect, table)
        with StopSignals() as stop, context.journal() as journal:
            relay = outbox.Relay(journal, database, table=table, name=name, batch=batch, poll=poll)
            context.note(f"moving rows of {shown} into {context.shown_journal}; Ctrl-C ends it")
            if until_empty:
                relay.drain()
            else:
                relay.start()
                while not stop.wait(GLANCE):
                    pass
            relay.stop()
    except Exception as error:
        if not is_drivers(error):
            raise
        raise StorageError(f"{shown}: {error} (--make makes the table {table!r})") from error
    context.record({"moved": relay.moved})


def _make(connect: Callable[[], Any], table: str) -> None:
    from penstock import outbox

    with closing(connect()) as connection:
        outbox.create(connection, table)
        connection.commit()
