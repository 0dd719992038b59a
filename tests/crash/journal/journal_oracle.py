"""What must hold of a journal whose writers were killed, given what they had acknowledged."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from penstock import Journal
from waiting import DEADLINE

WRITER = Path(__file__).with_name("journal_writer.py")


def start(url: str, oracle: Path, name: str, durability: str, *options: str) -> subprocess.Popen[str]:
    """A writing process that has begun to write."""
    command = [sys.executable, str(WRITER), url, str(oracle), name, durability, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n", "the writer could not open what its predecessor left"
    return process


def kill(
    process: subprocess.Popen[str],
    chance: random.Random,
    longest: float = 0.25,
    until: Callable[[], bool] = lambda: True,
) -> None:
    """Kills a writer at some moment, not before something has happened."""
    deadline = time.monotonic() + DEADLINE
    while not until():
        assert process.poll() is None and time.monotonic() < deadline, "the writer does not get on"
        time.sleep(0.01)
    time.sleep(chance.random() * longest)
    assert process.poll() is None, "the writer ended by itself"
    process.kill()
    process.wait(DEADLINE)
    assert process.stdout is not None
    process.stdout.close()


def notes(*oracles: Path) -> list[dict[str, Any]]:
    lines = [line for oracle in oracles if oracle.exists() for line in oracle.read_text().splitlines()]
    return [note for line in lines if (note := _whole(line)) is not None]


def _whole(line: str) -> dict[str, Any] | None:
    """A note, or None for one that the kill cut off in the middle of its writing: nobody was told of that one."""
    try:
        note: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return note


def label_of(payload: Any) -> str:
    return payload if isinstance(payload, str) else str(payload[0])


def check(journal: Journal, noted: list[dict[str, Any]]) -> int:
    """Checks a journal against what was acknowledged; returns how many events it holds."""
    topic = journal.topic("t")
    events = {event.seq: event for event in topic.read()}
    payloads = {seq: event.payload for seq, event in events.items()}
    oldest, latest = topic.oldest, topic.latest
    # Positions are contiguous, and so nothing was taken out of the middle.
    if events:
        assert list(events) == list(range(oldest, latest + 1))
    assert len(topic) == len(events)
    times, ids = [event.recorded_at for event in events.values()], [event.id for event in events.values()]
    assert times == sorted(times) and ids == sorted(ids) and len(set(ids)) == len(ids)
    # Only what a compaction was asked to remove is gone.
    asked = max((note["compacting"] for note in noted if "compacting" in note), default=0)
    done = max((note["compacted"] for note in noted if "compacted" in note), default=0)
    trimmed = latest if not events else oldest - 1
    assert trimmed <= asked, (
        f"{trimmed} events are gone (oldest {oldest}, latest {latest}), {asked} were to go; compactions noted: "
        f"{[note for note in noted if 'compacting' in note or 'compacted' in note][-8:]}"
    )
    # What was acknowledged is there, once, where the receipt said.
    for note in noted:
        for row, (seq, id) in enumerate(zip(note.get("seqs", ()), note.get("ids", ()), strict=True)):
            assert seq <= latest, f"{note} was acknowledged and is gone"
            if seq > trimmed:
                assert events[seq].id == id and label_of(payloads[seq]) == note["label"]
                assert isinstance(payloads[seq], str) or payloads[seq][2] == row
        if "cursor" in note:
            assert (topic.cursor("reader") or 0) >= note["cursor"]
    assert done <= trimmed, f"{done} events were removed, and {trimmed} are gone (oldest {oldest}, latest {latest})"
    # Nothing twice, and batches whole.
    seen = Counter((label_of(one), one[2] if isinstance(one, list) else 0) for one in payloads.values())
    assert all(count == 1 for count in seen.values()), [key for key, count in seen.items() if count > 1]
    for seq, payload in payloads.items():
        if isinstance(payload, list) and (payload[2] == 0 or seq == oldest):
            label, size, row = payload
            for other in range(row, size):
                assert payloads[seq - row + other] == [label, size, other], f"half of the batch {label} is there"
        elif isinstance(payload, list):
            assert payloads[seq - 1] == [*payload[:2], payload[2] - 1], f"half of the batch {payload[0]} is there"
    # Transactions are whole.
    pairs = {event.payload: event for event in journal.topic("pairs").read()}
    kept = {payloads[seq] for seq, event in events.items() if event.kind == "pair"}
    first_kept = next(iter(events.values())).recorded_at if events else None
    for label in kept:
        assert label in pairs, f"half of the transaction {label} is there"
    for label, event in pairs.items():
        if label not in kept:
            assert first_kept is None or event.recorded_at <= first_kept, f"half of the transaction {label} is there"
    marks: dict[str, int] = {}
    for note in noted:
        if "mark" in note:
            marks[note["label"].rpartition("-")[0]] = note["mark"]
    for name, mark in marks.items():
        assert (journal.mark(name) or 0) >= mark
    return len(events)


def check_dedup(journal: Journal, noted: list[dict[str, Any]]) -> int:
    """Repeats acknowledged appends with their dedup keys, as an unsure producer does; nothing may be added."""
    topic, latest, repeated = journal.topic("t"), journal.topic("t").latest, 0
    for note in noted[-200:]:
        if len(note.get("seqs", ())) == 1 and "/" not in note["label"] and "pair" not in note:
            receipt = topic.append("again", note["label"], dedup=note["label"])
            assert receipt.duplicate and [receipt.seq] == note["seqs"] and [receipt.id] == note["ids"]
            repeated += 1
    assert topic.latest == latest
    return repeated


def reopen(url: str) -> Journal:
    return penstock.open(url)
