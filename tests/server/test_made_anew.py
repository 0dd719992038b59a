"""Topics dropped and made anew between two looks of the server or of a client: nobody gets another topic's events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress

import pytest

import penstock
from penstock.engine.contract import Snapshot
from penstock.errors import StorageError, TopicDropped
from penstock.local.journal import LocalJournal
from penstock.local.topic import LocalTopic
from penstock.protocol.topics import CursorDocument
from penstock.remote import reading as remote_reading
from penstock.remote.topic import RemoteTopic
from penstock.server.api import reading
from server.serving import Served


class MadeAnew:
    """Drops a topic and makes it anew just before the n-th time the server looks at the journal."""

    def __init__(self, journal: penstock.Journal, patch: pytest.MonkeyPatch, look: int) -> None:
        assert isinstance(journal, LocalJournal)
        self.journal = journal
        self.topic = journal.topic("orders")
        self.lock = threading.Lock()
        self.done = False
        self._left = look
        self._test = threading.get_ident()
        self._read = journal._core.engine.read
        patch.setattr(journal._core.engine, "read", self._look)

    def _look(self) -> AbstractContextManager[Snapshot]:
        housekeeping = threading.current_thread().name.startswith("penstock-")
        if threading.get_ident() != self._test and not housekeeping and not self.done:
            self._left -= 1
            if self._left == 0:
                with self.lock:
                    self.done = True
                    self.journal.drop_topic("orders")
                    self.topic.append_many([penstock.Draft("made anew", n) for n in range(100)])
        return self._read()

    def append(self) -> bool:
        """Appends an event to the topic as it was; False when that is gone."""
        with self.lock:
            if not self.done:
                self.topic.append("placed", 1)
            return not self.done


@pytest.mark.parametrize("look", range(1, 9))
def test_no_event_of_a_topic_made_anew_between_two_looks_is_sent(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    journal.topic("orders").append_many([penstock.Draft("placed", n) for n in range(3)])
    with penstock.open(served.url) as remote, remote.topic("orders").subscribe(after=1) as follower:
        assert [follower.next(30).payload for _ in range(2)] == [1, 2]  # type: ignore[union-attr]
        anew = MadeAnew(journal, monkeypatch, look)
        while anew.append():
            pass
        with pytest.raises(TopicDropped):
            while (event := follower.next(30)) is not None:
                assert event.kind == "placed"


@pytest.mark.parametrize("look", range(1, 6))
def test_what_a_follower_catches_up_with_is_of_one_topic(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    journal.topic("orders").append_many([penstock.Draft("placed", n) for n in range(3)])
    anew = MadeAnew(journal, monkeypatch, look)
    kinds = []
    with penstock.open(served.url) as remote, suppress(TopicDropped):
        follower = remote.topic("orders").subscribe(after=1)
        while len(kinds) < 99 and (event := follower.next(30)) is not None:
            kinds.append(event.kind)
    assert anew.done
    assert kinds in (["made anew"] * 99, ["placed"] * 2, [])


def _read(topic: penstock.Topic, how: str) -> Iterator[str]:
    if how == "Arrow":
        for batch in topic.read_arrow(batch_rows=1000):
            yield from batch.column("kind").to_pylist()
    else:
        yield from (event.kind for event in topic.read(reverse=how == "pages"))


@pytest.mark.parametrize("how", ["pages", "lines", "Arrow"])
@pytest.mark.parametrize("look", range(1, 12))
def test_a_read_of_several_pieces_shows_events_of_one_topic(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, how: str, look: int
) -> None:
    monkeypatch.setattr(reading, "STREAM_EVENTS", 10)
    monkeypatch.setattr(reading, "STREAM_ROWS", 10)
    monkeypatch.setattr(remote_reading, "PAGE", 10)
    topic = journal.topic("orders")
    topic.append_many([penstock.Draft("placed", n) for n in range(60)])
    anew = MadeAnew(journal, monkeypatch, look)
    kinds = []
    with penstock.open(served.url) as remote:
        try:
            kinds.extend(_read(remote.topic("orders"), how))
        except (TopicDropped, StorageError):  # an Arrow stream can only break off
            assert "made anew" not in kinds
        else:
            assert kinds in (["placed"] * 60, ["made anew"] * 60, ["made anew"] * 100)
    assert anew.done


def test_the_next_page_of_cloudevents_insists_on_its_topic(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("orders")
    topic.append_many([penstock.Draft("placed", n) for n in range(3)])
    accept = {"Accept": "application/cloudevents-batch+json"}
    first = served.ask("GET", "/v1/topics/orders/events?limit=2", headers=accept)
    target = first.headers["Link"].split(">")[0].removeprefix("<")
    assert len(served.ask("GET", target, headers=accept).json) == 1
    journal.drop_topic("orders")
    topic.append_many([penstock.Draft("placed", n) for n in range(3)])
    answer = served.ask("GET", target, headers=accept)
    assert (answer.status, answer.json["error"]) == (410, "TopicDropped")


def anew_now(journal: penstock.Journal, events: int = 100) -> None:
    journal.drop_topic("orders", force=True)
    journal.topic("orders").append_many([penstock.Draft("made anew", n) for n in range(events)])


@pytest.mark.parametrize("to", [{"to": "end"}, {"time": "2999-01-01T00:00:00Z"}])
def test_no_cursor_moves_to_where_another_topic_ended(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch, to: dict[str, str]
) -> None:
    journal.topic("orders").append_many([penstock.Draft("placed", n) for n in range(60)])
    move = LocalTopic._move_cursor

    def moved(
        topic: LocalTopic, consumer: str, seq: int, *, back: bool, number: int | None = None
    ) -> None:  # found already
        monkeypatch.undo()
        anew_now(journal)
        move(topic, consumer, seq, back=back, number=number)

    monkeypatch.setattr(LocalTopic, "_move_cursor", moved)
    path = "/v1/topics/orders/cursors/billing"
    answer = served.ask("PUT", path, {**to, "seek": True})
    assert (answer.status, answer.json["error"]) == (410, "TopicDropped")
    assert journal.topic("orders").cursor("billing") is None
    assert served.ask("PUT", path, to).json["position"] == 100


def test_a_position_is_found_in_the_topic_that_is_meant(served: Served, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", 1)
    number = served.ask("GET", "/v1/topics/orders").json["number"]
    path = f"/v1/topics/orders/position?time=2999-01-01T00:00:00Z&number={number}"
    assert served.ask("GET", path).json == {"position": 1}
    anew_now(journal)
    answer = served.ask("GET", path)
    assert (answer.status, answer.json["error"]) == (410, "TopicDropped")


def test_a_position_is_committed_to_the_topic_it_is_of(served: Served, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", 1)
    path = "/v1/topics/orders/cursors/billing"
    number = served.ask("GET", path).json["number"]
    change = {"position": 1, "number": number}
    assert served.ask("PUT", path, change).json["number"] == number
    anew_now(journal)
    answer = served.ask("PUT", path, change)
    assert (answer.status, answer.json["error"]) == (410, "TopicDropped")
    assert journal.topic("orders").cursors() == {}


def test_a_worker_from_afar_begins_at_the_beginning_of_a_topic_made_before_it_subscribed(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.topic("orders").append_many([penstock.Draft("placed", n) for n in range(50)])
    journal.topic("orders").commit("billing", 50)
    ask = RemoteTopic._cursor

    def asked(topic: RemoteTopic, consumer: str) -> CursorDocument:
        found = ask(topic, consumer)
        monkeypatch.undo()
        anew_now(journal)
        return found

    monkeypatch.setattr(RemoteTopic, "_cursor", asked)
    got: list[tuple[str, int]] = []
    enough = threading.Event()

    def handle(events: list[penstock.Event]) -> None:
        got.extend((event.kind, event.seq) for event in events)
        if got[-1][1] == 100:
            enough.set()

    with penstock.open(served.url) as remote, remote.topic("orders").worker("billing", handle):
        assert enough.wait(60)
    assert got == [("made anew", n) for n in range(1, 101)]


@pytest.mark.parametrize("kind", [None, "made anew"])
def test_a_batch_under_way_passes_nothing_of_the_topic_made_anew(
    served: Served, journal: penstock.Journal, kind: str | None
) -> None:
    topic = journal.topic("orders")
    topic.append_many([penstock.Draft("made anew", n) for n in range(50)])
    got: list[int] = []
    begun, enough = threading.Event(), threading.Event()

    def handle(events: list[penstock.Event]) -> None:
        if not begun.is_set():
            begun.set()
            anew_now(journal)
            return
        got.extend(event.seq for event in events)
        if got[-1] == 100:
            enough.set()

    with penstock.open(served.url) as remote, remote.topic("orders").worker("billing", handle, kind=kind):
        assert enough.wait(60)
    assert got == list(range(1, 101))
    assert topic.cursor("billing") == 100


def test_a_handler_that_finds_a_topic_dropped_has_failed(served: Served, journal: penstock.Journal) -> None:
    """Only the worker's own topic is begun anew; what a handler raises is a failure, and counts as one."""
    journal.topic("orders").append("placed", 1)

    def handle(events: list[penstock.Event]) -> None:
        raise TopicDropped("another one")

    with penstock.open(served.url) as remote:
        worker = remote.topic("orders").worker("billing", handle, restarts=0)
        with pytest.raises(TopicDropped, match="another one"):
            worker.run()
    assert journal.topic("orders").cursor("billing") is None
