"""What an operation does, counted: engine calls, rows that scans hand out, and calls within the package."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import penstock
from penstock.core.engine.memory import MemoryEngine

PACKAGE = str(Path(penstock.__file__).parent)


class Cost(NamedTuple):
    """What one operation did."""

    calls: int
    """Calls of the engine: transactions, gets, scans, puts, deletes."""
    rows: int
    """Rows that scans handed out."""
    steps: int
    """Functions called by the package's code, those written in C included: work in memory that no engine sees."""


class Counter:
    """Counts the calls of engines in memory that some work makes, also in threads that it starts."""

    def __init__(self) -> None:
        self.calls = self.rows = 0
        self._others: set[int] = set()
        """Threads that were there before: those in the background work when they like."""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Within the block, transactions that begin are counted."""
        read, write = MemoryEngine.read, MemoryEngine.write

        def counted_read(engine: MemoryEngine) -> Any:
            return _Counted(read(engine), self) if self.note_call() else read(engine)

        def counted_write(engine: MemoryEngine, *, sync: bool = True) -> Any:
            return _Counted(write(engine, sync=sync), self) if self.note_call() else write(engine, sync=sync)

        with patch.object(MemoryEngine, "read", counted_read), patch.object(MemoryEngine, "write", counted_write):
            yield

    def note_call(self) -> bool:
        """Counts a call; False when it is of no concern here."""
        counts = threading.get_ident() not in self._others
        self.calls += counts
        return counts

    def cost(self, work: Callable[[], int]) -> tuple[Cost, int]:
        """What some work costs, and what it returned."""
        mine = threading.get_ident()
        self._others = {thread.ident for thread in threading.enumerate() if thread.ident not in (mine, None)}
        before = self.calls, self.rows
        with _steps() as steps:
            answer = work()
        return Cost(self.calls - before[0], self.rows - before[1], steps[0]), answer


class _Counted:
    """A transaction that counts what is asked of it."""

    def __init__(self, tx: Any, counter: Counter) -> None:
        self._tx, self._counter = tx, counter

    def __enter__(self) -> Any:
        self._tx.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._tx.__exit__(*exc)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._counter.calls += 1
        return self._passed(self._tx.scan(start, stop, reverse=reverse))

    def _passed(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for row in rows:
            self._counter.rows += 1
            yield row

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "put", "delete", "delete_range"):
            self._counter.calls += 1
        return getattr(self._tx, name)


@contextmanager
def _steps() -> Iterator[list[int]]:
    """Counts the calls that the package's code makes in this thread: in the list's only place, when the block ends."""
    steps = [0]

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(PACKAGE):
            steps[0] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield steps
    finally:
        sys.setprofile(before)
