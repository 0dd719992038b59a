"""A change that meets a takeover, at every point of its commit: `Fenced` only where nothing of it can be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from object_homes import Home

from penstock import Delivery, Draft, Journal
from penstock.core.local.backend import LocalJournal
from penstock.engines.slatedb import engine as engine_module
from penstock.engines.slatedb.engine import SlatedbEngine
from penstock.errors import Fenced, OutcomeUnknown
from waiting import DEADLINE


def _transact(journal: Journal, _: Delivery) -> None:
    with journal.transaction() as tx:
        tx.append("t", "k", "together")
        tx.push("q", "together")


CHANGES: dict[str, Callable[[Journal, Delivery], object]] = {
    "append": lambda journal, taken: journal.topic("t").append("k", 1),
    "append_many": lambda journal, taken: journal.topic("t").append_many([Draft("k", 1), Draft("k", 2)]),
    "submit": lambda journal, taken: journal.topic("t").submit("k", 1).result(DEADLINE),
    "transaction": _transact,
    "push": lambda journal, taken: journal.queue("q").push("more"),
    "ack": lambda journal, taken: taken.ack(),
    "nack": lambda journal, taken: taken.nack(),
    "take": lambda journal, taken: journal.queue("q").take(),
    "configure": lambda journal, taken: journal.topic("t").configure(max_events=5),
}


def seen(journal: Journal) -> object:
    """What of the changes shows."""
    topic, queue = journal.topic("t"), journal.queue("q")
    stats = queue.stats()
    return topic.latest, topic.settings, len(queue), stats.ready, stats.in_flight


class Meeting:
    """A writer that another one replaces at a point of its next commit."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.first = home.open()
        self.first.topic("t").append("k", 0)
        queue = self.first.queue("q")
        queue.push_many(["a", "b"])
        taken = queue.take()
        assert taken is not None
        self.taken = taken
        self.before = seen(self.first)
        self.second: LocalJournal | None = None

    def take_over(self) -> LocalJournal:
        """Opens the second writer, and has the first one's lease find out."""
        if self.second is None:
            self.second = self.home.open(takeover=True)
            engine = self.first._engine
            assert isinstance(engine, SlatedbEngine) and engine._lease is not None
            engine._lease.beat()
            assert engine._lease.lost
        return self.second

    def around(self, monkeypatch: pytest.MonkeyPatch, step: str, *, before: bool) -> None:
        """Has the takeover happen before or after a step of the next commit."""
        real: Callable[..., Any] = getattr(engine_module, step)

        def met(*given: Any) -> Any:
            if before:
                self.take_over()
                return real(*given)
            found = real(*given)
            self.take_over()
            return found

        monkeypatch.setattr(engine_module, step, met)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_was_stored_before_its_writer_found_out_is_not_said_to_be_refused(
    folder: Home, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    meeting = Meeting(folder)
    meeting.around(monkeypatch, "flush_log", before=False)
    with pytest.raises(OutcomeUnknown, match=r"not known.*was opened for writing elsewhere") as caught:
        CHANGES[change](meeting.first, meeting.taken)
    assert not caught.value.retryable
    assert seen(meeting.take_over()) != meeting.before, "it is kept"
    with pytest.raises(Fenced):
        meeting.first.topic("t").append("k", "later")


@pytest.mark.parametrize("step", ["make_batch", "flush_log"])
@pytest.mark.parametrize("change", ["append", "transaction", "push", "ack"])
def test_a_change_that_was_handed_to_the_store_is_not_known_to_be_refused(
    folder: Home, monkeypatch: pytest.MonkeyPatch, change: str, step: str
) -> None:
    """SlateDB writes what it was given at any time, also before it finds out that it was replaced."""
    meeting = Meeting(folder)
    meeting.around(monkeypatch, step, before=True)
    with pytest.raises(OutcomeUnknown):
        CHANGES[change](meeting.first, meeting.taken)
    with pytest.raises(Fenced):
        meeting.first.topic("t").append("k", "later")


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_begins_after_its_writer_found_out_is_refused_and_not_kept(folder: Home, change: str) -> None:
    meeting = Meeting(folder)
    second = meeting.take_over()
    with pytest.raises(Fenced):
        CHANGES[change](meeting.first, meeting.taken)
    assert seen(second) == meeting.before


def test_what_a_caller_does_about_it_keeps_an_event_once(folder: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(folder)
    meeting.around(monkeypatch, "flush_log", before=False)
    with pytest.raises(OutcomeUnknown):
        meeting.first.topic("t").append("k", "paid", dedup="payment-7")
    again = meeting.take_over().topic("t").append("k", "paid", dedup="payment-7")
    assert (again.seq, again.duplicate) == (2, True)
