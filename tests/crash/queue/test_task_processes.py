"""`tasks.run(processes=…)`: real processes, which are killed, kill themselves for a time limit, and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Tasks
from penstock.errors import ConfigError
from waiting import DEADLINE, eventually

MODULE = """
import ctypes, os, time
from pathlib import Path
import penstock

tasks = penstock.Tasks()

def note(what):
    with open("notes", "a") as file:
        file.write(f"{what} {os.getpid()}\\n")

@tasks.task(queue="q", timeout="1s", retry=penstock.Retry.fixed("10ms"))
def spin() -> str:
    note("spin")
    while penstock.current_task().attempt == 1:
        pass
    return "second"

@tasks.task(queue="q", timeout="1s")
def hold() -> str:
    note("hold")
    if penstock.current_task().attempt == 1:
        ctypes.PyDLL(None).sleep(600)  # keeps the interpreter's lock: no thread of Python's runs meanwhile
    return "second"

@tasks.task(queue="q", timeout="1s", retry=penstock.Retry.fixed("10ms"))
async def stubborn() -> str:
    note("stubborn")
    if penstock.current_task().attempt == 1:
        time.sleep(600)  # keeps the event loop
    return "second"

@tasks.task(queue="q", timeout="1m")
def held() -> str:
    note("held")
    if penstock.current_task().attempt == 1:
        while not Path("release").exists():
            time.sleep(0.01)
    return "released"

if __name__ == "__main__":
    with penstock.open("shop.db") as journal:
        tasks.bind(journal)
        tasks.run(processes=2, lease=2)
"""


class Shop:
    """A program whose tasks run in two processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs.py").write_text(MODULE)
        self.journal = penstock.open(folder / "shop.db")
        self.queue = self.journal.queue("q")
        self.process = subprocess.Popen([sys.executable, "jobs.py"], cwd=folder, stderr=subprocess.PIPE, text=True)

    def push(self, task: str) -> str:
        tasks = Tasks(self.journal)
        return tasks.task(queue="q", name=task)(lambda: None).push().id

    def state(self, id: str) -> str | None:
        found = self.journal.task(id)
        return None if found is None else found.state

    def pids(self, task: str) -> list[int]:
        """The processes that have begun a call of a task."""
        notes = self.folder / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == task]

    def workers(self) -> set[int]:
        """The processes that the journal lists as workers which are there."""
        return {int(one.name.rpartition(":")[2]) for one in self.queue.consumers() if one.state != "gone"}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    try:
        yield shop
    finally:
        shop.process.send_signal(signal.SIGTERM)
        shop.process.communicate(timeout=DEADLINE)
        shop.journal.close()


@pytest.mark.parametrize("task", ["spin", "hold", "stubborn"])
def test_a_call_that_takes_too_long_ends_its_process_and_is_tried_again_in_another(shop: Shop, task: str) -> None:
    id = shop.push(task)
    eventually(lambda: shop.state(id) == "done")
    found = shop.journal.task(id)
    assert found is not None and (found.result, found.attempts) == ("second", 2)
    first, second = shop.pids(task)
    assert first != second
    eventually(lambda: not is_there(first))
    eventually(lambda: len(shop.workers() - {first}) == 2)


def test_a_killed_process_has_a_successor_and_its_call_comes_back(shop: Shop) -> None:
    id = shop.push("held")
    eventually(lambda: len(shop.pids("held")) == 1)
    (pid,) = shop.pids("held")
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: shop.state(id) == "done")
    found = shop.journal.task(id)
    assert found is not None and (found.result, found.attempts) == ("released", 2)
    eventually(lambda: len(shop.workers() - {pid}) == 2)


def test_a_signal_lets_the_processes_finish_what_they_have_begun(shop: Shop) -> None:
    id = shop.push("held")
    eventually(lambda: len(shop.pids("held")) == 1)
    shop.process.send_signal(signal.SIGINT)  # as from a terminal: the first process passes it on
    waiting = shop.push("spin")
    (shop.folder / "release").touch()
    _, errors = shop.process.communicate(timeout=DEADLINE)
    assert (shop.process.returncode, errors) == (0, "")
    assert (shop.state(id), shop.state(waiting)) == ("done", "waiting")
    assert shop.queue.stats().in_flight == 0 and shop.workers() == set()


def test_processes_end_when_the_one_that_started_them_was_killed(shop: Shop) -> None:
    eventually(lambda: len(shop.workers()) == 2)
    pids = shop.workers()
    shop.process.kill()
    eventually(lambda: not any(map(is_there, pids)))
    assert shop.workers() == set()  # each has said that it ends


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


here = Tasks()


@here.task
def nothing() -> None: ...


def _hidden() -> Tasks:
    hidden = Tasks(penstock.open("memory:"))
    hidden.task(nothing.function)
    return hidden


@pytest.mark.parametrize(
    ("make", "said"), [(_hidden, "processes import the tasks"), (lambda: here, "is for one process")]
)
def test_what_cannot_run_in_processes_is_refused(make: Callable[[], Tasks], said: str) -> None:
    with penstock.open("memory:") as journal, penstock.use(journal), pytest.raises(ConfigError, match=said):
        make().run(processes=2)


def test_a_program_that_runs_its_tasks_when_it_is_imported_is_told(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(MODULE.partition("if __name__")[0] + BAD)
    ended = subprocess.run([sys.executable, "jobs.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and 'start them below if __name__ == "__main__":' in ended.stderr


BAD = 'tasks.bind(penstock.open("shop.db"))\ntasks.run(processes=1)\n'


def test_a_program_runs_its_tasks_in_its_own_process_until_a_signal(tmp_path: Path, shop: Shop) -> None:
    shop.process.terminate()
    shop.process.communicate(timeout=DEADLINE)
    (tmp_path / "jobs.py").write_text(MODULE.replace("processes=2, ", ""))
    id = shop.push("held")
    shop.process = subprocess.Popen([sys.executable, "jobs.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    eventually(lambda: shop.pids("held") == [shop.process.pid])
    shop.process.terminate()
    (tmp_path / "release").touch()
    assert (shop.process.communicate(timeout=DEADLINE)[1], shop.process.returncode) == ("", 0)
    assert shop.state(id) == "done"
