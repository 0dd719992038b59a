"""Workers of tasks are killed before and after every commit: steps, chains and joins go on where they were.

What is asked when all is over:

- a step whose result was kept was not called again;
- each call of a chain, and the call that joins others, was pushed exactly once, and what they returned is right;
- every outside effect of a step happened at least once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from penstock import Tasks
from waiting import DEADLINE

MODULE = """
import os, signal, sys
import penstock
from penstock import step
from penstock.core.engine.sqlite import SqliteWrite

journal = penstock.open("shop.db", create=False)
tasks = penstock.Tasks(journal)
out = os.open("notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def note(*words):
    os.write(out, (" ".join(map(str, words)) + "\\n").encode())

def effect(id, name, value):
    note("called", id, name)
    return value

def kept(name, value):
    id = penstock.current_task().id
    found = step(name, effect, id, name, value)
    note("kept", id, name)
    return found

@tasks.task(queue="first")
def fetch(number: int) -> int:
    return kept("look", number) + kept("read", 1)

@tasks.task(queue="second")
async def double(number: int) -> int:
    import asyncio
    return await asyncio.to_thread(kept, "think", 2 * number)

@tasks.task(queue="first")
def total(numbers: list[int]) -> int:
    return kept("add", sum(numbers))

# ── how it dies ──
place, number = sys.argv[1], int(sys.argv[2])
commits, begin, end = 0, SqliteWrite.__enter__, SqliteWrite.__exit__

def enter(write):
    global commits
    commits += 1
    if place == "before" and commits == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return begin(write)

def leave(write, kind, *rest):
    end(write, kind, *rest)
    if place == "after" and commits == number:
        os.kill(os.getpid(), signal.SIGKILL)

SqliteWrite.__enter__, SqliteWrite.__exit__ = enter, leave
queues = [journal.queue(name) for name in tasks.queues()]
workers = [worker.start() for worker in tasks.workers(concurrency=int(sys.argv[3]))]
import time
while any(one.ready + one.in_flight + one.delayed for one in (queue.stats() for queue in queues)):
    time.sleep(0.005)
for worker in workers:
    worker.stop()
"""


class Shop:
    """A journal with a chain and a join that wait for workers."""

    def __init__(self, folder: Path, count: int = 1) -> None:
        folder.mkdir()
        self.folder = folder
        self.count = count
        (folder / "jobs.py").write_text(MODULE)
        tasks = Tasks()
        fetch = tasks.task(queue="first", name="fetch")(_number)
        double = tasks.task(queue="second", name="double")(_number)
        total = tasks.task(queue="first", name="total")(_numbers)
        self.wanted: dict[str, int] = {}
        with penstock.open(folder / "shop.db") as journal:
            for name in ("first", "second"):
                journal.queue(name, lease=0.5, max_attempts=10_000)
            tasks.bind(journal)
            for number in range(count):
                self.wanted[fetch.then(double).push(number).id] = 2 * (number + 1)
                joined = tasks.gather(fetch.call(number), fetch.call(5).then(double)).then(total).push()
                self.wanted[joined.id] = number + 1 + 12

    def work(self, place: str = "never", number: int = 0, concurrency: int = 1) -> subprocess.Popen[bytes]:
        words = [sys.executable, "jobs.py", place, str(number), str(concurrency)]
        with (self.folder / "errors").open("ab") as errors:
            return subprocess.Popen(words, cwd=self.folder, stderr=errors)

    def finish(self) -> None:
        """Works until nothing is left, and judges."""
        ended = self.work(concurrency=4)
        assert ended.wait(DEADLINE) == 0, self.errors()
        kept: set[tuple[str, ...]] = set()
        called: set[tuple[str, ...]] = set()
        for line in (self.folder / "notes").read_text().splitlines():
            what, *step = line.split()
            if what == "called":
                assert tuple(step) not in kept, f"the step {step} was called again after its result was kept"
                called.add(tuple(step))
            else:
                kept.add(tuple(step))
        assert called == kept
        with penstock.open(self.folder / "shop.db") as journal:
            found = {id: state.result for id in self.wanted if (state := journal.task(id)) and state.state == "done"}
            assert found == self.wanted
            pushed = {name: journal.topic(name).latest for name in ("first", "second")}
            assert pushed == {"first": 4 * self.count, "second": 2 * self.count}  # three fetches and a total; doubles
            assert len(called) == 9 * self.count

    def errors(self) -> str:
        return (self.folder / "errors").read_text()


def _number(number: int) -> int:
    raise NotImplementedError  # another process has the functions


def _numbers(numbers: list[int]) -> int:
    raise NotImplementedError


@pytest.mark.nightly("crashes")
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_worker_may_be_killed_beside_every_commit(tmp_path: Path, place: str) -> None:
    number = 1
    while True:
        shop = Shop(tmp_path / str(number))
        worker = shop.work(place, number)
        code = worker.wait(DEADLINE)
        if code == 0:
            break  # it has fewer commits than that
        assert code == -signal.SIGKILL, shop.errors()
        shop.finish()
        number += 1
    shop.finish()
    assert number > 20, "a worker of this does more"


@pytest.mark.slow
def test_workers_that_are_killed_at_any_moment_finish_every_chain(tmp_path: Path) -> None:
    shop, chance = Shop(tmp_path / "shop", 60), random.Random(7)
    for _ in range(12):
        workers = [shop.work(concurrency=3) for _ in range(2)]
        time.sleep(chance.uniform(0.4, 1.2))
        for worker in workers:
            if worker.poll() is None:
                os.kill(worker.pid, signal.SIGKILL)
            assert worker.wait(DEADLINE) in (0, -signal.SIGKILL), shop.errors()
    shop.finish()
