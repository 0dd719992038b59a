"""Blocks that arrive whole: threads are for large ones, since a batch of a stream is small and others wait for it."""

from __future__ import annotations

import threading

import pytest

import penstock
from penstock.api import local
from penstock.core.journal.blocks import Columns, Wire, build_wire
from penstock.core.journal.bulk import append_wires


def wires(count: int, size: int) -> list[Wire]:
    return [build_wire(Columns(["bulk"], [b'"%s"' % (b"x" * size)]), 0, 0, 0) for _ in range(count)]


@pytest.mark.parametrize(("size", "threads"), [(100, 0), (300_000, 1)])
def test_only_large_blocks_are_made_in_another_thread(size: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def counting(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    with penstock.open("memory:") as journal:
        monkeypatch.setattr(threading.Thread, "start", counting)
        local(journal, "a test")._core.run(lambda commit: append_wires(commit, "orders", wires(5, size)))
        monkeypatch.undo()
        assert [event.seq for event in journal.topic("orders").read()] == [1, 2, 3, 4, 5]
    assert len([thread for thread in started if thread.name.startswith("penstock-bulk")]) == threads
