"""Run by the crash tests: writes to a journal until it is killed, and notes in a file what was acknowledged.

    python journal_writer.py <url> <oracle file> <name> <durability> [solo]

Every note is one line of JSON in one write, made only after the acknowledgement. `solo` writers also compact and do
housekeeping; writers that share a store only append. The name and a running number make every payload unique.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from typing import Any

import penstock
from penstock import Draft, Journal


class Oracle:
    """What was acknowledged, kept where a kill cannot take it back.

    A kill can cut a note where a page of the file ends. So a writer begins with a new line: what its predecessor left
    unfinished would swallow its first note.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._file, b"\n")

    def note(self, **what: Any) -> None:
        line = json.dumps(what).encode() + b"\n"
        assert os.write(self._file, line) == len(line), "the oracle has no room"


def write(journal: Journal, oracle: Oracle, name: str, alone: bool) -> None:
    topic, chance = journal.topic("t"), random.Random(os.urandom(8))
    for number in range(10**9):
        label = f"{name}-{number}"
        match chance.randrange(10 if alone else 6):
            case 0 | 1:
                receipt = topic.append("one", label, dedup=label, key=name)
                oracle.note(seqs=[receipt.seq], ids=[receipt.id], label=label)
            case 2 | 3:
                size = chance.choice([2, 3, 200])
                receipts = topic.append_many(
                    [Draft("many", [label, size, row], headers={"l": label}) for row in range(size)]
                )
                oracle.note(seqs=[r.seq for r in receipts], ids=[r.id for r in receipts], label=label)
            case 4:
                tickets = [topic.submit("ticket", [f"{label}/{n}", 1, 0]) for n in range(5)]
                for n, ticket in enumerate(tickets):
                    receipt = ticket.result()
                    oracle.note(seqs=[receipt.seq], ids=[receipt.id], label=f"{label}/{n}")
            case 5:
                with journal.transaction() as tx:
                    first = tx.append("t", "pair", label)
                    second = tx.append("pairs", "pair", label, cause=first)
                    tx.set_mark(name, number)
                oracle.note(seqs=[first.seq], ids=[first.id], label=label, pair=second.seq, mark=number)
            case 6:
                cursor = topic.latest
                topic.commit("reader", cursor)
                oracle.note(cursor=cursor)
            case 7 if number % 5 == 0:
                through = max(0, topic.latest - 150)
                oracle.note(compacting=through)
                topic.compact(through, force=True)
                oracle.note(compacted=through)
            case 8 if number % 5 == 0:
                journal.maintain()
            case _:
                topic.append_many([Draft("bulk", [f"{label}/bulk", 30, row], key=str(row)) for row in range(30)])


def main() -> None:
    url, path, name, durability = sys.argv[1:5]
    alone = sys.argv[5:] == ["solo"]
    journal = penstock.open(url, durability=durability)  # type: ignore[arg-type]
    oracle = Oracle(path)
    for worker in range(3):
        threading.Thread(target=write, args=(journal, oracle, f"{name}.{worker}", alone), daemon=True).start()
    print("writing", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
