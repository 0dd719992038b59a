"""Running a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.failure import Nothing
from penstock.cli.loading import load_named
from penstock.cli.output import safe, safe_lines
from penstock.cli.stopping import StopSignals
from penstock.cli.values import choice, count, duration, number, the_queue, with_create

if TYPE_CHECKING:
    from penstock.surface.queue import Queue


@command("work", "penstock work emails shop.mail:send --concurrency 4")
@the_queue
@click.argument("handler", help="the function: module:function; it gets the delivery, and may be async")
@click.option("-c", "--concurrency", type=count, default="1", help="messages at a time")
@click.option("--ahead", type=number, help="messages it takes beyond those it works on; none, if not said")
@click.option("--group", default="default", help="for this group")
@click.option("--consumer", help="under this name")
@click.option("--lease", type=duration, help="for how long messages are held")
@click.option("--until-empty", is_flag=True, help="end when nothing is left to take")
@choice(
    "--log-level",
    "debug info warning error",
    default="warning",
    help="what is logged: failures are warnings, those given up errors",
)
@with_create
def work(
    context: CommandContext,
    queue: str,
    handler: str,
    until_empty: bool,
    log_level: str,
    create: bool,
    **given: Any,
) -> None:
    """Runs a worker: gives a queue's messages to a function of yours.

    The module is looked for in the current folder first. A function that returns acknowledges its message; one that
    raises gives it back, and it comes again after about 5 s, 30 s, 3 min, 10 min, unless the queue's policy says when.
    SIGINT and SIGTERM let the messages in hand finish.
    """
    import logging

    function = load_named(handler)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with context.journal() as journal:
        handle = context.existing_queue(journal, queue, create=create)
        worker = handle.worker(function, **given)
        with StopSignals() as stop:
            worker.start()
            context.note(f"working on {queue} with {handler}, {given['concurrency']} at a time; Ctrl-C ends it")
            while worker.alive and not stop.wait(0.1):
                if until_empty and _is_empty(handle, given["group"]):
                    break
            worker.stop()
    context.note("ended")


@command("workers", "penstock workers", "penstock workers --forget orders:billing")
@click.option("--forget", metavar="WORKER", help="this one's failure was seen; it is not shown any more")
@click.option("--traceback", is_flag=True, help="where each failed, in place of the table")
def workers(context: CommandContext, forget: str | None, traceback: bool) -> None:
    """Shows workers that failed too often and gave up: `penstock check` warns of them until they are started again."""
    from penstock.observe import workers as reports

    if forget is not None:
        with context.journal() as journal:
            if not reports.forget(journal, forget):
                raise Nothing(f"no worker {forget!r} gave up")
        context.record({"worker": forget, "forgotten": True})
        return
    with context.journal(read_only=True) as journal:
        found = reports.gave_up(journal)
    if context.json:
        for one in found:
            context.document(one)
    elif traceback and found:
        for one in found:
            context.line(f"{one.worker}: {safe(one.error or '')}", "bold")
            context.line(safe_lines(one.traceback or ""))
    else:
        rows = [(one.worker, one.at, one.error, one.host, one.pid) for one in found]
        context.rows(("Worker", "Gave up", "Error", "Host", "Pid"), rows, otherwise="no worker gave up")


def _is_empty(queue: Queue, group: str) -> bool:
    stats = queue.stats(group)
    return stats.ready + stats.in_flight + stats.delayed == 0
