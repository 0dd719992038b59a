"""`penstock buffer …`: looking into an object-storage buffer, and writing and reading one from a shell."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import unquote, urlsplit

import typer

from penstock.buffer import Batch, Consumer, Fetcher, Producer
from penstock.buffer.consume.collector import collect
from penstock.buffer.format import Manifest, parse_manifest
from penstock.buffer.format.manifest import VERSION
from penstock.buffer.naming import DEFAULT_MANIFEST, DEFAULT_PREFIX, BufferPaths, batch_time_ms, place, shard_place
from penstock.buffer.store import ObjectStore, open_store
from penstock.clock import SystemClock
from penstock.errors import PenstockError, StorageError

app = typer.Typer(
    name="buffer",
    help="Buffers in object storage: look into a manifest, produce, consume, collect garbage.",
    no_args_is_help=True,
)

Url = Annotated[str, typer.Argument(help="The store: s3://bucket/prefix, gs://…, az://…, file:///dir")]
ManifestPath = Annotated[str, typer.Option("--manifest", help="The manifest's path in the store.")]
Prefix = Annotated[str, typer.Option("--prefix", help="Where the batches are in the store.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="A store option, KEY=VALUE: region, endpoint, access_key_id, timeout …"),
]
Shards = Annotated[int, typer.Option("--shards", min=1, help="How many manifests the buffer has.")]
Shard = Annotated[int, typer.Option("--shard", min=0, help="Which of them, from 0.")]
Null = Annotated[bool, typer.Option("--null", "-0", help="Entries end with a zero byte instead of a newline.")]


@app.command()
def dump(
    url: Url,
    manifest: ManifestPath = DEFAULT_MANIFEST,
    option: Options = None,
    shards: Shards = 1,
    shard: Shard = 0,
) -> None:
    """Print a manifest as JSON: version, epoch, next sequence, and every entry with its metadata."""
    with _reported():
        found = _manifest(_look(url, option), _place(manifest, DEFAULT_PREFIX, shard, shards))
        entries = [
            {
                "sequence": each.sequence,
                "location": each.location,
                "metadata": [
                    {
                        "start_index": about.start_index,
                        "ingestion_time_ms": about.ingested_at_ms,
                        "payload": base64.b64encode(about.payload).decode(),
                    }
                    for about in each.metadata
                ],
            }
            for each in found
        ]
    document = {
        "version": VERSION,
        "epoch": found.epoch,
        "next_sequence": found.next_sequence,
        "entries": entries,
    }
    typer.echo(json.dumps(document, indent=2))


@app.command()
def status(
    url: Url,
    manifest: ManifestPath = DEFAULT_MANIFEST,
    option: Options = None,
    shards: Shards = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per manifest.")] = False,
) -> None:
    """Show how long the queue is, how old its oldest batch is, and who owns it; every shard's with --shards."""
    with _reported():
        store = _look(url, option)
        for shard in range(shards):
            where = _place(manifest, DEFAULT_PREFIX, shard, shards)
            data = store.get(where.manifest)
            answer = _status(parse_manifest(data), where)
            if as_json:
                typer.echo(json.dumps(answer))
            else:
                lag = "-" if answer["lag_seconds"] is None else f"{answer['lag_seconds']:.1f} s"
                typer.echo(
                    f"{answer['manifest']}: length {answer['length']}, lag {lag}, epoch {answer['epoch']}, "
                    f"next sequence {answer['next_sequence']}"
                    + (" (no such object: nothing was ever produced here)" if data is None else "")
                )


def _status(found: Manifest, where: BufferPaths) -> dict[str, Any]:
    """A manifest in numbers; the lag is the age of the oldest entry that waits."""
    oldest = found.after(None, 1)
    born = None
    if oldest:
        (first,) = oldest
        born = first.metadata[0].ingested_at_ms if first.metadata else batch_time_ms(first.location)
    return {
        "manifest": where.manifest,
        "length": found.count,
        "lag_seconds": None if born is None else max(0, SystemClock().now_ms() - born) / 1000,
        "epoch": found.epoch,
        "next_sequence": found.next_sequence,
        "oldest_sequence": oldest[0].sequence if oldest else None,
    }


@app.command()
def produce(
    url: Url,
    manifest: ManifestPath = DEFAULT_MANIFEST,
    prefix: Prefix = DEFAULT_PREFIX,
    option: Options = None,
    metadata: Annotated[str, typer.Option("--metadata", help="Travels with the entries.")] = "",
    compression: Annotated[str, typer.Option("--compression", help="none or zstd.")] = "none",
    null: Null = False,
) -> None:
    """Produce every line of standard input as an entry; ends when the manifest holds them all."""
    entries = 0
    with (
        _reported(),
        Producer(
            url,
            manifest=manifest,
            prefix=prefix,
            compression=compression,  # type: ignore[arg-type]  # checked by the producer
            options=_options(option),
        ) as producer,
    ):
        for call in _calls(cast(BufferedIOBase, sys.stdin.buffer), b"\0" if null else b"\n"):
            producer.produce(call, os.fsencode(metadata))
            entries += len(call)
    typer.echo(f"{entries} entries", err=True)


def _calls(source: BufferedIOBase, end: bytes) -> Iterator[list[bytes]]:
    """The input's entries as they come: a pipe that pauses holds none back. The last one need not be ended."""
    rest: list[bytes] = []  # of an entry that has not ended yet, which may be large
    while chunk := source.read1(1 << 20):
        first, *others = chunk.split(end)
        rest.append(first)
        if others:
            yield [b"".join(rest), *others[:-1]]
            rest = [others[-1]]
    if last := b"".join(rest):
        yield [last]


@app.command()
def consume(
    url: Url,
    manifest: ManifestPath = DEFAULT_MANIFEST,
    prefix: Prefix = DEFAULT_PREFIX,
    option: Options = None,
    shards: Shards = 1,
    shard: Shard = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more when there is nothing left.")] = False,
    peek: Annotated[bool, typer.Option("--peek", help="Only look: fence nobody, acknowledge nothing.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="Batches to consume at most.")] = None,
    null: Null = False,
) -> None:
    """Write every entry to standard output and acknowledge it. Takes the buffer over from any other consumer."""
    end = b"\0" if null else b"\n"
    out = sys.stdout.buffer

    def write(batch: Batch) -> None:
        rest = memoryview(end.join(batch.entries) + end if len(batch) else b"")
        while rest:  # unbuffered output (PYTHONUNBUFFERED) takes a part and says how much; the next call says why
            rest = rest[out.write(rest) :]
        out.flush()

    with _reported():
        where = _place(manifest, prefix, shard, shards)
        if peek:
            _peek(_look(url, option), where, write, limit)
            return
        with Consumer(
            url,
            manifest=manifest,
            prefix=prefix,
            shards=shards,
            shard=shard,
            options=_options(option),
            gc_interval=None,
        ) as consumer:
            _consume(consumer, write, follow=follow, limit=limit)


def _peek(store: ObjectStore, where: BufferPaths, write: Callable[[Batch], None], limit: int | None) -> None:
    found = _manifest(store, where)
    fetcher = Fetcher(store, where.manifest)
    for descriptor in found.after(None, found.count if limit is None else limit):
        write(fetcher.fetch(descriptor))


def _consume(consumer: Consumer, write: Callable[[Batch], None], *, follow: bool, limit: int | None) -> None:
    if limit == 0:
        return
    written = 0

    def handle(batch: Batch) -> None:
        nonlocal written
        write(batch)
        written += 1
        if written == limit:
            consumer.stop()

    report = consumer.run(handle, until_empty=not follow)
    if report.fenced is not None:
        typer.echo(f"penstock: {report.fenced}", err=True)
        raise typer.Exit(1)


@app.command()
def gc(
    url: Url,
    manifest: ManifestPath = DEFAULT_MANIFEST,
    prefix: Prefix = DEFAULT_PREFIX,
    option: Options = None,
    shards: Shards = 1,
    grace: Annotated[float, typer.Option("--grace", min=0, help="Seconds a batch is kept at least.")] = 600,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many would go.")] = False,
) -> None:
    """Delete batch objects that no manifest names and nobody can need. A running consumer does this by itself."""
    with _reported():
        store = _look(url, option)
        for shard in range(shards):
            where = _place(manifest, prefix, shard, shards)
            done = collect(store, where, now_ms=SystemClock().now_ms(), grace_ms=int(grace * 1000), dry_run=dry_run)
            verb = "would delete" if dry_run else "deleted"
            failed = f", {done.failed} could not be deleted" if done.failed else ""
            typer.echo(f"{where.prefix}: {verb} {done.deleted}, kept {done.kept}{failed}")


# ── what the commands share ──


def _look(url: str, option: list[str] | None) -> ObjectStore:
    """The store, to look into: a directory that is not there is not made for that."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path.startswith("/") and not Path(unquote(parts.path)).is_dir():
        raise StorageError(f"{url} has nothing to look at: no such directory")
    return open_store(url, _options(option))


def _manifest(store: ObjectStore, where: BufferPaths) -> Manifest:
    return parse_manifest(store.get(where.manifest))


def _place(manifest: str, prefix: str, shard: int, shards: int) -> BufferPaths:
    return shard_place(place(manifest, prefix), shard, shards)


def _options(given: list[str] | None) -> dict[str, str]:
    options: dict[str, str] = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{each!r} is not KEY=VALUE", param_hint="--option")
        options[name] = value
    return options


@contextmanager
def _reported() -> Iterator[None]:
    """What went wrong, in one line instead of a traceback."""
    try:
        yield
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        raise typer.Exit(1) from None
