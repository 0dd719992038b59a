"""Compares a store with the oracle of all who worked on it; every difference is a sentence."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock import Journal, Topic
from torture.kills.worker import GROUPS, RING, Changes


def read_oracle(folder: Path) -> list[Any]:
    """Every note, those of one process in order."""
    notes = []
    for path in sorted((folder / "oracle").iterdir()):
        lines, _, _ = path.read_bytes().rpartition(b"\n")  # a line may be seen while it is written
        notes += [json.loads(line) for line in lines.split(b"\n") if line]
    return notes


def problems(url: str, folder: Path) -> list[str]:
    noted = read_oracle(folder)
    wrong = [f"an operation failed: {note['failed']}" for note in noted if "failed" in note]
    with penstock.open(url) as journal:
        wrong += _events(journal, noted)
        wrong += _accounts(journal, noted)
        wrong += _work(journal, noted)
        wrong += _fanout(journal, noted)
        wrong += _kept(journal, noted)
        for name in journal.topics():
            wrong += _index_and_totals(journal.topic(name))
    wrong += _copies(url.partition(":")[0], folder, noted)
    return wrong


def _events(journal: Journal, noted: list[Any]) -> Iterator[str]:
    topic = journal.topic("t")
    events = {event.seq: event for event in topic.read()}
    oldest, latest = topic.oldest, topic.latest
    if events and list(events) != list(range(oldest, latest + 1)):
        yield f"t: positions are not contiguous: {oldest} … {latest}, {len(events)} events"
    trimmed = latest if not events else oldest - 1
    asked = max((note["compacting"] for note in noted if "compacting" in note), default=0)
    if trimmed > asked:
        yield f"t: {trimmed} events were removed, {asked} were asked for"
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for seq, event in events.items():
        label, row, _ = event.payload
        if row in found[label]:
            yield f"t: {label}/{row} is there twice"
        found[label][row] = seq
    tried = {note["trying"]: note for note in noted if "trying" in note}
    cancelled = {note["cancelled"] for note in noted if "cancelled" in note}
    pairs = [event.payload for event in journal.topic("pairs").read()]
    for label, count in Counter(pairs).items():
        if count > 1:
            yield f"the transaction {label} is there twice"
    for label, rows in found.items():
        if label not in tried:
            yield f"t: {label} was never written"
        elif label in cancelled:
            yield f"t: {label} was rolled back, or its fence was cancelled, and it is there"
        elif len(rows) != tried[label]["rows"] and min(rows.values()) != oldest:
            yield f"t: half of the batch {label} is there"
        elif tried[label].get("pair") and label not in pairs:
            yield f"half of the transaction {label} is there"
    for label in set(pairs) - set(found):
        if label in cancelled or not trimmed:
            yield f"the other half of the transaction {label} is there"
    for note in noted:
        if "appended" in note:
            kept = {row: seq for row, seq in enumerate(note["seqs"]) if seq > trimmed}
            if {row: seq for row, seq in found.get(note["appended"], {}).items() if row in kept} != kept:
                yield f"t: {note['appended']} was acknowledged at {kept} and is at {found.get(note['appended'])}"
            elif any(events[seq].id != note["ids"][row] for row, seq in kept.items()):
                yield f"t: {note['appended']} has another id than its receipt"
        if "cursor" in note and (topic.cursor("reader") or 0) < note["cursor"]:
            yield f"cursor {note['cursor']} was acknowledged and is {topic.cursor('reader')}"
        if "mark" in note and (journal.mark(note["mark"]) or 0) < note["value"]:
            yield f"mark {note['mark']} was set to {note['value']} and is {journal.mark(note['mark'])}"


def _accounts(journal: Journal, noted: list[Any]) -> Iterator[str]:
    """Every change was made on top of the one it had seen, and states are made of all of them."""
    topic = journal.topic("accounts")
    for key in {event.key for event in topic.read()}:
        if (state := topic.project(Changes, key)) != Changes.fold(topic.read(key=key)):
            yield f"accounts: the state of {key} is not that of its events: {state}"
    last: dict[str, int] = defaultdict(int)
    at: dict[int, tuple[str | None, int]] = {}
    for event in topic.read():
        _, seen = event.payload
        if seen != last[event.key or ""]:
            yield f"accounts: {event.seq} of {event.key} was made after {seen}, and follows {last[event.key or '']}"
        last[event.key or ""] = event.seq
        at[event.seq] = (event.key, seen)
    for note in noted:
        if "changed" in note and at.get(note["seq"]) != (note["changed"], note["seen"]):
            yield f"accounts: the change at {note['seq']} was acknowledged and is {at.get(note['seq'])}"


def _work(journal: Journal, noted: list[Any]) -> Iterator[str]:
    pushed = {note["pushed"] for note in noted if "pushed" in note}
    pushing = {note["pushing"] for note in noted if "pushing" in note}
    cancelled = {note["cancelled"] for note in noted if "cancelled" in note}
    settling = {note["settling"] for note in noted if "settling" in note}
    settled = {note["settled"] for note in noted if "settled" in note}
    left: list[str] = []
    for name in ("work", "dead"):
        queue = journal.queue(name)
        inside = [event.payload for event in queue]
        stats = queue.stats()
        counted = stats.ready + stats.in_flight + stats.delayed + stats.failed
        if counted != len(inside):
            yield f"{name}: {len(inside)} messages are there and {counted} are counted: {stats}"
        taken = Counter(delivery.payload for delivery in queue.take_many(100_000))
        if taken != Counter(inside):
            yield f"{name}: what is taken is not what is there: {taken - Counter(inside)}, {Counter(inside) - taken}"
        left += inside
    for label, count in Counter(left).items():
        if count > 1:
            yield f"work: {label} is there {count} times"
    if unknown := set(left) - (pushing - cancelled):
        yield f"work: messages were never pushed: {sorted(unknown)[:5]}"
    if lost := pushed - settling - set(left):
        yield f"work: messages were pushed, never acknowledged, and are gone: {sorted(lost)[:5]}"
    if back := settled & set(left):
        yield f"work: messages were settled and are back: {sorted(back)[:5]}"
    results = Counter(event.payload for event in journal.topic("results").read())
    for note in noted:
        if "result" in note and results[note["result"]] != 1:
            yield f"results: {note['result']} is there {results[note['result']]} times"
    if both := set(results) & set(left):
        yield f"results: made of messages that are still there: {sorted(both)[:5]}"


def _fanout(journal: Journal, noted: list[Any]) -> Iterator[str]:
    fanned = {note["fanned"] for note in noted if "fanned" in note}
    fanning = {note["fanning"] for note in noted if "fanning" in note}
    for group in GROUPS:
        settling = {note["settling_one"] for note in noted if "settling_one" in note and note["group"] == group}
        settled = {note["settled_one"] for note in noted if "settled_one" in note and note["group"] == group}
        left = [delivery.payload for delivery in journal.queue("fanout").take_many(100_000, group=group)]
        if len(set(left)) != len(left):
            yield f"fanout: {group} has a message twice"
        if unknown := set(left) - fanning:
            yield f"fanout: {group} has messages that were never pushed: {sorted(unknown)[:5]}"
        if lost := fanned - settling - set(left):
            yield f"fanout: {group} lost messages: {sorted(lost)[:5]}"
        if back := settled & set(left):
            yield f"fanout: {group} has settled messages again: {sorted(back)[:5]}"


def _kept(journal: Journal, noted: list[Any]) -> Iterator[str]:
    """Topics that lose events on purpose, or have them elsewhere, keep what they should."""
    newest: dict[str, tuple[int, str]] = {}
    for note in noted:
        if "state" in note:
            newest[note["state"]] = max(newest.get(note["state"], (0, "")), (note["seq"], note["value"]))
    stored = {event.key: (event.seq, event.payload) for event in journal.topic("state").read()}
    for key, acknowledged in newest.items():
        found = stored.get(key, (0, ""))
        if found[0] < acknowledged[0] or (found[0] == acknowledged[0] and found != acknowledged):
            yield f"state: {key} was {acknowledged} and is {found}"
    ring = journal.topic("ring")
    last = max((note["ring"] for note in noted if "ring" in note), default=0)
    positions = [event.seq for event in ring.read()]
    if last and (not positions or positions[-1] < last or len(positions) < min(RING, last)):
        yield f"ring: {last} was acknowledged, {RING} are kept, and there are {positions[:1]} … {positions[-1:]}"
    if positions and positions != list(range(positions[0], positions[-1] + 1)):
        yield "ring: positions are not contiguous"
    old = [(event.seq, event.payload) for event in journal.topic("old").read()]
    if [seq for seq, _ in old] != list(range(1, len(old) + 1)):
        yield "old: positions are not contiguous from 1"
    for note in noted:
        if "old" in note:
            begin = note["first"] - 1
            if old[begin : begin + 30] != [(begin + 1 + row, [note["old"], row]) for row in range(30)]:
                yield f"old: {note['old']} was acknowledged at {note['first']} and is not there"


def _index_and_totals(topic: Topic) -> Iterator[str]:
    """What the index finds is what a scan finds; counts and hashes are right."""
    events = list(topic.read())
    if len(topic) != len(events):
        yield f"{topic.name}: {len(events)} events are there and {len(topic)} are counted"
    by_key: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.key is not None:
            by_key[event.key].append(event.seq)
    for key, seqs in by_key.items():
        if [event.seq for event in topic.read(key=key)] != seqs:
            yield f"{topic.name}: the index of {key} is not what a scan finds"
        if topic.position_of(key) != seqs[-1]:
            yield f"{topic.name}: the newest of {key} is {seqs[-1]}, and the index says {topic.position_of(key)}"
    for event in events[:: max(1, len(events) // 5)]:
        found = topic.find(event.id)
        if found is None or found.seq != event.seq:
            yield f"{topic.name}: {event.id} at {event.seq} is found at {found.seq if found else None}"
    report = topic.verify()
    if not report.ok:
        yield f"{topic.name}: {report}"


def _copies(scheme: str, folder: Path, noted: list[Any]) -> Iterator[str]:
    for note in noted:
        if "backup" in note and (folder / note["backup"]).exists():
            with penstock.open(f"{scheme}:{folder / note['backup']}") as copy:
                events = [event.seq for event in copy.topic("t").read()]
                latest = copy.topic("t").latest
                if latest < note["latest"] or events != list(range(latest - len(events) + 1, latest + 1)):
                    yield f"{note['backup']} ends at {latest} and was made at {note['latest']}"
        if "export" in note and (folder / note["export"]).exists():
            with penstock.open("memory:") as copy:
                copy.import_(folder / note["export"])
                if copy.topic("accounts").latest < note["latest"]:
                    yield f"{note['export']} ends before {note['latest']}"
