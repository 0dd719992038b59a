"""Dropping topics over HTTP: who may, and what is answered."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import ReadOnly, TopicInUse, UnknownTopic
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
        assert remote.topic("orders").append("placed", 2).seq == 3
        assert len(remote.queue("orders")) == 1, "a queue made again hands out what its topic holds"
    with penstock.open(served.url, read_only=True) as reader, pytest.raises(ReadOnly):
        reader.drop_topic("orders")


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
