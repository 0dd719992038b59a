"""Dropping topics over HTTP: who may, what is answered, and what those who follow from afar are told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress

import pytest

import penstock
from penstock.engine.contract import Snapshot
from penstock.errors import ReadOnly, StorageError, TopicDropped, TopicInUse, UnknownTopic
from penstock.local.journal import LocalJournal
from penstock.remote import reading as remote_reading
from penstock.remote.subscription import RemoteSubscription
from penstock.server.api import reading
from server.serving import ADMIN, READ, WRITE, Served
from server.test_acts import do, question


def test_a_topic_is_dropped_and_what_stands_in_the_way_is_named(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("orders")
    topic.append("placed", 1)
    topic.commit("billing", 1)
    journal.queue("orders")
    refused = served.ask("DELETE", "/v1/topics/orders")
    assert (refused.status, refused.json["error"]) == (409, "TopicInUse")
    assert "'billing'" in refused.json["detail"] and "the queue 'orders'" in refused.json["detail"]
    answer = served.ask("DELETE", "/v1/topics/orders?force=true")
    assert (answer.status, answer.json) == (200, {"topic": "orders", "events": 1, "files": []})
    assert journal.topics() == journal.queues() == []
    gone = served.ask("DELETE", "/v1/topics/orders")
    assert (gone.status, gone.json["error"]) == (404, "UnknownTopic")


def test_only_admins_drop_topics(guarded: Served, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", 1)
    for token in (READ, WRITE):
        assert guarded.ask("DELETE", "/v1/topics/orders", token=token).status == 403
    assert guarded.ask("DELETE", "/v1/topics/orders", token=ADMIN).status == 200


def test_a_client_drops_topics_as_a_journal_does(served: Served, journal: penstock.Journal) -> None:
    with penstock.open(served.url) as remote:
        remote.topic("orders").append("placed", 1)
        remote.queue("orders").push("x")
        with pytest.raises(TopicInUse, match="force=True"):
            remote.drop_topic("orders")
        assert remote.drop_topic("orders", force=True) == penstock.DropReport("orders", 2)
        with pytest.raises(UnknownTopic):
            remote.drop_topic("orders")
        assert remote.topic("orders").append("placed", 2).seq == 1
        assert len(remote.queue("orders")) == 1, "a queue made again hands out what its topic holds"
    with penstock.open(served.url, read_only=True) as reader, pytest.raises(ReadOnly):
        reader.drop_topic("orders")


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_follower_from_afar_is_told(served: Served, journal: penstock.Journal, made_anew: bool) -> None:
    topic = journal.topic("orders")
    topic.append_many([penstock.Draft("placed", n) for n in range(3)])
    with penstock.open(served.url) as remote, remote.topic("orders").subscribe(after=1) as follower:
        assert [follower.next(30).payload for _ in range(2)] == [1, 2]  # type: ignore[union-attr]
        journal.drop_topic("orders")
        if made_anew:
            topic.append_many([penstock.Draft("placed", n) for n in range(10)])
        with pytest.raises(TopicDropped):
            follower.next(30)
        with remote.topic("orders").subscribe() as again:
            topic.append("placed", "new")
            first = again.next(30)
            assert first is not None and first.payload == (0 if made_anew else "new")


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
        if threading.get_ident() != self._test and not self.done:
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


def test_one_who_only_asks_is_told(served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteSubscription, "_start", lambda self: None)  # its stream has not connected yet
    topic = journal.topic("orders")
    with penstock.open(served.url) as remote, remote.topic("orders").subscribe() as follower:
        assert follower.next(0) is None
        topic.append("placed", 1)
        assert follower.next(0) is not None
        journal.drop_topic("orders")
        assert follower.next(0) is None
        topic.append_many([penstock.Draft("placed", n) for n in range(10)])
        with pytest.raises(TopicDropped):
            follower.next(0)


@pytest.mark.parametrize("timeout", [0, 30])
def test_a_follower_that_had_not_connected_is_told(served: Served, journal: penstock.Journal, timeout: float) -> None:
    topic = journal.topic("orders")
    topic.append("placed", 1)
    with penstock.open(served.url) as remote, remote.topic("orders").subscribe("latest") as follower:
        journal.drop_topic("orders")
        topic.append_many([penstock.Draft("placed", n) for n in range(10)])
        with pytest.raises(TopicDropped):
            follower.next(timeout)


def test_a_stream_tells_which_topic_it_follows_and_goes_on_with_no_other(
    served: Served, journal: penstock.Journal
) -> None:
    topic = journal.topic("orders")
    assert served.ask("GET", "/v1/topics/orders").json["number"] is None
    topic.append("placed", 1)
    number = served.ask("GET", "/v1/topics/orders").json["number"]
    with penstock.open(served.url) as remote, remote.topic("orders").subscribe() as follower:
        assert follower.next(30) is not None
        assert isinstance(follower, RemoteSubscription) and follower._number == number
    journal.drop_topic("orders")
    topic.append_many([penstock.Draft("placed", n) for n in range(10)])
    answer = served.ask(
        "GET", f"/v1/topics/orders/live?after=1&number={number}", headers={"Accept": "text/event-stream"}
    )
    assert (answer.status, answer.json["error"]) == (410, "TopicDropped")
    assert "not the one that was followed" in answer.json["detail"]


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


def test_one_who_comes_back_after_a_drop_is_told(served: Served, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", 1)
    late = {"Last-Event-ID": "7"}
    answer = served.ask("GET", "/v1/topics/orders/live", headers={"Accept": "text/event-stream", **late})
    assert (answer.status, answer.json["error"]) == (410, "TopicDropped")


def test_the_console_drops_a_topic_after_asking(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("orders")
    topic.append_many([penstock.Draft("placed", n) for n in range(3)])
    topic.commit("billing", 1)
    assert "Drop the topic orders with 3 events?" in question(served, "drop-topic", topic="orders")
    assert "1 consumer" in question(served, "drop-topic", topic="orders", force="yes")
    refused = served.post("/acts/drop-topic", {"fields": {"topic": "orders"}})
    assert refused.status == 409 and "'billing'" in refused.json["detail"]
    assert do(served, "drop-topic", topic="orders", force="yes") == "the topic orders was dropped with 3 events"
    assert "orders" not in journal.topics()
