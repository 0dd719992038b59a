"""Serving a journal over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import CREATE, TAKEOVER, command
from penstock.cli.context import CommandContext
from penstock.cli.values import PORT, several, size
from penstock.names import shown_url

if TYPE_CHECKING:
    from penstock.protocol.operation import Role


def _named_url(text: str) -> tuple[str, str]:
    """A buffer: NAME=URL, or a url that is its own name."""
    name, equals, url = text.partition("=")
    return (name, url) if equals and "/" not in name else (shown_url(text), text)


@command(
    "serve",
    "penstock serve",
    "penstock serve --host 0.0.0.0 --token-file tokens --allow-host journal.example",
    also=(CREATE, TAKEOVER),
)
@click.option("--host", default="127.0.0.1", help="the address to serve on; any but this machine's own needs tokens")
@click.option("--port", type=PORT, default=7367, help="the port; 0 for any that is free")
@click.option("--token-file", type=click.Path(), help="a file of tokens: `read|write|admin TOKEN`, one a line")
@several("--allow-host", metavar="NAME", help="a name this server answers to")
@several("--proxy", "proxies", metavar="ADDRESS", help="a proxy, or a network of them, whose X-Forwarded-For counts")
@several("--buffer", metavar="NAME=URL", type=_named_url, help="an object-storage buffer to show on the page")
@click.option("--max-body", type=size, default="32MiB", help="how large a request may be")
@click.option("--max-staged", type=size, default="16GiB", help="how much one token may stage without committing it")
@several("--staging", metavar="URL", help="a place in an object store where Spark's tasks may leave what they write")
@several("--lake", "lakes", metavar="PLACE", help="where clients may seal history to: a folder of this machine, s3://…")
@several("--gates", metavar="MODULE:NAME", help="a gate that sees what is written: a function under @penstock.gate(…)")
@click.option("--read-only", is_flag=True, help="open the journal for reading only")
@click.option(
    "--standby", is_flag=True, help="a hot spare: wait while another process writes a journal in an object store"
)
def serve(
    context: CommandContext,
    host: str,
    port: int,
    token_file: str | None,
    max_body: int,
    max_staged: int,
    gates: tuple[str, ...],
    buffer: tuple[tuple[str, str], ...],
    allow_host: tuple[str, ...],
    read_only: bool,
    standby: bool,
    **places: Any,
) -> None:
    """Serves the journal over HTTP: the API under /v1, the page, and metrics for Prometheus.

    Without tokens only this machine is served, and every user of it may do everything. PENSTOCK_SERVE_TOKENS holds what
    the token file would; its lines may be separated by commas. SIGINT and SIGTERM end it.
    """
    from penstock.api import local
    from penstock.entity.gate import add_gates, load_gates, with_installed
    from penstock.server.limits import Limits
    from penstock.server.memory import return_large_blocks
    from penstock.server.running import bind, make_server

    return_large_blocks()
    tokens = _tokens(token_file)
    if "" not in sys.path:
        sys.path.insert(0, "")  # gates may be in this folder, as handlers may
    declared = load_gates(with_installed(gates))
    if standby:
        context.note("standing by: serving begins when the process that writes the journal ends")
    with context.journal(read_only=read_only, standby=standby) as opened:
        journal = local(opened, "serving")
        add_gates(journal._entities.gates, declared)
        limits, hosts = Limits(max_body=max_body, max_staged=max_staged), allow_host or None
        server = make_server(
            journal, host=host, port=port, tokens=tokens, hosts=hosts, limits=limits, buffers=dict(buffer), **places
        )
        listening = bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        place = f"http://{shown}:{listening.getsockname()[1]}"
        if context.json:
            context.document({"url": place, "tokens": len(tokens)})
        else:
            context.line(f"serving {journal.describe().location or 'a journal in memory'} at {place}")
        context.flush()
        try:
            server.run(sockets=[listening])
        finally:
            listening.close()


def _tokens(file: str | None) -> dict[str, Role]:
    from penstock.server.running import read_tokens

    if file is not None:
        path = Path(file)
        if os.name == "posix" and path.stat().st_mode & 0o077:
            sys.stderr.write(f"penstock: others on this machine can read {file}: chmod 600 {file}\n")
        return read_tokens(path.read_text("utf-8"))
    return read_tokens(os.environ.get("PENSTOCK_SERVE_TOKENS", "").replace(",", "\n"))
