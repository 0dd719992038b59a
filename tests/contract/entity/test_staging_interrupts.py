"""Outboxes and fences that a signal interrupts at any line: what is committed is told so, and no fence stays open."""

from __future__ import annotations

import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from journals import on, payloads

from journal import test_interrupts_everywhere as lines
from penstock import Journal
from penstock.core.ticket import Ticket


class Stopped(Exception):
    """What the program's own handler raises."""


class Interrupter(lines.Interrupter):
    """Leaves out what a fence's finalizer does: Python drops what is raised there."""

    def _count(self, frame: FrameType) -> None:
        above: FrameType | None = frame
        while above is not None:
            if above.f_code is weakref.finalize.__call__.__code__:
                return
            above = above.f_back
        super()._count(frame)


@pytest.fixture
def handler() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    before = signal.signal(signal.SIGINT, stop)
    yield
    signal.signal(signal.SIGINT, before)


def flush(journal: Journal, tell: Callable[[Any], None]) -> None:
    outbox = journal.outbox()
    tell(outbox)
    outbox.stage("t", "in")
    outbox.stage("u", "in", cause=0)
    outbox.flush()


def commit_exclusive(journal: Journal, tell: Callable[[Any], None]) -> None:
    fence = journal.fence()
    tell(fence.submit("t", "in"))
    fence.submit("u", "in")
    fence.commit()


def commit_shared(journal: Journal, tell: Callable[[Any], None]) -> None:
    with journal.fence(exclusive=False) as fence:
        tell(fence.submit("t", "in"))
        fence.submit("u", "in")


@on("memory", "sqlite")
@pytest.mark.parametrize("work", [flush, commit_exclusive, commit_shared])
def test_a_signal_at_any_line_leaves_no_fence_open_and_nothing_to_be_written_twice(
    journal: Any, work: Callable[..., None], handler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (
        "entity/registry.py",
        "entity/fence.py",
        "entity/gate.py",
        "entity/outbox.py",
        "entity/reactor.py",
        "ticket.py",
    )
    assert [file for file in files if not (lines.CORE / file).exists()] == []
    monkeypatch.setattr(lines, "FOLDERS", tuple(str(lines.CORE / file) for file in files))
    monkeypatch.setattr(lines, "FILES", ())
    work(journal, lambda told: None)
    total, at = 1, 0
    step = 1 if journal.describe().engine == "memory" else 7  # the lines above an engine are the same
    while True:
        at += step
        told: list[Any] = []
        interrupter = Interrupter(at, signal.SIGINT)
        tracing = sys.gettrace()
        sys.settrace(interrupter)
        try:
            work(journal, told.append)
        except Stopped:
            pass
        finally:
            sys.settrace(tracing)
        where, now = interrupter.where, journal.topic("t").latest
        if not where:
            break
        assert now in (total, total + 1) and journal.topic("u").latest == now, where
        for one in told:
            if isinstance(one, Ticket):
                assert one.done() and (one.exception() is None) == (now > total), where
            else:
                assert now == total or len(one) == 0, where
        assert journal._entities.fences.exclusive is None and not journal._entities.fences._live, where
        journal.topic("v").append("in")  # refused while a fence is open
        total = now
    assert at > 30


@contextmanager
def interrupted_after_the_commit(journal: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ctrl-C comes when the commit is done, while its caller still leads the writer."""
    commit: Callable[[Sequence[object]], None] = journal._core.writer._commit

    def interrupted(batch: Sequence[object]) -> None:
        commit(batch)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(journal._core.writer, "_commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_an_outbox_whose_flush_was_interrupted_after_its_commit_is_empty(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = journal.outbox()
    outbox.stage("orders", "placed", 1)
    outbox.stage("audit", "noted", 1, cause=0)
    with interrupted_after_the_commit(journal, monkeypatch):
        outbox.flush()
    assert len(outbox) == 0 and outbox.flush() == []
    assert payloads(journal.topic("orders").read()) == payloads(journal.topic("audit").read()) == [1]


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_fence_that_was_interrupted_after_its_commit_is_committed(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, exclusive: bool
) -> None:
    fence = journal.fence(exclusive=exclusive)
    ticket = fence.submit("orders", "placed", 1)
    with interrupted_after_the_commit(journal, monkeypatch):
        fence.commit()
    assert fence.state == "committed" and ticket.result().seq == 1
    assert journal.topic("orders").append("placed", 2).seq == 2
