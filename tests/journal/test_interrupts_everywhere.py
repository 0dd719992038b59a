"""A signal at every line of the commit and transaction path, on every engine.

Whatever line it hits: it is raised, nobody hangs, the program's own handler is back, and what was begun is there as a
whole or not at all.
"""

from __future__ import annotations

import ast
import functools
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock import Draft, Journal

CORE = Path(penstock.__file__).parent / "core"
FOLDERS = tuple(str(CORE / name) for name in ("engine", "local", "ticket.py"))
FILES = (
    *(str(CORE / "journal" / f"{name}.py") for name in ("catalog", "commit", "core", "log", "prepare", "writer")),
    *(str(CORE / name) for name in ("journal/transaction.py", "queue/queue.py")),
)


@functools.cache
def withs(file: str) -> frozenset[int]:
    """Lines on which a `with` begins: they are met again at its end, where Python takes no signals."""
    tree = ast.parse(Path(file).read_text("utf-8"))
    return frozenset(node.lineno for node in ast.walk(tree) if isinstance(node, ast.With))


class Interrupter:
    """Raises a signal at the N-th line that is reached."""

    def __init__(self, at: int, number: int) -> None:
        self.at = at
        self.number = number
        self.lines = 0
        self.where = ""
        self._seen: dict[int, set[int]] = {}
        self._discarded: set[int] = set()
        """Frames of generators that are given up before their end."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith((*FOLDERS, *FILES)):
            return None
        if event == "line" and not self._ends_a_with(frame, file):
            self._count(frame)
        elif event == "call":
            if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # also called to be given up
                self._discarded.discard(id(frame))
                self._count(frame)
        elif event == "exception" and arg[0] is GeneratorExit:
            self._discarded.add(id(frame))
        return self

    def _ends_a_with(self, frame: FrameType, file: str) -> bool:
        if frame.f_lineno not in withs(file):
            return False
        seen = self._seen.setdefault(id(frame), set())
        met = frame.f_lineno in seen
        seen.add(frame.f_lineno)
        return met

    def _count(self, frame: FrameType) -> None:
        above: FrameType | None = frame
        while above is not None:
            # Python itself drops what is raised there.
            if above.f_code.co_name == "__del__" or id(above) in self._discarded:
                return
            above = above.f_back
        self.lines += 1
        if self.lines == self.at:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            signal.raise_signal(self.number)


def transact(journal: Journal) -> None:
    with journal.transaction() as tx:
        tx.append("t", "in", 1, key="a")
        tx.push("q", "message")
        tx.append_many("u", [Draft("in", 2), Draft("in", 3)])


def append(journal: Journal) -> None:
    journal.topic("t").append("one", 1, dedup=str(journal.topic("t").latest))


def append_in_nested_shields(journal: Journal) -> None:
    with penstock.open("memory:") as other, other.transaction() as outer:
        outer.append("t", "outer")
        with journal.transaction() as inner:
            inner.append("t", "in", 1)
            inner.append("u", "in", 1)


def flush(journal: Journal) -> None:
    journal.topic("t").append("one", 1)
    journal.flush()


WORK: dict[str, Callable[[Journal], None]] = {
    "append": append,
    "transaction": transact,
    "nested": append_in_nested_shields,
    "flush": flush,
}


def totals(journal: Journal) -> tuple[int, int, int]:
    return journal.topic("t").latest, journal.topic("u").latest, len(journal.queue("q"))


def grown(before: tuple[int, int, int], work: str) -> tuple[int, int, int]:
    more = {"append": (1, 0, 0), "transaction": (1, 2, 1), "nested": (1, 1, 0), "flush": (1, 0, 0)}[work]
    return before[0] + more[0], before[1] + more[1], before[2] + more[2]


SCHEMES = ["memory", "sqlite", "rocksdb", "file"]


class Stopped(Exception):
    """What the program's own handler raises."""


@pytest.fixture
def handler() -> Iterator[Callable[..., None]]:
    """The program's own handler, for both signals."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    yield stop
    for number, old in before.items():
        signal.signal(number, old)


def hurry(number: int, frame: FrameType | None) -> None:
    raise AssertionError("it hangs")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.nightly("crashes"))], ids=["some", "every line"]
)
def test_a_signal_at_any_line_hangs_nobody_and_leaves_nothing_half_done(
    tmp_path: Path, scheme: str, work: str, handler: Callable[..., None], every: bool
) -> None:
    journal = penstock.open("memory:" if scheme == "memory" else f"{scheme}:{tmp_path / 'store'}", durability="process")
    journal.queue("q")
    WORK[work](journal)  # makes what is made once
    before_alarm = signal.signal(signal.SIGALRM, hurry)
    # Every line, at night; in every push some lines, each engine beginning at another.
    step = 1 if every else 19 if scheme != "memory" else 9
    at = 1 if every else 1 + SCHEMES.index(scheme)
    try:
        while True:
            before = totals(journal)
            interrupter = Interrupter(at, signal.SIGINT if at % 2 else signal.SIGTERM)
            signal.alarm(60)
            tracing = sys.gettrace()
            sys.settrace(interrupter)
            try:
                WORK[work](journal)
                stopped = False
            except Stopped:
                stopped = True
            finally:
                sys.settrace(tracing)
            fired = bool(interrupter.where)
            assert stopped == fired, interrupter.where
            assert signal.getsignal(signal.SIGINT) is handler, interrupter.where
            assert signal.getsignal(signal.SIGTERM) is handler, interrupter.where
            _others_can_go_on(journal, interrupter.where)
            now = totals(journal)
            assert (now[0] - 1, *now[1:]) in (before, grown(before, work)), interrupter.where
            if not fired:
                break
            at += step
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before_alarm)
    journal.close()
    assert at > 30


def _others_can_go_on(journal: Journal, where: str) -> None:
    """Another thread appends: it would wait for ever for a lock that was left taken."""
    done = threading.Event()

    def work() -> None:
        journal.topic("t").append("other")
        done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert done.wait(50), f"others hang after a signal at {where}"
    thread.join()
