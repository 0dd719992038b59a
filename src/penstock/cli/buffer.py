"""`penstock buffer …`: looking into an object-storage buffer, and writing and reading one from a shell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from urllib.parse import unquote

import click

from penstock.cli.command import FAILED, CommandGroup
from penstock.cli.values import choice
from penstock.errors import StorageError
from penstock.limits import BUFFER_MANIFEST, BUFFER_PREFIX
from penstock.names import shown_url, split_url

if TYPE_CHECKING:
    from penstock.buffer import Batch, Consumer
    from penstock.buffer.format import Manifest
    from penstock.buffer.manifest import BufferPaths
    from penstock.buffer.store import ObjectStore


F = TypeVar("F", bound=Callable[..., object])


@click.group("buffer", cls=CommandGroup)
def buffer() -> None:
    """Buffers in object storage: look into a manifest, produce, consume, collect garbage."""


def store_option(text: str) -> tuple[str, str]:
    """A store's option: KEY=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return name, value


def in_store(function: F) -> F:
    """Gives a command the arguments that say where a buffer is."""
    for parameter in (
        click.option(
            "--option",
            "-o",
            "options",
            metavar="KEY=VALUE",
            multiple=True,
            type=store_option,
            help="a store's option: region, endpoint, access_key_id, timeout …; may be given several times",
        ),
        click.option("--manifest", default=BUFFER_MANIFEST, help="the manifest's path in the store"),
        click.argument("url", help="the store: s3://bucket/prefix, gs://…, az://…, file:///dir"),
    ):
        function = parameter(function)
    return function


with_prefix = click.option(
    "--prefix", help=f"where the batches are in the store; needed with --manifest  [default: {BUFFER_PREFIX}]"
)
with_shards = click.option("--shards", type=click.IntRange(1), default=1, help="how many manifests the buffer has")
with_shard = click.option("--shard", type=click.IntRange(0), default=0, help="which of them, from 0")
with_null = click.option("--null", "-0", is_flag=True, help="entries end with a zero byte instead of a newline")


@buffer.command()
@in_store
@with_shards
@with_shard
def dump(url: str, manifest: str, options: object, shards: int, shard: int) -> None:
    """Prints a manifest as JSON: version, epoch, next sequence, and every entry with its metadata."""
    import base64

    from penstock.buffer.format import MANIFEST_VERSION

    found = _manifest(_existing_store(url, options), _place(manifest, BUFFER_PREFIX, shard, shards))
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
        "version": MANIFEST_VERSION,
        "epoch": found.epoch,
        "next_sequence": found.next_sequence,
        "entries": entries,
    }
    click.echo(json.dumps(document, indent=2))


@buffer.command()
@in_store
@with_shards
@click.option("--json", "as_json", is_flag=True, help="one JSON object per manifest")
def status(url: str, manifest: str, options: object, shards: int, as_json: bool) -> None:
    """Shows how long the queue is, how old its oldest batch is, and who owns it; every shard's with --shards."""
    from penstock.buffer.format import parse_manifest

    store = _existing_store(url, options)
    for shard in range(shards):
        where = _place(manifest, BUFFER_PREFIX, shard, shards)
        data = store.get(where.manifest)
        answer = _status(parse_manifest(data), where)
        if as_json:
            click.echo(json.dumps(answer))
            continue
        lag = "-" if answer["lag_seconds"] is None else f"{answer['lag_seconds']:.1f} s"
        click.echo(
            f"{answer['manifest']}: length {answer['length']}, lag {lag}, epoch {answer['epoch']}, "
            f"next sequence {answer['next_sequence']}"
            + (" (no such object: nothing was ever produced here)" if data is None else "")
        )


def _status(found: Manifest, where: BufferPaths) -> dict[str, object]:
    """A manifest in numbers; the lag is the age of the oldest entry that waits."""
    from penstock.buffer.manifest import batch_time_ms
    from penstock.clock import SystemClock

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


@buffer.command()
@in_store
@with_prefix
@click.option("--metadata", default="", help="travels with the entries")
@choice("--compression", "none zstd", default="none", help="how batches are packed")
@with_null
def produce(
    url: str,
    manifest: str,
    options: Any,
    prefix: str | None,
    metadata: str,
    compression: Literal["none", "zstd"],
    null: bool,
) -> None:
    """Produces every line of standard input as an entry; ends when the manifest holds them all."""
    from penstock.buffer import Producer

    entries = 0
    with Producer(url, manifest=manifest, prefix=prefix, compression=compression, options=dict(options)) as producer:
        for call in _calls(cast(BufferedIOBase, sys.stdin.buffer), b"\0" if null else b"\n"):
            producer.produce(call, os.fsencode(metadata))
            entries += len(call)
    click.echo(f"{entries} entries", err=True)


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


@buffer.command()
@in_store
@with_prefix
@with_shards
@with_shard
@click.option("--follow", "-f", is_flag=True, help="wait for more when there is nothing left")
@click.option("--peek", is_flag=True, help="only look: fence no consumer, acknowledge nothing")
@click.option("--limit", "-n", type=click.IntRange(0), help="batches to consume at most")
@with_null
def consume(
    url: str,
    manifest: str,
    options: Any,
    prefix: str | None,
    shards: int,
    shard: int,
    follow: bool,
    peek: bool,
    limit: int | None,
    null: bool,
) -> int | None:
    """Writes every entry to standard output and acknowledges it. Takes the buffer over from any other consumer."""
    from penstock.buffer import Consumer

    end = b"\0" if null else b"\n"
    out = sys.stdout.buffer

    def write(batch: Batch) -> None:
        rest = memoryview(end.join(batch.entries) + end if len(batch) else b"")
        while rest:  # unbuffered output (PYTHONUNBUFFERED) takes a part and says how much; the next call says why
            rest = rest[out.write(rest) :]
        out.flush()

    where = _place(manifest, prefix, shard, shards)
    if peek:
        _peek(_existing_store(url, options), where, write, limit)
        return None
    with Consumer(
        url, manifest=manifest, prefix=prefix, shards=shards, shard=shard, options=dict(options), gc_interval=None
    ) as consumer:
        return _consume(consumer, write, follow=follow, limit=limit)


def _peek(store: ObjectStore, where: BufferPaths, write: Callable[[Batch], None], limit: int | None) -> None:
    from penstock.buffer import Fetcher

    found = _manifest(store, where)
    fetcher = Fetcher(store, where.manifest)
    for descriptor in found.after(None, found.count if limit is None else limit):
        write(fetcher.fetch(descriptor))


def _consume(consumer: Consumer, write: Callable[[Batch], None], *, follow: bool, limit: int | None) -> int | None:
    if limit == 0:
        return None
    written = 0

    def handle(batch: Batch) -> None:
        nonlocal written
        write(batch)
        written += 1
        if written == limit:
            consumer.stop()

    report = consumer.run(handle, until_empty=not follow)
    if report.fenced is not None:
        click.echo(f"penstock: {report.fenced}", err=True)
        return FAILED
    return None


@buffer.command()
@in_store
@with_prefix
@with_shards
@click.option("--grace", type=click.FloatRange(0), default=600, help="seconds a batch is kept at least")
@click.option("--dry-run", is_flag=True, help="only say how many would go")
def gc(url: str, manifest: str, options: object, prefix: str | None, shards: int, grace: float, dry_run: bool) -> None:
    """Deletes batch objects that no manifest names and no consumer can need. A running consumer does this by itself."""
    from penstock.buffer.collector import collect
    from penstock.clock import SystemClock

    store = _existing_store(url, options)
    for shard in range(shards):
        where = _place(manifest, prefix, shard, shards)
        done = collect(store, where, now_ms=SystemClock().now_ms(), grace_ms=int(grace * 1000), dry_run=dry_run)
        verb = "would delete" if dry_run else "deleted"
        failed = f", {done.failed} could not be deleted" if done.failed else ""
        click.echo(f"{where.prefix}: {verb} {done.deleted}, kept {done.kept}{failed}")


# ── what the commands share ──────────────────────────────────────────────────────────────────────────────────────────
def _existing_store(url: str, options: Any) -> ObjectStore:
    """The store, to read from: a directory that is not there is not made for that."""
    from penstock.buffer.store import open_store

    parts = split_url(url)
    if parts.scheme == "file" and parts.path.startswith("/") and not Path(unquote(parts.path)).is_dir():
        raise StorageError(f"{shown_url(url)} has nothing to look at: no such directory")
    return open_store(url, dict(options))


def _manifest(store: ObjectStore, where: BufferPaths) -> Manifest:
    from penstock.buffer.format import parse_manifest

    return parse_manifest(store.get(where.manifest))


def _place(manifest: str, prefix: str | None, shard: int, shards: int) -> BufferPaths:
    from penstock.buffer.manifest import buffer_paths, shard_paths

    return shard_paths(buffer_paths(manifest, prefix), shard, shards)
