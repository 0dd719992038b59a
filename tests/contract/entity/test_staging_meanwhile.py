"""Outboxes, fences and reactors beside interrupts, other processes and compaction."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from journals import Place, eventually, on, payloads

from penstock import Draft, Event, Journal, Topic
from penstock.entity import fence as holders
from penstock.errors import Conflict, StorageError
from penstock.journal import keys


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


# ── interrupts ───────────────────────────────────────────────────────────────────────────────────────────────────────
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


def test_an_outbox_that_was_refused_keeps_what_is_staged(journal: Journal) -> None:
    journal.topic("orders").append("placed", 0, key="o")
    outbox = journal.outbox()
    outbox.stage("orders", "placed", 1, key="o", expect=0)
    with pytest.raises(Conflict):
        outbox.flush()
    assert len(outbox) == 1


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


# ── fences ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def fence_rows(journal: Any) -> int:
    with journal._engine.read() as snap:
        return len(list(snap.scan(keys.FENCE, keys.prefix_end(keys.FENCE))))


@on("sqlite")
def test_a_fence_whose_end_could_not_be_written_keeps_no_other_process_out(
    journal: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append("placed", 1)
    fence = journal.fence()

    def full(*, sync: bool = True) -> Any:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(journal._engine, "write", full)
        fence.cancel()
        for _ in range(2):  # the first one after what the cancelling has handed in
            with pytest.raises(StorageError, match="no room"):
                topic.append("placed", 2)
    assert fence_rows(journal) == 1  # other processes take it for open: its process is alive
    with pytest.raises(Conflict), journal.transaction() as tx:
        tx.append(topic, "placed", 2, key="k", expect=7)
    topic.append("placed", 2)
    assert fence_rows(journal) == 0


@on("sqlite")
def test_a_conflict_after_a_fence_of_a_dead_process_spoils_no_transaction(
    place: Place, journal: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append("placed", 1)
    other: Any = place.open(durability="process")
    fence = other.fence()
    with journal.transaction() as tx:
        monkeypatch.setattr(holders, "is_alive", lambda owner: False)  # its process ends without a word
        with pytest.raises(Conflict):
            tx.append(topic, "placed", 2, key="k", expect=7)
        tx.append(topic, "placed", 3)
    assert payloads(topic.read()) == [1, 3] and fence_rows(journal) == 0
    fence.cancel()


# ── reactors ─────────────────────────────────────────────────────────────────────────────────────────────────────────
class SeenEvent(threading.Event):
    """An event of which can be told that somebody has waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


@on("sqlite")
def test_a_reactor_rests_while_a_fence_of_another_process_is_open(
    place: Place, journal: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append("in", 1)
    run, tries = journal._core.writer.run, [0]

    def counted(request: Any) -> Any:
        tries[0] += 1
        return run(request)

    monkeypatch.setattr(journal._core.writer, "run", counted)
    fence = place.open(durability="process").fence()  # of another journal object, as one of another process is
    reactor: Any = topic.react("echo", lambda event: Draft("echo", event.payload, topic="echoes"))
    resting = reactor._stopping = SeenEvent()
    with reactor:
        eventually(lambda: resting.waits >= 2 or tries[0] > 100)
        assert tries[0] <= resting.waits + 1
        fence.commit()
        eventually(lambda: topic.cursor("echo") == 1)
    assert payloads(journal.topic("echoes").read()) == [1]


@on("memory", "sqlite")
@pytest.mark.parametrize("look", [1, 2, 3, 4])
def test_a_reactor_beside_another_of_its_name_and_a_compaction_goes_on(
    journal: Any, topic: Topic, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    topic.append_many([Draft("in", number) for number in range(1, 11)])
    topic.commit("echo", 2)
    read, looks = journal._engine.read, [0]

    def reading() -> Any:
        if threading.current_thread() is main:
            looks[0] += 1
            if looks[0] == look:  # the other one has reacted, and what it is done with goes
                topic.commit("echo", 6)
                topic.compact(6)
        return read()

    def handler(event: Event) -> None:
        handled.append(event.seq)
        if event.seq == 10:
            reactor.stop()

    handled: list[int] = []
    main = threading.current_thread()
    reactor: Any = topic.react("echo", handler, batch=2, restarts=0)
    monkeypatch.setattr(journal._engine, "read", reading)
    reactor.run()
    monkeypatch.undo()
    assert topic.cursor("echo") == 10 and handled[-4:] == [7, 8, 9, 10]
