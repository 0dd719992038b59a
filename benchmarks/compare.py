"""Two commits beside each other: the hot paths, in alternating rounds.

    python -m benchmarks compare OLD                 # a commit against the tree as it is now
    python -m benchmarks compare OLD "take + ack"    # only rows with these words
    make bench BENCH=compare OLD=<commit>

Each commit's sources run in a process of their own, with the same interpreter and packages; the two do their rounds turn
by turn, each on a store of its own. A ratio is the old commit's time divided by the new one's, the median of all rounds:
above 1 is faster. CPU time is that of the process (in a row of several processes: of the one that measures), so that it
says little of what waits for the disk; the time is that of one operation. Spread is half the distance between the
quartiles of the ratio of CPU time, or of time where a row is about waiting. Each row says the new commit's p50, p99 and
longest time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.compare_work import ROWS, Round
from benchmarks.harness import Table, latencies, spread

ROOT = Path(__file__).parent.parent
ROUNDS = 31


@contextmanager
def sources(commit: str) -> Iterator[Path]:
    """The tree of a commit, in a worktree that goes again."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


class Side:
    """A process that does rounds of one row with the sources of one tree."""

    def __init__(self, tree: Path, row: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.compare_work", row],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._ask, self._answers = self._process.stdin, self._process.stdout
        where = self._answers.readline()
        if not where:
            assert self._process.stderr is not None
            why = self._process.stderr.read().strip().rpartition("\n")[2]
            raise LookupError(f"{row}: does not run at {tree}: {why}")
        assert Path(json.loads(where)).is_relative_to(tree), f"{where} is not in {tree}"

    def round(self) -> Round:
        self._ask.write("\n")
        return Round(*json.loads(self._answers.readline()))

    def close(self) -> None:
        self._ask.close()
        self._process.wait()
        self._answers.close()


def compare(table: Table, trees: tuple[Path, Path], row: str, rounds: int) -> None:
    with ExitStack() as stack:
        sides = []
        for tree in trees:
            sides.append(side := Side(tree, row))
            stack.callback(side.close)
        found: tuple[list[Round], list[Round]] = ([], [])
        for number in range(rounds):
            for at in (0, 1) if number % 2 else (1, 0):  # neither is always the first
                found[at].append(sides[at].round())
    used = [old.cpu / new.cpu for old, new in zip(*found, strict=True)]
    took = [statistics.median(old.times) / statistics.median(new.times) for old, new in zip(*found, strict=True)]
    times = [one for round_ in found[1] for one in round_.times]
    before, now = (statistics.median(one.cpu for one in side) * 1e6 for side in found)
    table.row(
        row,
        f"CPU {statistics.median(used):.2f} × ({before:,.1f} → {now:,.1f} µs), time {statistics.median(took):.2f} ×; "
        f"{latencies(times)}",
        spread=spread(took if "process append" in row or "follower" in row else used),
    )


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("compare with which commit? python -m benchmarks compare OLD [WORDS]   (make: OLD=<commit>)")
    commit, words = sys.argv[1], " ".join(sys.argv[2:])
    rows = [row for row in ROWS if words in row]
    if not rows:
        sys.exit(f"no row has {words!r}; there are: {'; '.join(ROWS)}")
    rounds = int(os.environ.get("ROUNDS", ROUNDS))
    table = Table("compare", "Two commits", f"{__doc__}\nThe old commit is {commit}.", rounds=rounds)
    with sources(commit) as old:
        for row in rows:
            try:
                compare(table, (old, ROOT), row, rounds)
            except LookupError as error:
                table.text(str(error))


if __name__ == "__main__":
    main()
