"""What the benchmarks share: the machine's own rate as the measure, tables of ratios, results that say how they came about."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
WIDE_SPREAD = 0.15
"""Results that are further apart are no measure of a small change."""


def raw_rate(folder: Path, count: int = 600) -> float:
    """How many 100-byte appends with fdatasync the machine does in a second: 1.0 in the tables."""
    descriptor = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        start = time.perf_counter()
        for _ in range(count):
            os.write(descriptor, b"x" * 100)
            os.fdatasync(descriptor)
        return count / (time.perf_counter() - start)
    finally:
        os.close(descriptor)


def rate(work: Callable[[], int]) -> float:
    """Units of work per second, where `work` returns how many it did."""
    start = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - start)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def latencies(times: list[float]) -> str:
    """What a row says of how long operations took."""
    p50, p99, longest = (percentile(times, share) * 1e6 for share in (0.5, 0.99, 1))
    return f"p50 {p50:,.0f} µs · p99 {p99:,.0f} µs · longest {longest:,.0f} µs"


class Ratio(float):
    """The median of several rounds' ratios, which knows how far apart they are."""

    spread: float

    @classmethod
    def of(cls, found: list[float]) -> Ratio:
        ratio = cls(statistics.median(found))
        ratio.spread = spread(found)
        return ratio


def median_ratio(rounds: int, base: Callable[[], float], work: Callable[[], float]) -> Ratio:
    """The median of work ÷ base over several rounds, the two measured next to each other each time; the first round
    warms up."""
    found = [work() / base() for _ in range(rounds + 1)]
    return Ratio.of(found[1:])


def spread(values: list[float]) -> float:
    """How far apart several rounds' results are: half the distance between their quartiles, as a share of the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / middle


class Table:
    """Rows of name, result and goal, printed as they come and written as Markdown at the end."""

    def __init__(self, name: str, title: str, notes: str, *, rounds: int | None = None) -> None:
        self._name = name
        self._rows: dict[str, str] = {}
        conditions = _conditions(rounds)
        self._lines = [
            f"# {title}",
            "",
            notes.strip(),
            "",
            conditions,
            "",
            "| work | result | goal | |",
            "|---|---|---|---|",
        ]
        sys.stdout.write(f"{conditions}\n")

    def row(
        self, work: str, result: str, goal: str = "", holds: bool | None = None, *, spread: float | None = None
    ) -> None:
        """`spread`: how far apart the rounds were that the result is the median of."""
        verdict = "" if holds is None else "holds" if holds else "short"
        if spread is not None:
            result += f"; spread {spread:.0%}" + (", too wide to judge by" if spread > WIDE_SPREAD else "")
        self._rows[work] = f"| {work} | {result} | {goal} | {verdict} |"
        self._lines.append(self._rows[work])
        sys.stdout.write(f"{work:<58} {result:<44} {goal:<18} {verdict}\n")
        sys.stdout.flush()

    def text(self, line: str) -> None:
        self._lines += ["", line]
        sys.stdout.write(line + "\n")

    def save_rows(self) -> Path:
        """Puts the rows that were measured in the place of those of an earlier run, and leaves its others."""
        before = RESULTS / f"{self._name}.md"
        known = before.read_text("utf-8").splitlines() if before.exists() else self._lines
        left = dict(self._rows)
        lines = []
        for line in known:
            work = line.strip("| ").partition(" | ")[0]
            lines.append(left.pop(work, line) if line.startswith("|") else line)
        last = max(at for at, line in enumerate(lines) if line.startswith("|"))
        self._lines = [*lines[: last + 1], *left.values(), *lines[last + 1 :]]
        return self.save()

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self._name}.md"
        path.write_text("\n".join(self._lines) + "\n", encoding="utf-8")
        sys.stdout.write(f"written to {path.relative_to(Path.cwd())}\n" if path.is_relative_to(Path.cwd()) else "")
        return path


def versions(*packages: str) -> str:
    found = []
    for package in packages:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"{package} (not installed)")
    return ", ".join(found)


def _conditions(rounds: int | None) -> str:
    """What a reader of the results has to know of the machine: what it is, what else it did, how fast its disk syncs."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        synced = 1e6 / raw_rate(Path(folder), 200)
    return (
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}, a write and fdatasync of 100 bytes takes {synced:,.0f} µs; "
        f"{versions('penstock', 'apsw', 'rocksdict', 'pyarrow')}{'' if rounds is None else f'; {rounds} rounds'}."
    )
