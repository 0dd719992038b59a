"""Opens stores that a power cut, a failing disk or a kill left, and says what is wrong with each.

    python check.py

A process of its own, because a store may take it down: reads one line of JSON per store, answers with one.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import penstock
from penstock import Journal
from torture.files import check as files


def problems(scheme: str, folder: Path, marks: Iterable[Any], *, synced: bool) -> list[str]:
    """What is wrong with the store in a folder, given the marks of the program that wrote it.

    The scheme `files` is what lies beside a store: a buffer, exports, sealed history.
    `synced`: what was acknowledged must be there; otherwise only that what is there is whole.
    """
    noted = list(marks)
    if scheme == "files":
        return files.problems(folder, noted)
    wrong: list[str] = []
    opened = any("opened" in note for note in noted)
    if not opened:  # making a store is one step of its own: the next opener may have to begin again
        return []
    with penstock.open(f"{scheme}:{folder / 'store'}") as journal:
        wrong += _problems_of_events(journal, noted, synced)
        wrong += _problems_of_queue(journal, noted, synced)
        before = journal.topic("t").latest
        if journal.topic("t").append("after", ["after", 0, ""]).seq != before + 1:
            wrong.append("the next append got another position than the next")
    for note in noted:
        if "backup" in note and synced:
            with penstock.open(f"{scheme}:{folder / note['backup']}") as copy:
                latest = copy.topic("t").latest
                if latest != note["latest"]:
                    wrong.append(f"{note['backup']} ends at {latest}, not at {note['latest']}")
                list(copy.topic("t").read())
    return wrong


def _problems_of_events(journal: Journal, noted: list[Any], synced: bool) -> list[str]:
    wrong = []
    topic = journal.topic("t")
    events = {event.seq: event for event in topic.read()}
    found: dict[str, dict[int, int]] = {}
    for seq, event in events.items():
        label, row, *_ = event.payload
        if row in found.setdefault(label, {}):
            wrong.append(f"{label}/{row} is there twice")
        found[label][row] = seq
    oldest, latest = topic.oldest, topic.latest
    if events and list(events) != list(range(oldest, latest + 1)):
        wrong.append(f"positions are not contiguous: {oldest} … {latest}, {len(events)} events")
    trimmed = latest if not events else oldest - 1
    asked = max((note["compacting"] for note in noted if "compacting" in note), default=0)
    if trimmed > asked:
        wrong.append(f"{trimmed} events were removed, {asked} were asked for")
    tried = {note["trying"]: note for note in noted if "trying" in note}
    for label, rows in found.items():
        if label not in tried:
            wrong.append(f"{label} was never written")
        elif len(rows) != tried[label]["rows"] and min(rows.values()) != oldest:
            wrong.append(f"half of the batch {label} is there")
    pairs = [event.payload for event in journal.topic("pairs").read()]
    if len(set(pairs)) != len(pairs):
        wrong.append("a transaction is there twice")
    for label in found:
        if label in tried and tried[label].get("pair") and label not in pairs:
            wrong.append(f"half of the transaction {label} is there")
    if not synced:
        return wrong
    for note in noted:
        if "appended" in note and note["first"] > trimmed:
            where = found.get(note["appended"], {})
            if where != {row: note["first"] + row for row in range(note["rows"])}:
                wrong.append(f"{note['appended']} was acknowledged at {note['first']} and is at {where}")
        if "mark" in note and (journal.mark("m") or 0) < note["mark"]:
            wrong.append(f"mark {note['mark']} was acknowledged and is {journal.mark('m')}")
        if "cursor" in note and (topic.cursor("reader") or 0) < note["cursor"]:
            wrong.append(f"cursor {note['cursor']} was acknowledged and is {topic.cursor('reader')}")
    return wrong


def _problems_of_queue(journal: Journal, noted: list[Any], synced: bool) -> list[str]:
    wrong = []
    queue = journal.queue("q", lease=3600)
    pushed = {note["pushed"] for note in noted if "pushed" in note}
    tried = {note["pushing"] for note in noted if "pushing" in note}
    acking = {note["acking"] for note in noted if "acking" in note}
    acked = {note["acked"] for note in noted if "acked" in note}
    left: list[str] = []
    held = {event.seq for event in queue.pending()}
    for seq in held:
        event = queue.get(seq)
        if event is not None:
            left.append(event.payload)
    while (delivery := queue.take(wait=0)) is not None:
        left.append(delivery.payload)
    if len(set(left)) != len(left):
        wrong.append("a message is in the queue twice")
    if unknown := set(left) - tried:
        wrong.append(f"messages were never pushed: {sorted(unknown)}")
    if synced:
        if lost := pushed - acking - set(left):
            wrong.append(f"messages were pushed, never acknowledged, and are gone: {sorted(lost)}")
        if back := acked & set(left):
            wrong.append(f"messages were settled and are back: {sorted(back)}")
    return wrong


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            wrong = problems(asked["scheme"], Path(asked["folder"]), asked["marks"], synced=asked["synced"])
        except BaseException:
            wrong = [traceback.format_exc(limit=-6)]
        print(json.dumps(wrong), flush=True)


if __name__ == "__main__":
    main()
