"""Reading single entities while a bulk load runs, right after it, and at rest.

    python -m benchmarks load               # a million events
    python -m benchmarks load 10000000      # ten million

Batches of 5,000 events with keys are appended as fast as they come; after each of them an entity is looked up: its
generation and its newest twenty events. The index is built beside that, in a thread of the same process, so that what is
measured is how long it keeps a look-up waiting. Times are ratios to those at rest, when the index has come to rest by
itself, from the same run; "1 in 100" is compared with 1 in 100 at rest, because a busy machine stops threads now and
then whatever they do. What this process computes meanwhile, in all of its threads, has rows of its own: what a look-up
does and what keeps it waiting, without what other programs do to the machine.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Sequence

import penstock
from benchmarks.entity import PAYLOAD, PER_ENTITY, folder, rest, took
from benchmarks.harness import Table
from penstock import Draft

BATCH = 5000


Look = tuple[float, float]
"""How long a look-up took, and how much CPU time all threads of this process used meanwhile."""


def rare(times: Sequence[float]) -> float:
    """What one in a hundred takes."""
    return statistics.quantiles(times, n=100)[98]


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    table = Table("load", "Reading entities beside a bulk load", __doc__ or "")
    chance, names = random.Random(7), [f"order-{number:08d}" for number in range(events // PER_ENTITY)]
    with folder() as place, penstock.open(place / "load.db", durability="process") as journal:
        topic = journal.topic("orders")

        def look() -> Look:
            start, used = time.perf_counter(), time.process_time()
            topic.position_of(chance.choice(names))
            for _ in topic.read(key=chance.choice(names), limit=20, reverse=True):
                pass
            return time.perf_counter() - start, time.process_time() - used

        during: list[Look] = []
        loading = 0.0
        for _ in range(0, events, BATCH):
            batch = [Draft("e", PAYLOAD, key=chance.choice(names)) for _ in range(BATCH)]
            loading += took(lambda batch=batch: topic.append_many(batch))
            during += [look(), look()]
        after = [look() for _ in range(200)]
        resting = took(lambda: rest(journal))
        quiet: list[Look] = []
        for _ in range(500):
            time.sleep(0.002)
            quiet += [look(), look()]
    what = f"{events / 1_000_000:g} million events"
    table.row(f"append_many of 5,000, {what}", f"{events / loading / 1000:.0f} thousand a second")
    table.row("look-ups during the load", f"{len(during)}; load average of the machine {os.getloadavg()[0]:.0f}")
    table.row("until the index is at rest after it", f"{resting / loading:.2f} × the time of the load")
    for when, looks in (("during the load", during), ("right after it", after)):
        for at, how in enumerate(("", ", in CPU time of the process")):
            times, resting_times = [one[at] for one in looks], [one[at] for one in quiet]
            usual = statistics.median(times) / statistics.median(resting_times)
            slow = rare(times) / rare(resting_times)
            table.row(
                f"look up an entity {when}{how}",
                f"{usual:.1f} × the time at rest ({statistics.median(resting_times) * 1e6:.0f} µs); "
                f"1 in 100: {slow:.1f} × ({rare(resting_times) * 1e6:.0f} µs)",
                "≤ 5 ×",
                usual <= 5 and slow <= 5,
            )
    table.save()


if __name__ == "__main__":
    main()
