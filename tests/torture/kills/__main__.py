"""Kills processes that use a journal in every way, again and again, and checks what they leave.

    python -m torture.kills [--engine sqlite] [--count 100] [--minutes 5] [--seed 1]

The seed gives the options and operations of every process; the moment of a kill is the machine's, so a finding is kept
with its store, and may take several runs to show again. Workers are forked: this process opens no store itself.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import penstock
from searching import Search
from torture.children import ended, forked, import_ahead
from torture.kills.check import problems, read_oracle
from torture.kills.worker import Oracle, Worker, set_up, work
from waiting import DEADLINE

SCHEMES = ["sqlite", "rocksdb", "file"]
"""Engines that several processes may write at once."""
ROUNDS = 6
"""Checks of one store before the next one is begun: what is checked grows with every round."""
MEMORY = Path("/dev/shm")
"""Where it is there, stores lie here: a kill takes nothing from the system's cache, and syncs only cost time."""


def look(scheme: str, folder: Path) -> None:
    """Does everything once, unharmed."""
    (folder / "oracle").mkdir()
    with penstock.open(f"{scheme}:{folder / 'store'}") as journal:
        set_up(journal, random.Random(1))
        Worker(journal, Oracle(folder / "oracle" / "a"), folder, "a", random.Random(1)).all_once()
    problems(f"{scheme}:{folder / 'store'}", folder)


class Siege:
    """One store, the processes that use it, and their kills."""

    def __init__(self, scheme: str, folder: Path, seed: int) -> None:
        self.scheme, self.folder, self.rng = scheme, folder, random.Random(seed)
        self.url = f"{scheme}:{folder / 'store'}"
        self.kills = self.born = 0
        self.workers: dict[int, tuple[Path, int]] = {}
        self.found: list[str] = []
        (folder / "oracle").mkdir()
        chosen = self.rng.randrange(1 << 30)

        def make() -> None:
            with penstock.open(self.url) as journal:
                set_up(journal, random.Random(chosen))

        if code := ended(forked(make)):
            self.found.append(f"the store could not be made: {code}")

    def start(self) -> None:
        """Starts a worker with options of its own."""
        options: dict[str, Any] = {"durability": self.rng.choice(["disk", "process"])}
        if self.rng.random() < 0.5:
            options |= {"writer_capacity": self.rng.choice([8, 1000]), "pressure": self.rng.choice([0.5, 0.9])}
        self.born += 1
        name, seed = f"{self.born}{'ab'[len(self.workers) > 0]}", self.rng.randrange(1 << 30)
        again = [note["trying"] for note in read_oracle(self.folder) if "dedup" in note][-50:]
        pid = forked(lambda: work(self.url, self.folder, name, seed, again, options))
        self.workers[pid] = (self.folder / "oracle" / name, self.rng.randrange(1, self.rng.choice([10, 60])))

    def kill(self, pid: int) -> None:
        """Lets a worker come so far as its lot says, and kills it."""
        oracle, far = self.workers.pop(pid)
        deadline = time.monotonic() + DEADLINE
        while (oracle.read_bytes().count(b"\n") if oracle.exists() else 0) < far:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.found.append(f"a worker ended by itself: {os.waitstatus_to_exitcode(status)}")
                return
            if time.monotonic() > deadline:
                self.found.append(f"a worker did nothing for {DEADLINE:.0f} s: {oracle.name}")
                break
            time.sleep(0.001)
        time.sleep(self.rng.random() * 0.005)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.kills += 1

    def round(self) -> None:
        """Kills some workers while others go on, then all; then checks."""
        for _ in range(self.rng.randint(1, 3) if self.scheme == "sqlite" else 1):
            self.start()
        for _ in range(self.rng.randint(1, 5)):
            self.kill(self.rng.choice(list(self.workers)))
            if self.found:
                break
            self.start()
        for pid in list(self.workers):
            self.kill(pid)
        self.check()

    def check(self) -> None:
        answer = self.folder / "answer"

        def ask() -> None:
            answer.write_text(json.dumps(list(problems(self.url, self.folder))))
            os._exit(0)  # as a kill would: nothing it took is settled

        answer.unlink(missing_ok=True)
        if code := ended(forked(ask)):
            self.found.append(f"the process that checks ended with {code}")
        else:
            self.found += json.loads(answer.read_text())
        for place in sorted(self.folder.iterdir()):
            if place.name.startswith(("backup-", "export-")) and self.rng.random() < 0.5:
                shutil.rmtree(place) if place.is_dir() else place.unlink()


def besiege(scheme: str, seed: int, kills: int, ends: float) -> tuple[int, list[str]]:
    """Kills until there were so many, or the time is up; how many there were, and what was found."""
    done = 0
    import_ahead(partial(look, scheme))
    while done < kills and time.monotonic() < ends:
        folder = Path(tempfile.mkdtemp(prefix=f"penstock-kills-{scheme}-", dir=MEMORY if MEMORY.is_dir() else None))
        siege = Siege(scheme, folder, seed)
        for _ in range(ROUNDS):
            if siege.found or done + siege.kills >= kills or time.monotonic() > ends:
                break
            siege.round()
        done += siege.kills
        if siege.found:
            return done, [f"seed {seed}, store kept in {folder}: {each}" for each in siege.found]
        shutil.rmtree(folder)
        seed += 1
    return done, []


def main() -> int:
    search = Search("torture.kills", __doc__, counts="kills of all engines together", engines=SCHEMES)
    options = search.begin()
    for scheme in options.engines:
        begun = time.monotonic()
        ends = begun + options.seconds / len(options.engines)
        kills, found = besiege(scheme, options.seed, -(-options.count // len(options.engines)), ends)
        print(f"{scheme}: {kills} kills in {time.monotonic() - begun:.0f} s", flush=True)
        search.tell(found)
    return search.end(", ".join(options.engines))


if __name__ == "__main__":
    sys.exit(main())
