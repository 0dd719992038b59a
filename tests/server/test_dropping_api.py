"""Dropping topics over HTTP: who may, what is answered, and what those who follow from afar are told."""

from __future__ import annotations

from contextlib import closing

import pytest

import penstock
from penstock.errors import ReadOnly, TopicDropped, TopicInUse, UnknownTopic
from penstock.remote.subscription import RemoteSubscription
from server.serving import ADMIN, READ, WRITE, Served
from server.test_acts import do, question
from server.test_live import Stream


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
        assert isinstance(follower, RemoteSubscription) and follower.number == number
    journal.drop_topic("orders")
    topic.append_many([penstock.Draft("placed", n) for n in range(10)])
    answer = served.ask(
        "GET", f"/v1/topics/orders/live?after=1&number={number}", headers={"Accept": "text/event-stream"}
    )
    assert (answer.status, answer.json["error"]) == (410, "TopicDropped")
    assert "not the one that was followed" in answer.json["detail"]


def test_one_who_comes_back_after_a_drop_is_told(served: Served, journal: penstock.Journal) -> None:
    journal.topic("orders").append("placed", 1)
    late = {"Last-Event-ID": "7"}
    answer = served.ask("GET", "/v1/topics/orders/live", headers={"Accept": "text/event-stream", **late})
    assert (answer.status, answer.json["error"]) == (410, "TopicDropped")


def test_an_event_source_that_comes_back_after_a_drop_is_told(served: Served, journal: penstock.Journal) -> None:
    """A browser sends the last id it saw, and nothing else."""
    topic = journal.topic("orders")
    topic.append_many([penstock.Draft("placed", n) for n in range(3)])
    with closing(Stream(served, "/v1/topics/orders/live")) as stream:
        stream.take(2)
        assert stream.last_id is not None
        back = {"Last-Event-ID": stream.last_id}
    with closing(Stream(served, "/v1/topics/orders/live", back)) as stream:
        assert stream.take(1)[0]["seq"] == 3
    journal.drop_topic("orders")
    topic.append_many([penstock.Draft("placed", n) for n in range(10)])
    answer = served.ask("GET", "/v1/topics/orders/live", headers=back)
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
