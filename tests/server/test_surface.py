"""One surface over two homes: what a program may hold is the same class here and at a server."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.core.protocol.operation import PAGE_EVENTS
from penstock.errors import ConfigError
from penstock.remote.backend import RemoteJournal
from server.serving import Served
from waiting import eventually


@pytest.fixture
def remote(served: Served) -> Iterator[penstock.Journal]:
    with penstock.open(served.url) as opened:
        yield opened


@pytest.mark.parametrize("home", ["journal", "remote"])
def test_what_is_held_is_of_the_public_classes_in_both_homes(home: str, request: pytest.FixtureRequest) -> None:
    journal: penstock.Journal = request.getfixturevalue(home)
    topic, queue = journal.topic("orders"), journal.queue("emails")
    queue.push({"to": "ada"})
    delivery = queue.take(lease=30)
    with topic.subscribe() as subscription, journal.outbox() as outbox:
        assert isinstance(subscription, penstock.Subscription) and isinstance(outbox, penstock.Outbox)
    assert isinstance(journal, penstock.Journal)
    assert isinstance(topic, penstock.Topic) and isinstance(queue, penstock.Queue)
    assert isinstance(delivery, penstock.Delivery) and delivery.queue.name == "emails" and delivery.poison is None
    assert topic.journal is journal and queue.journal is journal


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "transaction": (),
    "fence": (),
    "mark": ("run",),
    "backup": ("copy",),
    "export": ("copy",),
    "import_": ("copy",),
    "entities": (),
    "reindex": (),
    "watch": (penstock.Projection, "k"),
    "verify": (),
    "check": (None,),
    "react": ("c", print),
    "gate": (print,),
    "ungate": (print,),
}
"""What only a journal in this process can do, and how it is called."""


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_what_a_server_does_not_offer_is_refused_with_a_sentence(remote: penstock.Journal, name: str) -> None:
    held = remote if hasattr(penstock.Journal, name) else remote.topic("orders")
    with pytest.raises(ConfigError, match="not served over http: "):
        getattr(held, name)(*ARGUMENTS[name])


def test_a_worker_over_http_takes_ahead_and_has_middleware(remote: penstock.Journal) -> None:
    class Seen(penstock.Middleware):
        def after(self, delivery: penstock.Delivery, result: object) -> None:
            seen.append(result)

    seen: list[object] = []
    queue = remote.queue("emails")
    queue.push_many(range(5))
    with queue.worker(lambda delivery: delivery.payload, ahead=3, middleware=[Seen()]):
        eventually(lambda: len(seen) == 5)
    assert seen == [0, 1, 2, 3, 4] and len(queue) == 0


def test_a_correlation_spans_topics_in_both_homes(journal: penstock.Journal, remote: penstock.Journal) -> None:
    first = journal.topic("orders").append("placed", {"n": 1})
    journal.topic("payments").append("paid", {"n": 1}, cause=first)
    for home in (journal, remote):
        found = [(event.topic, event.kind) for event in home.topic("orders").correlated(first.id)]
        assert found == [("orders", "placed"), ("payments", "paid")], home


def test_causes_and_effects_of_other_correlations_are_found_in_both_homes(
    journal: penstock.Journal, remote: penstock.Journal
) -> None:
    first = journal.topic("orders").append("placed", correlation="shop")
    second = journal.topic("payments").append("paid", cause=first, correlation="bank")
    for home in (journal, remote):
        assert [event.id for event in home.topic("orders").effects(first)] == [second.id], home
        assert [event.id for event in home.topic("orders").ancestors(second)] == [second.id, first.id], home
        (event,) = home.topic("payments").read()
        assert [one.id for one in home.topic("orders").ancestors(event)] == [second.id, first.id], home
        assert list(home.topic("orders").ancestors("nobody")) == list(home.topic("orders").effects("nobody")) == []


def test_a_correlation_that_fills_several_pages_is_whole_over_http(
    journal: penstock.Journal, remote: penstock.Journal
) -> None:
    topic = journal.topic("orders")
    first = topic.append("placed")
    topic.append_many([penstock.Draft("noted", n, cause=first.id) for n in range(2 * PAGE_EVENTS)])
    for home in (journal, remote):
        assert [event.seq for event in home.correlated(first.id)] == list(range(1, 2 * PAGE_EVENTS + 2)), home
        assert [event.seq for event in home.topic("orders").effects(first)] == list(range(2, 2 * PAGE_EVENTS + 2))


def test_an_event_from_afar_can_be_pickled(journal: penstock.Journal, remote: penstock.Journal) -> None:
    journal.topic("plain").append("entry")
    (plain,) = remote.topic("plain").read()
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_conditions_choose_events_in_both_homes(journal: penstock.Journal, remote: penstock.Journal) -> None:
    for number in range(10):
        journal.topic("orders").append("placed", {"n": number})
    for home in (journal, remote):
        found = [event.payload["n"] for event in home.topic("orders").read(limit=3, where="payload.n > 4")]
        assert found == [5, 6, 7], home


def test_stats_are_there_in_both_homes(journal: penstock.Journal, remote: penstock.Journal) -> None:
    journal.queue("emails").push({"n": 1})
    for home in (journal, remote):
        sample = home.stats()
        assert sample.topics["emails"].latest == 1 and sample.queues["emails"][0].ready == 1


def test_a_store_is_asked_for_where_one_is_needed(remote: penstock.Journal) -> None:
    from penstock.api import local, open_local
    from penstock.server import app

    assert isinstance(remote, RemoteJournal)
    with pytest.raises(ConfigError, match="served"):
        app(remote)
    with pytest.raises(ConfigError, match="sealing a topic needs the store itself"):
        local(remote, "sealing a topic")
    with pytest.raises(ConfigError, match="is a served journal"):
        open_local("http://127.0.0.1:1")
