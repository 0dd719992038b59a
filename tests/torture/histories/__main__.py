"""Records histories of four processes, or of four threads, on one journal and checks them, until the time is up.

    python -m torture.histories [--engine sqlite] [--minutes 5] [--seed 1] [--count 1] [--operations 150]

Engines that several processes may write are used by four processes, one of which is killed on the way and replaced; the
others by four processes through a server (`penstock serve`), and by four threads of one process. The seed gives the
operations; when each happens is the machine's, so a finding is kept with its store.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import penstock
from searching import Search
from server.process import ServerProcess
from torture.children import ended, forked, import_ahead
from torture.histories.check import problems, read_history
from torture.histories.worker import set_up, work

PROCESSES = 4
WAYS = {
    "sqlite": ("processes", "served"),
    "rocksdb": ("served", "threads"),
    "file": ("served", "threads"),
}
"""How each engine is used."""
MEMORY = Path("/dev/shm")


def make(url: str) -> None:
    with penstock.open(url) as journal:
        set_up(journal)


def one_history(scheme: str, way: str, seed: int, operations: int) -> tuple[Counter[str], list[str]]:
    """Records one history and checks it; how many operations of each kind there were, and what was found."""
    rng = random.Random(f"{seed} {way}")
    folder = Path(tempfile.mkdtemp(prefix=f"penstock-history-{scheme}-", dir=MEMORY if MEMORY.is_dir() else None))
    (folder / "history").mkdir()
    url = f"{scheme}:{folder / 'store'}"
    if code := ended(forked(partial(make, url))):
        return Counter(), [f"the store could not be made: {code}"]
    found: list[str] = []
    if way == "threads":
        _expect_end(found, forked(partial(work, url, folder, "p0", rng.randrange(1 << 30), 4, operations)))
    elif way == "processes":
        _let_work(url, folder, rng, operations, found, kill=True)
    else:
        with ServerProcess(url) as server:
            _let_work(server.url, folder, rng, operations, found, kill=False)
    answer = folder / "answer"

    def check() -> None:
        answer.write_text("\n".join(problems(url, folder)))

    _expect_end(found, forked(check))
    if answer.exists():
        found += [line for line in answer.read_text().split("\n") if line]
    counts = Counter(op["op"] for op in read_history(folder))
    if found:
        return counts, [f"{scheme}, {way}, seed {seed}, kept in {folder}: {each}" for each in found]
    shutil.rmtree(folder)
    return counts, []


def _let_work(url: str, folder: Path, rng: random.Random, operations: int, found: list[str], *, kill: bool) -> None:
    pids = []
    for number in range(PROCESSES):
        threads = 2 if number == 0 else 1  # fences keep out other threads and other processes
        pids.append(forked(partial(work, url, folder, f"p{number}", rng.randrange(1 << 30), threads, operations)))
    if kill:
        victim = pids.pop()
        notes, far = folder / "history" / f"p{PROCESSES - 1}a", rng.randrange(1, operations)
        deadline = time.monotonic() + 60
        while (notes.read_bytes().count(b"\n") if notes.exists() else 0) < far and time.monotonic() < deadline:
            time.sleep(0.001)
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        pids.append(forked(partial(work, url, folder, "p9", rng.randrange(1 << 30), 1, operations)))
    for pid in pids:
        _expect_end(found, pid)


def _expect_end(found: list[str], pid: int) -> None:
    if code := ended(pid):
        found.append(f"a process ended with {code}")


def look(scheme: str, folder: Path) -> None:
    """Does everything once, so that children need not import."""
    (folder / "history").mkdir()
    url = f"{scheme}:{folder / 'store'}"
    make(url)
    work(url, folder, "p0", 1, 1, 60)
    problems(url, folder)


def main() -> int:
    search = Search("torture.histories", __doc__, counts="histories of each engine and way", engines=list(WAYS))
    search.parser.add_argument("--operations", type=int, default=150, help="of each thread")
    options = search.begin()
    for scheme in options.engines:
        import_ahead(partial(look, scheme))
        ends = time.monotonic() + options.seconds / len(options.engines)
        counts: Counter[str] = Counter()
        histories = 0
        for number in range(options.count):
            for way in WAYS[scheme]:
                if histories and time.monotonic() > ends:
                    break
                own, found = one_history(scheme, way, options.seed + number, options.operations)
                counts += own
                histories += 1
                search.tell(found)
            if search.found or time.monotonic() > ends:
                break
        print(f"{scheme}: {histories} histories ({', '.join(WAYS[scheme])}) of {counts.total()} operations", flush=True)
    return search.end(", ".join(options.engines))


if __name__ == "__main__":
    sys.exit(main())
