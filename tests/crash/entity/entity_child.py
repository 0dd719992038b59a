"""The process that test_entity_kill.py kills: works on a store without pause and says what it was promised."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))

from small_index import small_index

import penstock
from penstock import Draft, Journal, Projection
from penstock import on as handles

GROUP = 5


class Total(Projection):
    total: int = 0

    @handles("e", "fenced")
    def add(self, payload: Any) -> None:
        self.total += payload["n"]


def say(*ids: str) -> None:
    sys.stdout.write("".join(f"{one}\n" for one in ids))
    sys.stdout.flush()


def work(journal: Journal, life: str) -> None:
    chance = random.Random(life)
    journal.topic("verified").configure(verified=True)
    for number in itertools.count():
        name = chance.choice(["plain", "verified"])
        key = f"k{chance.randrange(4)}"
        match chance.randrange(6):
            case 0 | 1:
                ids = [f"append/{life}/{number}/{part}" for part in range(chance.choice([1, 1, 8]))]
                journal.topic(name).append_many([Draft("e", {"id": one, "n": number}, key=key) for one in ids])
                say(*ids)
            case 2:
                with journal.fence() as fence:
                    ids = [f"fence/{life}/{number}/{part}" for part in range(GROUP)]
                    for part, one in enumerate(ids):
                        fence.submit(["plain", "verified"][part % 2], "fenced", {"id": one, "n": number}, key=key)
                say(*ids)
            case 3:
                fence = journal.fence(exclusive=chance.random() < 0.5)
                fence.submit(name, "e", {"id": f"cancelled/{life}/{number}", "n": 0}, key=key)
                if chance.random() < 0.5:
                    fence.cancel()
                del fence
            case 4:
                journal._core.indexer.index(name)
            case _:
                journal.topic(name).project(Total, key)


if __name__ == "__main__":
    with small_index():
        work(penstock.open(sys.argv[1]), sys.argv[2])
