"""`penstock buffer …`: inspecting an object-storage buffer, and writing and reading a buffer from a shell."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote

import click

from penstock.cli.command import FAILED, CommandGroup
from penstock.cli.values import choice, several
from penstock.core.names import shown_url, split_url
from penstock.errors import StorageError
from penstock.limits import BUFFER_MANIFEST, BUFFER_PREFIX

if TYPE_CHECKING:
    from penstock.buffer import Batch, Consumer
    from penstock.buffer.format import Manifest
    from penstock.buffer.manifest import BufferPaths
    from penstock.objects.store import ObjectStore


@click.group("buffer", cls=CommandGroup)
def buffer() -> None:
    """Buffers in object storage: look into a manifest, produce, consume, collect garbage."""


def store_option(text: str) -> tuple[str, str]:
    """Returns a store's option from KEY=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return name, value


class NamedBuffer:
    """The buffer that a command names. `named` holds the arguments for its producers and consumers."""

    def __init__(self, url: str, manifest: str, options: Iterable[tuple[str, str]], **named: Any) -> None:
        self.url, self.options = url, dict(options)
        self.named = {"manifest": manifest, "options": self.options, **named}

    @functools.cached_property
    def store(self) -> ObjectStore:
        """The store, for reading. A missing directory is not created."""
        from penstock.objects.store import open_store

        parts = split_url(self.url)
        if parts.scheme == "file" and parts.path.startswith("/") and not Path(unquote(parts.path)).is_dir():
            raise StorageError(f"{shown_url(self.url)} has nothing to look at: no such directory")
        return open_store(self.url, self.options)

    def paths(self, shard: int | None = None) -> BufferPaths:
        """Returns the places of the manifest and of the batches of a shard: of the named shard, or of the only
        shard.
        """
        from penstock.buffer.manifest import buffer_paths, shard_paths

        own = buffer_paths(self.named["manifest"], self.named.get("prefix", BUFFER_PREFIX))
        return shard_paths(own, self.named.get("shard", 0) if shard is None else shard, self.named.get("shards", 1))

    def every(self) -> Iterator[BufferPaths]:
        """Returns the paths of every shard."""
        return (self.paths(shard) for shard in range(self.named["shards"]))

    def read(self) -> Manifest:
        from penstock.buffer.format import parse_manifest

        path = self.paths().manifest
        return parse_manifest(self.store.get(path), path)


MANIFEST = click.option("--manifest", default=BUFFER_MANIFEST, help="the manifest's path in the store")
PREFIX = click.option(
    "--prefix", help=f"where the batches are in the store; needed with --manifest  [default: {BUFFER_PREFIX}]"
)
SHARDS = click.option("--shards", type=click.IntRange(1), default=1, help="how many manifests the buffer has")
SHARD = click.option("--shard", type=click.IntRange(0), default=0, help="which of them, from 0")
OPTION = several(
    *("--option", "-o", "options"),
    metavar="KEY=VALUE",
    type=store_option,
    help="a store's option: region, endpoint, access_key_id, timeout …",
)


def in_store(*parameters: Callable[[Any], Any]) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Gives a command a `NamedBuffer`, and the parameters that name the buffer."""

    def declare(function: Callable[..., int | None]) -> Callable[..., int | None]:
        @functools.wraps(function)
        def run(**given: Any) -> int | None:
            names = ("url", "manifest", "options", "prefix", "shards", "shard")
            buffer = NamedBuffer(**{name: given.pop(name) for name in names if name in given})
            return function(buffer, **given)

        made: Callable[..., int | None] = run
        url = click.argument("url", help="the store: s3://bucket/prefix, gs://…, az://…, file:///dir")
        for parameter in reversed((url, MANIFEST, OPTION, *parameters)):
            made = parameter(made)
        return made

    return declare


with_null = click.option("--null", "-0", is_flag=True, help="entries end with a zero byte instead of a newline")


@buffer.command()
@in_store(SHARDS, SHARD)
def dump(buffer: NamedBuffer) -> None:
    """Prints a manifest as JSON: version, epoch, next sequence, and every entry with its metadata."""
    import base64

    from penstock.buffer.format import MANIFEST_VERSION

    found = buffer.read()
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
    about = {"version": MANIFEST_VERSION, "epoch": found.epoch, "next_sequence": found.next_sequence}
    click.echo(json.dumps({**about, "entries": entries}, indent=2))


@buffer.command()
@in_store(SHARDS)
@click.option("--json", "as_json", is_flag=True, help="one JSON object per manifest")
def status(buffer: NamedBuffer, as_json: bool) -> None:
    """Shows how long the queue is, how old its oldest batch is, and who owns it; every shard's with --shards."""
    from penstock.buffer.format import parse_manifest

    for where in buffer.every():
        data = buffer.store.get(where.manifest)
        answer = _status(parse_manifest(data, where.manifest), where)
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
    """Returns the numbers of a manifest. The lag is the age of the oldest waiting entry."""
    from penstock.buffer.manifest import lag_of

    oldest = found.after(None, 1)
    return {
        "manifest": where.manifest,
        "length": found.count,
        "lag_seconds": lag_of(oldest),
        "epoch": found.epoch,
        "next_sequence": found.next_sequence,
        "oldest_sequence": oldest[0].sequence if oldest else None,
    }


@buffer.command()
@in_store(PREFIX)
@click.option("--metadata", default="", help="travels with the entries")
@choice("--compression", "none zstd", default="none", help="how batches are packed")
@with_null
def produce(buffer: NamedBuffer, metadata: str, compression: Literal["none", "zstd"], null: bool) -> None:
    """Produces every line of standard input as an entry; ends when the manifest holds them all."""
    from penstock.buffer import Producer

    entries = 0
    with Producer(buffer.url, compression=compression, **buffer.named) as producer:
        for call in _calls(cast(BufferedIOBase, sys.stdin.buffer), b"\0" if null else b"\n"):
            producer.produce(call, os.fsencode(metadata))
            entries += len(call)
    click.echo(f"{entries} entries", err=True)


def _calls(source: BufferedIOBase, end: bytes) -> Iterator[list[bytes]]:
    """Yields the input's entries as they arrive: a pause of the pipe does not hold an entry back.

    The last entry may lack its end.
    """
    rest: list[bytes] = []  # of an unfinished entry, which may be large
    while chunk := source.read1(1 << 20):
        first, *others = chunk.split(end)
        rest.append(first)
        if others:
            yield [b"".join(rest), *others[:-1]]
            rest = [others[-1]]
    if last := b"".join(rest):
        yield [last]


@buffer.command()
@in_store(PREFIX, SHARDS, SHARD)
@click.option("--follow", "-f", is_flag=True, help="wait for more when there is nothing left")
@click.option("--peek", is_flag=True, help="only look: fence no consumer, acknowledge nothing")
@click.option("--limit", "-n", type=click.IntRange(0), help="batches to consume at most")
@with_null
def consume(buffer: NamedBuffer, follow: bool, peek: bool, limit: int | None, null: bool) -> int | None:
    """Writes every entry to standard output and acknowledges it. Takes the buffer over from any other consumer."""
    from penstock.buffer import Consumer, Fetcher

    end = b"\0" if null else b"\n"
    out = sys.stdout.buffer

    def write(batch: Batch) -> None:
        rest = memoryview(end.join(batch.entries) + end if len(batch) else b"")
        # unbuffered output (PYTHONUNBUFFERED) writes a part and returns its size; the next call reports the error
        while rest:
            rest = rest[out.write(rest) :]
        out.flush()

    if peek:
        found = buffer.read()
        fetcher = Fetcher(buffer.store, buffer.paths().manifest)
        for descriptor in found.after(None, found.count if limit is None else limit):
            write(fetcher.fetch(descriptor))
        return None
    with Consumer(buffer.url, gc_interval=None, **buffer.named) as consumer:
        return _consume(consumer, write, follow=follow, limit=limit)


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
@in_store(PREFIX, SHARDS)
@click.option("--grace", type=click.FloatRange(0), default=600, help="seconds a batch is kept at least")
@click.option("--dry-run", is_flag=True, help="only say how many would go")
def gc(buffer: NamedBuffer, grace: float, dry_run: bool) -> None:
    """Deletes batch objects that no manifest names and no consumer can need. A running consumer does this by itself."""
    from penstock.buffer.consumer import collect
    from penstock.core.clock import SystemClock

    for where in buffer.every():
        now, grace_ms = SystemClock().now_ms(), int(grace * 1000)
        done = collect(buffer.store, where, now_ms=now, grace_ms=grace_ms, dry_run=dry_run)
        verb = "would delete" if dry_run else "deleted"
        failed = f", {done.failed} could not be deleted" if done.failed else ""
        click.echo(f"{where.prefix}: {verb} {done.deleted}, kept {done.kept}{failed}")
