"""A whole journal: its description, copies of it, and its service over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import DONE, FAILED, CommandContext, command
from penstock.cli.output import ProgressBar
from penstock.cli.topics import selecting
from penstock.cli.values import PORT, choice, position, several, size, some_topics
from penstock.core.names import shown_url
from penstock.core.units import show_size

if TYPE_CHECKING:
    from penstock.core.entity.copying import CopyFormat
    from penstock.core.protocol.operation import Role


@command("info", "penstock info --url shop.db")
def info(context: CommandContext) -> None:
    """Shows what the journal is: engine, location, size, durability."""
    with context.journal(read_only=True) as journal:
        described = journal.describe()
        pressure = journal.pressure()
    context.record(
        {
            "engine": described.engine,
            "location": described.location,
            "size": described.size_bytes if context.json else show_size(described.size_bytes),
            "durability": described.durability,
            "topics": len(described.topics),
            "queues": len(described.queues),
            "writer capacity": described.writer_capacity,
            "writer queued": pressure.queued,
            **({"objects": sum(described.objects.values())} if described.objects else {}),
            **({"written by": described.writer} if described.writer else {}),
        }
    )


@command(
    "backup", "penstock backup /backups/shop-monday.db", "penstock backup s3://bucket/monday --url s3://bucket/shop"
)
@click.argument(
    "destination", type=click.Path(), help="a path that does not exist yet; of a journal in a bucket also a url in it"
)
def backup(context: CommandContext, destination: str) -> None:
    """Writes a consistent copy of the journal while it is in use."""
    with context.journal(read_only=True) as journal:
        journal.backup(destination)
    context.record({"copied_to": destination})


# ── Topics to files and back ──


FORMATS = ("jsonl", "parquet", "arrow", "csv")
format_option = choice("--format", " ".join(FORMATS), help="the format; without it, the file's ending says it")


@command(
    "export",
    "penstock export orders orders.jsonl",
    "penstock export orders week.parquet --since 7d --where 'payload.total > 10'",
    "penstock export /backups/shop --format parquet",
)
@some_topics("[TOPIC]...", help="no name: all")
@click.argument("target", type=click.Path(), help="a file for one topic, a folder for several; - for standard output")
@format_option
@click.option("--after", type=position, help="start after this position")
@click.option("--through", type=position, help="stop after this position")
@selecting
@click.option("--replace", is_flag=True, help="replace the file when it is there")
def export(
    context: CommandContext,
    topics: tuple[str, ...],
    target: str,
    format: CopyFormat | None,
    after: int | None,
    through: int | None,
    replace: bool,
    **selection: Any,
) -> None:
    """Writes a topic's events to a file (JSON Lines, Parquet, Arrow, CSV), or topics to a folder.

    A file is written under another name and moved when it is complete. A folder takes JSON Lines or Parquet of
    whole topics, and what the topics' settings are; run again, an export to a folder goes on where the last one ended.
    `import` reads both, except CSV, with all positions, ids and times.
    """
    from penstock.core.entity.copying import file_format, write_events, write_file

    path = Path(target)
    kind = format or ("jsonl" if target == "-" else file_format(path))
    if target != "-" and (path.is_dir() or not path.suffix):
        if replace or after is not None or through is not None or any(selection.values()):
            raise click.UsageError(
                "a folder takes whole topics: name a file, like orders.jsonl, to choose among events"
            )
        _export_folder(context, topics, target, format)
        return
    if kind is None:
        raise click.UsageError(
            f"{path.suffix} is no format: end the file's name with .{', .'.join(FORMATS)}, or give --format"
        )
    if len(topics) != 1:
        raise click.UsageError("a file takes one topic: name one topic and the file, or a folder for several topics")
    if target == "-" and kind not in ("jsonl", "csv"):
        raise click.UsageError("standard output takes JSON Lines or CSV")
    if path.exists() and not replace:
        raise click.UsageError(f"{target} is there already: choose another name, or --replace it")
    with context.journal(read_only=True) as journal:
        events = context.existing_topic(journal, topics[0]).read(after or 0, through=through, **selection)
        if target == "-":
            write_events(events, context.out.buffer, kind)
            return
        count = write_file(events, path, kind)
    context.record({"topic": topics[0], "events": count, "file": target, "size": path.stat().st_size})


def _export_folder(context: CommandContext, topics: tuple[str, ...], target: str, format: CopyFormat | None) -> None:
    from penstock.api import local

    with context.journal(read_only=True) as opened, ProgressBar(context, "exported") as progress:
        journal = local(opened, "exporting to a folder")
        names = [context.existing_topic(opened, name).name for name in topics] or None
        report = journal.export(target, topics=names, format=format, progress=progress)
    context.record({"topics": report.topics, "events": report.events, "folder": target})


@command(
    "import",
    "penstock import /backups/shop",
    "penstock import orders orders.jsonl",
    "penstock import copy orders.parquet",
    also="create",
)
@some_topics("[TOPIC]...", help="no name: all")
@click.argument("origin", type=click.Path(), help="the file or folder that `export` wrote; - for standard input")
@format_option
@click.option("--start-over", is_flag=True, help="give out again the positions of a name whose topic was dropped")
def import_(
    context: CommandContext, topics: tuple[str, ...], origin: str, format: CopyFormat | None, start_over: bool
) -> None:
    """Reads what `export` wrote, with all positions, ids, times and causes.

    A file goes to the topic you name, a folder to topics of the same names. Events that are there already are skipped,
    so an import that was interrupted is simply run again. A topic that holds other events is refused: to add events to
    it under new ids, use `penstock append TOPIC --file FILE --events --dedup-from id`.
    """
    from penstock.api import local
    from penstock.core.entity.copying import file_format, import_file

    path = Path(origin)
    if origin != "-" and not path.exists():
        raise FileNotFoundError(2, "No such file or directory", origin)
    if (origin == "-" or path.is_file()) and len(topics) != 1:
        raise click.UsageError("a file's events go to one topic: name it before the file")
    with context.journal() as opened, ProgressBar(context, "imported") as progress:
        journal = local(opened, "importing")
        core = journal.backend.core
        if origin == "-":
            source, named = context.input.buffer, "standard input"
            report = import_file(core, source, topics[0], format or "jsonl", name=named, start_over=start_over)
        elif path.is_file():
            with path.open("rb") as source:
                kind = format or file_format(path)
                report = import_file(core, source, topics[0], kind, name=origin, start_over=start_over)
        else:
            report = journal.import_(origin, topics=topics or None, progress=progress, start_over=start_over)
    context.record({"topics": report.topics, "imported": report.imported, "known_before": report.present})


# ── A whole journal from one url to another ──


@command(
    "copy",
    "penstock copy shop.db s3://bucket/shop",
    "penstock copy s3://bucket/shop sqlite:shop.db",
)
@click.argument("source", help="the journal to copy: a path or an engine's url")
@click.argument("target", help="a new url, on any engine")
def copy(context: CommandContext, source: str, target: str) -> None:
    """Copies a whole journal to a new url on any engine, while it is in use, and compares every row.

    The copy has the same positions, ids, cursors, queues, snapshots and marks. It cannot be opened before it is
    complete. After an interruption the same command goes on with it.
    """
    from penstock.api import copy as copy_journal

    with ProgressBar(context, "copied", unit="bytes") as progress:
        report = copy_journal(source, target, progress=progress)
    context.record(
        {
            "copied to": target,
            "rows": report.rows,
            "size": report.size_bytes if context.json else show_size(report.size_bytes),
            "written": report.written,
        }
    )


@command(
    "restore",
    "penstock restore /backups/monday.db --url shop.db",
    "penstock restore s3://bucket/monday --url s3://bucket/shop-again",
)
@click.argument("backup", help="what `penstock backup` wrote: a path or an engine's url")
def restore(context: CommandContext, backup: str) -> int:
    """Makes the journal again out of a backup, on any engine, and reads all of it.

    It goes where --url says, and overwrites nothing: move the journal that is there away first, or restore to a new
    place. The backup stays as it is. Restoring that was interrupted goes on when the same command is run again. Exit
    code 1 when the backup is damaged.
    """
    from penstock.api import copy as copy_journal
    from penstock.cli.keeping import read_through

    with ProgressBar(context, "restored", unit="bytes") as progress:
        report = copy_journal(backup, context.journal_url, progress=progress)
    events, damaged = 0, {}
    with context.journal(read_only=True) as journal:
        for name in journal.topics():
            count, problem = read_through(journal.topic(name))
            events += count
            if problem is not None:
                damaged[name] = problem
        queues = len(journal.queues())
        topics = len(journal.topics())
    context.record(
        {
            "restored to": context.journal_url,
            "topics": topics,
            "queues": queues,
            "events": events,
            "rows": report.rows,
            "size": report.size_bytes if context.json else show_size(report.size_bytes),
            **({"damaged": damaged if context.json else "; ".join(map(": ".join, damaged.items()))} if damaged else {}),
        }
    )
    return FAILED if damaged else DONE


# ── Serving a journal over HTTP ──


def _named_url(text: str) -> tuple[str, str]:
    """Returns the name and url of a buffer from NAME=URL; a url alone is its own name."""
    name, equals, url = text.partition("=")
    return (name, url) if equals and "/" not in name else (shown_url(text), text)


@command(
    "serve",
    "penstock serve",
    "penstock serve --host 0.0.0.0 --token-file tokens --allow-host journal.example",
    also="create takeover",
)
@click.option("--host", default="127.0.0.1", help="the address to serve on; any but this machine's own needs tokens")
@click.option("--port", type=PORT, default=7367, help="the port; 0 for any that is free")
@click.option("--token-file", type=click.Path(), help="a file of tokens: `read|write|admin TOKEN`, one a line")
@several("--allow-host", metavar="NAME", help="a name this server answers to")
@several("--proxy", "proxies", metavar="ADDRESS", help="a proxy, or a network of them, whose X-Forwarded-For counts")
@several("--buffer", metavar="NAME=URL", type=_named_url, help="an object-storage buffer to show on the page")
@click.option("--max-body", type=size, default="32MiB", help="how large a request may be")
@click.option("--max-staged", type=size, default="16GiB", help="how much one token may stage without committing it")
@several("--staging", metavar="URL", help="a url in an object store where Spark's tasks may leave what they write")
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
    **areas: Any,
) -> None:
    """Serves the journal over HTTP: the API under /v1, the page, and metrics for Prometheus.

    Without tokens only this machine is served, and every user of it may do everything. PENSTOCK_SERVE_TOKENS holds what
    the token file would; its lines may be separated by commas. SIGINT and SIGTERM end it.
    """
    from penstock.api import local
    from penstock.core.entity.gate import add_gates, load_gates, with_installed
    from penstock.server.limits import Limits
    from penstock.server.running import bind, make_server
    from penstock.server.service import return_large_blocks

    return_large_blocks()
    tokens = _tokens(token_file)
    if "" not in sys.path:
        sys.path.insert(0, "")  # gates may be in this folder, like handlers
    declared = load_gates(with_installed(gates))
    if standby:
        context.note("standing by: serving begins when the process that writes the journal ends")
    with context.journal(read_only=read_only, standby=standby) as opened:
        journal = local(opened, "serving")
        add_gates(journal.backend.entities.gates, declared)
        limits, hosts = Limits(max_body=max_body, max_staged=max_staged), allow_host or None
        server = make_server(
            journal, host=host, port=port, tokens=tokens, hosts=hosts, limits=limits, buffers=dict(buffer), **areas
        )
        listening = bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        served_at = f"http://{shown}:{listening.getsockname()[1]}"
        if context.json:
            context.document({"url": served_at, "tokens": len(tokens)})
        else:
            context.line(f"serving {journal.describe().location or 'a journal in memory'} at {served_at}")
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
