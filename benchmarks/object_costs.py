"""What a journal in object storage costs a month: requests counted here, at S3's list price.

    python -m benchmarks object_costs            # measures (about a minute) and prints
    python -m benchmarks object_costs --write    # and puts the table into docs/how-to/object-storage.md

Counted is what `describe().requests` says of a writer on the S3 emulator; how long the emulator takes does not matter.
Storage, traffic and readers are not in it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import penstock

sys.path[:0] = ["tests"]

from buffer.emulator import Emulator  # noqa: E402

PUT_USD, GET_USD = 5.00 / 1_000_000, 0.40 / 1_000_000
"""S3's list price in us-east-1, standard storage; a LIST costs what a PUT does, a DELETE nothing."""
MONTH = 2_630_000
"""Seconds."""
MOST_COMMITS = 30
"""A second, one after the other, where a PUT takes about 30 ms."""
COMMITS, IDLE_SECONDS = 480, 60
PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-to" / "object-storage.md"
BEGIN, END = "<!-- made by benchmarks/object_costs.py: begin -->\n", "<!-- end -->\n"


def usd(counts: Counter[str]) -> float:
    puts, gets = counts["put"] + counts["list"], counts["get"] + counts["head"]
    return puts * PUT_USD + gets * GET_USD


def total(journal: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for kinds in journal.describe().requests.values():
        found.update(kinds)
    return found


def measure() -> tuple[Counter[str], Counter[str]]:
    """The requests of `COMMITS` commits, and of an idle minute."""
    emulator = Emulator()
    try:
        with penstock.open(f"{emulator.bucket()}/shop", store_options=emulator.options) as journal:
            topic = journal.topic("t")
            topic.append("k", {"order": 1, "note": "x" * 100})
            time.sleep(2)  # what opening began
            before = total(journal)
            time.sleep(IDLE_SECONDS)
            idle = total(journal) - before
            before, begun = total(journal), time.monotonic()
            for number in range(COMMITS):
                topic.append("k", {"order": number, "note": "x" * 100})
            commits = total(journal) - before
            resting = (time.monotonic() - begun) / IDLE_SECONDS
            for kind in commits:  # the lease and the polls of that time are the idle writer's
                commits[kind] = max(0, round(commits[kind] - idle[kind] * resting))
        return commits, idle
    finally:
        emulator.stop()


def table(commits: Counter[str], idle: Counter[str]) -> str:
    resting = usd(idle) / IDLE_SECONDS * MONTH
    each = usd(commits) / COMMITS

    def month(commits_a_second: float) -> str:
        return f"{resting + each * commits_a_second * MONTH:,.0f} USD"

    requests = ", ".join(f"{commits[kind] / COMMITS:.2f} {kind}" for kind in ("put", "get", "head", "list"))
    rests = ", ".join(f"{idle[kind] / IDLE_SECONDS:.2f} {kind}" for kind in ("put", "get", "head", "list"))
    lines = [
        f"Counted: {requests} for each of {COMMITS} commits; an idle writer {rests} a second, {resting:.2f} USD a month.",
        "",
        f"| events a second | one commit each | callers share ({MOST_COMMITS} commits/s at the most) | `linger=0.5` | batches of 1,000 |",
        "|---|---|---|---|---|",
    ]
    for rate in (1, 100, 10_000):
        alone = month(rate) if rate <= MOST_COMMITS else "not possible"
        lines.append(
            f"| {rate:,} | {alone} | {month(min(rate, MOST_COMMITS))} | {month(min(rate, 2))} | {month(rate / 1000)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    made = table(*measure())
    sys.stdout.write(made)
    if "--write" in sys.argv:
        text = PAGE.read_text("utf-8")
        before, _, rest = text.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{made}{END}{rest.partition(END)[2]}", encoding="utf-8")
