"""Serving a journal over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import values
from penstock.cli.command import command, flag, option
from penstock.cli.context import Run
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.server.access import Role


def _named_url(text: str) -> tuple[str, str]:
    """A buffer: NAME=URL, or a url that is its own name."""
    name, equals, url = text.partition("=")
    return (name, url) if equals and "/" not in name else (text, text)


@command(
    "serve",
    "Serves the journal over HTTP: the API under /v1, the page, and metrics for Prometheus",
    option("--host", "the address to serve on; any but this machine's own needs tokens", default="127.0.0.1"),
    option("--port", "the port; 0 for any that is free", metavar="NUMBER", default=7367, convert=values.count),
    option(
        "--token-file",
        "a file of tokens, one a line: `read TOKEN`, `write TOKEN` or `admin TOKEN`",
        metavar="FILE",
        env="PENSTOCK_SERVE_TOKENS",
    ),
    option("--allow-host", "a name this server answers to", metavar="NAME", many=True),
    option(
        "--buffer", "an object-storage buffer to show on the page", metavar="NAME=URL", many=True, convert=_named_url
    ),
    option("--max-body", "how large a request may be", metavar="SIZE", default=32 << 20, convert=values.size),
    flag("--read-only", "open the journal for reading only"),
    example=("penstock serve", "penstock serve --host 0.0.0.0 --token-file tokens --allow-host journal.example"),
    details="""
    Without tokens only this machine is served, and everybody on it may do everything. PENSTOCK_SERVE_TOKENS holds what
    the token file would; its lines may be separated by commas. SIGINT and SIGTERM end it.
    """,
)
def serve(
    run: Run,
    host: str,
    port: int,
    token_file: str | None,
    allow_host: list[str],
    buffer: list[tuple[str, str]],
    max_body: int,
    read_only: bool,
) -> None:
    from penstock.server.limits import Limits
    from penstock.server.running import bind, make_server

    tokens = _tokens(token_file)
    with run.journal(read_only=read_only) as journal:
        if run.url and run.url.lower().startswith(("http://", "https://")):
            raise ConfigError("a server serves a store, not another server")
        server = make_server(
            journal,
            host=host,
            port=port,
            tokens=tokens,
            hosts=allow_host or None,
            limits=Limits(max_body=max_body),
            buffers=dict(buffer),
        )
        listening = bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        place = f"http://{shown}:{listening.getsockname()[1]}"
        if run.json:
            run.document({"url": place, "tokens": len(tokens)})
        else:
            run.line(f"serving {journal.describe().location or 'a journal in memory'} at {place}")
        run.flush()
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
