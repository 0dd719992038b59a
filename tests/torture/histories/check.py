"""Reads a history and what the journal holds in the end; every contradiction is a sentence."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock import Journal
from torture.histories.order import FOREVER, Step, out_of_order
from torture.histories.search import part_without_order

Op = dict[str, Any]
TOLERANCE = 0.002
"""Seconds: a lease's end is a wall-clock time in whole milliseconds."""


def read_history(folder: Path) -> list[Op]:
    """Every operation of every thread; one without an end has none."""
    operations: list[Op] = []
    for path in sorted((folder / "history").iterdir()):
        own: dict[int, Op] = {}
        lines, _, _ = path.read_bytes().rpartition(b"\n")
        for line in lines.split(b"\n"):
            if line:
                said = json.loads(line)
                own.setdefault(said["n"], {"thread": path.name}).update(said)
        operations += own.values()
        for op in own.values():
            if "of" in op:
                op["taken"] = own[op["of"]]
    return operations


def problems(url: str, folder: Path) -> list[str]:
    with penstock.open(url) as journal:
        return contradictions(read_history(folder), final(journal))


Final = dict[str, list[tuple[int, Any]]]
"""Every topic's positions and payloads in the end, and as `left` what can still be taken."""


def final(journal: Journal) -> Final:
    found: Final = {
        name: [(event.seq, event.payload) for event in journal.topic(name).read()]
        for name in ("t", "once", "accounts", "work")
    }
    deadline = time.monotonic() + 30
    left: list[tuple[int, Any]] = []
    queue = journal.queue("work")
    while True:  # leases of those who ended run out
        left += [(each.seq, each.payload) for each in queue.take_many(1000, lease=3600)]
        stats = queue.stats()
        if stats.ready + stats.delayed == 0 and stats.in_flight <= len(left):
            break
        assert time.monotonic() < deadline, stats
        time.sleep(0.01)
    return {**found, "left": left}


def contradictions(operations: list[Op], held: Final) -> list[str]:
    wrong = [f"an operation failed: {op['failed']}" for op in operations if "failed" in op]
    wrong += _positions(operations, held)
    wrong += _atomic(operations)
    wrong += _fences(operations, held)
    wrong += _expect(operations, held)
    wrong += _dedup(operations, held)
    wrong += _leases(operations, held)
    wrong += part_without_order(operations, TOLERANCE)
    return wrong


def _what(op: Op) -> str:
    return f"{op['op']} {op['thread']}.{op['n']}"


def _written(operations: list[Op], held: Final, topic: str) -> Iterator[tuple[Op, list[int]]]:
    """Operations that wrote to a topic, with their positions; one without an end is looked for in the journal."""
    by_label: dict[str, int] = {}
    for seq, payload in held[topic]:
        for part in payload if isinstance(payload, list) else [payload]:
            by_label.setdefault(str(part), seq)
    for op in operations:
        if op.get("topic") != topic or "labels" not in op:
            continue
        if "seqs" in op:
            yield op, op["seqs"]
        elif "end" not in op and op["labels"][0] in by_label:
            yield op, [by_label[label] for label in op["labels"] if label in by_label]


def _positions(operations: list[Op], held: Final) -> Iterator[str]:
    """Positions of every topic: contiguous, as acknowledged, and in the order of real time."""
    for topic in ("t", "once", "accounts", "work"):
        seqs = [seq for seq, _ in held[topic]]
        if topic != "work" and seqs != list(range(1, len(seqs) + 1)):
            yield f"{topic}: positions are not contiguous from 1: {len(seqs)} events"
        steps = []
        for op, wrote in _written(operations, held, topic):
            if not op.get("duplicate"):
                begun = op.get("committing", op["start"])
                steps.append(Step(wrote[-1], True, begun, op.get("end", FOREVER), _what(op)))
        steps += [
            Step(op["saw"], False, op["start"], op["end"], _what(op))
            for op in operations
            if op["op"] in ("latest", "read") and op["topic"] == topic and "saw" in op
        ]
        yield from out_of_order(steps)
    there = dict(held["t"])
    for op, wrote in _written(operations, held, "t"):
        if [there.get(seq) for seq in wrote] != op["labels"]:
            yield f"t: {_what(op)} was acknowledged at {wrote}, where {[there.get(seq) for seq in wrote]} is"


def _atomic(operations: list[Op]) -> Iterator[str]:
    """Fences and transactions are seen as a whole or not at all, at consecutive positions."""
    whole = {label: op for op in operations if op["op"] in ("fence", "transact") for label in op["labels"]}
    for op in whole.values():
        seqs = op.get("seqs", [])
        if seqs and seqs != list(range(seqs[0], seqs[0] + len(op["labels"]))):
            yield f"t: {_what(op)} has the positions {seqs}"
    for read in operations:
        found = {label: seq for seq, label in read.get("found", ())}
        for label, seq in found.items():
            if (op := whole.get(label)) is None:
                continue
            missing = [other for other in op["labels"] if other not in found]
            if missing and seq - read["after"] > op["labels"].index(label):  # not cut off by where the read began
                yield f"t: {_what(read)} saw {label} and not {missing}"
            if "committing" in op and read["end"] < op["committing"]:
                yield f"t: {_what(read)} saw {label} before its fence was committed"


def _fences(operations: list[Op], held: Final) -> Iterator[str]:
    """Nothing lies between what was there when a fence was open, and what it hid."""
    by: dict[int, Op] = {seq: op for op, wrote in _written(operations, held, "t") for seq in wrote}
    for op in operations:
        if op["op"] != "fence" or "seqs" not in op:
            continue
        for seq in range(op["seen"] + 1, op["seqs"][0]):
            other = by.get(seq)
            if other is not None:
                yield f"t: {_what(other)} at {seq} came in while the fence {_what(op)} was open"


def _expect(operations: list[Op], held: Final) -> Iterator[str]:
    events = dict(held["accounts"])
    keys = {op["labels"][0]: op["key"] for op in operations if op["op"] == "change"}
    newest: dict[str, int] = defaultdict(int)
    for seq, (label, expected) in events.items():
        key = keys[label]
        if newest[key] != expected:
            yield f"accounts: {label} at {seq} expected {expected} of {key}, which was {newest[key]}"
        newest[key] = seq
    steps: dict[str, list[Step]] = defaultdict(list)
    for op, wrote in _written(operations, held, "accounts"):
        steps[op["key"]].append(Step(wrote[0], True, op["start"], op.get("end", FOREVER), _what(op)))
    for op in operations:
        if op.get("topic") == "accounts" and "saw" in op:
            steps[op["key"]].append(Step(op["saw"], False, op["start"], op["end"], _what(op)))
            if op["op"] == "change" and op["saw"] == op["expected"]:
                yield f"accounts: {_what(op)} was refused though what it expected was there"
    for each in steps.values():
        yield from out_of_order(each)


def _dedup(operations: list[Op], held: Final) -> Iterator[str]:
    for key, count in Counter(key for _, (key, _) in held["once"]).items():
        if count > 1:
            yield f"once: {key} is there {count} times"
    at = {key: (seq, label) for seq, (key, label) in held["once"]}
    steps: dict[str, list[Step]] = defaultdict(list)
    for op in operations:
        if op["op"] != "dedup":
            continue
        seq, label = at.get(op["key"], (0, ""))
        first = label == op["labels"][0]
        if "seqs" in op:
            if op["seqs"] != [seq]:
                yield f"once: {_what(op)} of {op['key']} was told {op['seqs']}, and it is at {seq}"
            if op["duplicate"] == first:
                yield f"once: {_what(op)} was told duplicate={op['duplicate']}, and {label} is what is there"
        if "seqs" in op or first:
            steps[op["key"]].append(Step(seq, first, op["start"], op.get("end", FOREVER), _what(op)))
    for each in steps.values():
        yield from out_of_order(each)


def _leases(operations: list[Op], held: Final) -> Iterator[str]:
    """One holder at a time, and none after the message was settled."""
    taken: dict[str, list[Op]] = defaultdict(list)
    for op in operations:
        if op["op"] == "take" and op.get("message") is not None:
            op["until"] = op["deadline"]
            taken[op["message"]].append(op)
    acked: dict[str, Op] = {}
    maybe: set[str] = set()
    for op in operations:
        if op["op"] == "extend" and "deadline" in op:
            op["taken"]["until"] = max(op["taken"]["until"], op["deadline"])
    for op in operations:
        if op["op"] in ("ack", "release"):
            op["taken"]["until"] = min(op["taken"]["until"], op["wall"])
        if op["op"] == "ack":
            if "done" not in op:
                maybe.add(op["message"])
            elif op["done"]:
                if op["message"] in acked:
                    yield f"work: {op['message']} was settled twice, by {_what(acked[op['message']])} and {_what(op)}"
                acked[op["message"]] = op
    for message, takes in taken.items():
        for number, one in enumerate(takes):
            for other in takes[:number]:
                if one["wall_end"] < other["until"] - TOLERANCE and other["wall_end"] < one["until"] - TOLERANCE:
                    yield f"work: {message} was held by {_what(other)} and {_what(one)} at one time"
            if message in acked and one["start"] > acked[message]["end"]:
                yield f"work: {_what(one)} took {message} after {_what(acked[message])} had settled it"
    left = Counter(payload for _, payload in held["left"])
    for message, count in left.items():
        if count > 1:
            yield f"work: {message} is in the queue {count} times"
        if message in acked:
            yield f"work: {message} was settled and is back"
    for op in operations:
        if op["op"] == "push" and "seqs" in op:
            label = op["labels"][0]
            if label not in left and label not in acked and label not in maybe:
                yield f"work: {label} was pushed, never settled, and is gone"
