"""Blocks with one thing wrong inside, in a frame that is right: what a client could send that means harm.

    python -m torture.crafted [--seed 1] [--minutes 10]

A whole block is taken apart, one of its fields is replaced (another type, range, count, width, length or dictionary),
and it is encoded again. It must be refused with an error that says what is wrong where, or be stored and then be
readable by everything that reads events. Prints how many were which; ends with 1 when one was neither.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

import penstock
from penstock.api import local
from penstock.core.journal.blocks import Columns, RowOptions, Wire, build_wire, encode_wire, options_of, with_options
from penstock.core.journal.bulk import PreparedPiece
from penstock.core.journal.checking import checked_wire
from penstock.errors import ConfigError, Conflict, PoisonMessage
from penstock.transfer.publishing import BulkCommit, publish_staged, stage_step
from searching import Search

COUNT = 8


def whole_blocks() -> list[Wire]:
    """Blocks that are right, of every form that a column can have."""
    kinds = ["a", "b"] * (COUNT // 2)
    payloads = [b'{"n":%d}' % (7**row) for row in range(COUNT)]
    differing = [f"k{row}" if row % 3 else None for row in range(COUNT)]
    wide = [("é" * 150 if row == 1 else f"ü{row}") for row in range(COUNT)]
    some = [None if row % 2 else {"h": "v" * row, "é": "w"} for row in range(COUNT)]
    times = [1_700_000_000_000 + row for row in range(COUNT)]
    parts = [
        Columns(kinds, payloads, key=list(differing), headers=list(some), occurred=list(times)),
        Columns(kinds, payloads, key=["k", "l"] * (COUNT // 2), scope=list(wide), correlation=["c"] * COUNT),
        Columns(["a"] * COUNT, [b"1"] * COUNT, causation=list(differing), headers=[{"h": "v"}] * COUNT),
        Columns(kinds, [b"\xff", *payloads[1:]], binary=[True] + [False] * (COUNT - 1), occurred=[0] * COUNT),
        Columns(["a"], [b"[1]"], key=["k"], scope=["s"]),
    ]
    made = [build_wire(columns, 0, 0, 0) for columns in parts]
    asks = RowOptions([f"d{row}" for row in range(COUNT)], [0] + [None] * (COUNT - 1))
    asking = build_wire(Columns(kinds, payloads, key=["k", "l"] * (COUNT // 2)), 0, 0, 0)
    pushed = RowOptions(None, None, [1] * COUNT, None, [5] * COUNT, [3] * COUNT)
    return [*made, with_options(asking, asks), with_options(build_wire(Columns(kinds, payloads), 0, 0, 0), pushed)]


def crafted(wire: Wire) -> Iterator[tuple[str, bytes]]:
    """Every block that has one field replaced, with the place of the field and what is there instead."""
    tree = msgspec.msgpack.decode(encode_wire(wire))
    for path in _paths(tree):
        for other in _others(_at(tree, path), wire.count):
            changed = msgspec.msgpack.decode(encode_wire(wire))
            _at(changed, path[:-1])[path[-1]] = other
            yield f"{_words(path)} = {other!r:.60}", msgspec.msgpack.encode(changed)
    for cut in range(len(tree)):
        yield f"only {cut} fields", msgspec.msgpack.encode(tree[:cut])


def _words(path: tuple[int, ...]) -> str:
    names = (*Wire.__struct_fields__, "options")
    return ".".join([names[path[0]], *map(str, path[1:])])


def _paths(tree: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    for place, value in enumerate(tree):
        yield (*path, place)
        if isinstance(value, list):
            yield from _paths(value, (*path, place))


def _at(tree: Any, path: tuple[int, ...]) -> Any:
    for place in path:
        tree = tree[place]
    return tree


def _others(value: Any, count: int) -> Iterator[Any]:
    """What a field may be replaced by: anything, and what is nearly right."""
    yield from (None, True, -1, 0, 1, 2, 255, 256, 400, 1 << 31, 1 << 40, 1 << 62, -(1 << 62), (1 << 64) - 1, 1.5)
    yield from ("", "x", "x" * 401, "\0", {}, {"a": 1}, [], [None], [""], ["a", "a"], ["a", None], [["a"]], [{}], [1])
    for fill in (b"\0", b"\1", b"\2", b"\x80", b"\xff"):
        for size in (0, 1, count - 1, count, count + 1, 2 * count, 4 * count, 8 * count):
            yield fill * size
    yield [0, 1, b"x" * count, None]
    yield [0, 1, b"x" * count, bytes(count)]
    yield [0, 2, "é".encode() * count, b"\1" * count]
    yield [0, 1, "é".encode() * (count // 2), None]
    yield [1, ["k"], 0]
    yield [1, ["k", "k"], bytes(count)]
    yield [1, ["k", "l"], bytes([1, 0] * count)]
    yield [1, [None], 0]
    yield [1, ["k", "x" * 401], 0]
    yield [1, [{"a": 1}, ["u"]], 0]
    yield [1, 1, [1, ["h"], 0], [1, ["v"], 0]]
    yield [1, count, [1, [None], 0], [1, ["v"], 0]]
    yield [1, count, [1, [""], 0], [1, ["v"], 0]]
    yield [1, count, [1, ["h"], 0], [1, [None], 0]]
    yield [1, count, [1, ["h"], 0], [1, ["v" * 70_000], 0]]
    yield [2, 2 * count, [1, ["h"], 0], [1, ["v"], 0]]
    yield [257, 257 * count, [1, ["h"], 0], [1, ["v"], 0]]
    yield [0, 0, None, None]
    yield [0, 0, [1, ["h"], 0], None]
    if isinstance(value, int) and not isinstance(value, bool):
        yield from (value + 1, value - 1, 2 * value, -value, [value] * count)
    if isinstance(value, str):
        yield from (value * 2, value.encode(), [value], value + "\0")
    if isinstance(value, bytes):
        yield from (value[:-1], value[1:], value + b"\0", value * 2, value[::-1], value.decode("latin-1"), list(value))
        for width in (2, 4, 8):
            yield b"".join([byte.to_bytes(width, "little") for byte in value])
        for at in {0, len(value) // 2, len(value) - 1} - {-1}:
            for byte in (0, 1, 0x22, 0x80, 0xC3, 0xFF):
                yield value[:at] + bytes((byte,)) + value[at + 1 :]
    if isinstance(value, list):
        yield from (value[:-1], value[1:], value[::-1], value * 2, [*value, None], [*value, ""], [*value, "z"])


def refused(data: bytes) -> str | None:
    """The error that a crafted block gets, or None when it is taken."""
    try:
        checked_wire("t", data)
    except ConfigError as error:
        return str(error)
    return None


def use(data: bytes) -> None:
    """Stores a block among good ones and reads it in every way; raises what comes out of that."""
    good = encode_wire(build_wire(Columns(["a", "c"], [b"1", b'"x"'], key=["k", None]), 0, 0, 0))
    asks = options_of(checked_wire("t", data))
    queued = asks is not None and asks.delivery
    with penstock.open("memory:") as journal, TemporaryDirectory() as folder:
        queue = journal.queue("t", priority=True) if queued else None
        journal.topic("verified").configure(verified=True)
        topics = ["t"] if queued else ["t", "verified"]
        for number, name in enumerate(topics):
            batch = bytes([number]) * 16
            wires = [(name, checked_wire(name, one)) for one in (good, data, good)]
            stage_step(local(journal, "a test"), batch, 0, PreparedPiece(wires))
            try:
                publish_staged(local(journal, "a test"), BulkCommit([batch], queue="t" if queued else None))
            except (ConfigError, Conflict):  # what only the commit can judge: nothing of it is kept
                assert not any(True for _ in journal.topic(name).read())
                return
        topic = journal.topic("t")
        before = _seen(topic)
        list(topic.entities())
        for name in topics:
            _export(journal, Path(folder), name)
        journal.maintain()
        assert _seen(topic) == before, "merging has changed what is read"
        if queue is not None:
            for delivery in queue.take_many(50):
                delivery.ack()
        else:
            assert journal.topic("verified").verify().ok
        topic.compact_keys()
        topic.compact(1, force=True)
        journal.maintain()
        _seen(topic)


def _seen(topic: penstock.Topic) -> list[object]:
    """All that a topic's readers see."""
    seen: list[object] = []
    for event in topic.read():
        with suppress(PoisonMessage):
            event.payload  # noqa: B018
        seen.append((event.raw, *[value for name, value in _fields(event)]))
        if event.key is not None:
            assert event in list(topic.read(key=event.key)), "look-ups by key miss an event"
    for batch in topic.read_arrow(payload="binary"):
        batch.validate(full=True)
        seen.extend(map(str, batch.to_pylist()))
    return seen


def _fields(event: penstock.Event) -> list[tuple[str, object]]:
    names = ("seq", "kind", "key", "scope", "occurred_at", "recorded_at", "id", "correlation_id", "causation_id")
    return [*((name, getattr(event, name)) for name in names), ("headers", dict(event.headers))]


def _export(journal: penstock.Journal, folder: Path, name: str) -> None:
    for form in ("jsonl", "parquet"):
        journal.export(folder / f"{name}-{form}", topics=[name], format=form)  # type: ignore[arg-type]
        with penstock.open("memory:") as other:
            other.import_(folder / f"{name}-{form}")
            assert [_fields(event) for event in other.topic(name).read()] == [
                _fields(event) for event in journal.topic(name).read()
            ], "an export says something else"


class Counts(msgspec.Struct):
    """What became of crafted blocks."""

    crafted: int = 0
    refused: int = 0
    stored: int = 0
    broken: list[str] = []


def try_crafted(seed: object, *, most: int | None = None, seconds: float = math.inf) -> Counts:
    """Tries crafted blocks, all or some of them by chance; equal ones that are stored are read once."""
    every = [one for wire in whole_blocks() for one in crafted(wire)]
    random.Random(f"crafted {seed}").shuffle(every)
    found, known, ends = Counts(), set(), time.monotonic() + seconds
    for place, data in every[:most]:
        if time.monotonic() > ends:
            break
        found.crafted += 1
        try:
            said = refused(data)
            if said is not None:
                found.refused += 1
                assert "a block for topic 't' cannot be taken: " in said
                continue
            stored = PreparedPiece([("t", checked_wire("t", data))]).values[0]
            if stored not in known:
                known.add(stored)
                use(data)
            found.stored += 1
        except BaseException as error:
            found.broken.append(f"{place}: {type(error).__name__}: {error}")
    return found


def main() -> int:
    search = Search("torture.crafted", __doc__)
    options = search.begin()
    found = try_crafted(options.seed, seconds=options.seconds)
    search.tell(found.broken)
    said = f"{found.refused} refused, {found.stored} stored and read, {len(found.broken)} broken"
    return search.end(f"{found.crafted} crafted blocks: {said}")


if __name__ == "__main__":
    sys.exit(main())
