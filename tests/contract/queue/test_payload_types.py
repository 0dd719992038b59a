"""Handles with a type for payloads: what is written must fit, what is read is a value, a misfit is poison here only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest
from journals import DEADLINE, eventually

import penstock
from penstock import Draft, Event, Journal, Queue, Topic
from penstock.core.schema import forget
from penstock.errors import ConfigError, PoisonMessage

pydantic = pytest.importorskip("pydantic")


class Email(msgspec.Struct):
    to: str
    copies: int = 1


@dataclass
class Order:
    total: int
    items: list[str]


class Reading(TypedDict):
    degrees: float


class Person(pydantic.BaseModel):  # type: ignore[name-defined,misc]
    name: str
    age: int


class Placed(msgspec.Struct):
    total: int


class Paid(msgspec.Struct):
    by: str


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    penstock.upcast("placed", version=1)(lambda payload: {"total": payload["sum"]})
    penstock.event("placed", version=2)(Placed)
    penstock.event("paid")(Paid)
    yield
    forget("placed")
    forget("paid")


FITTING: list[tuple[Any, Any, Any]] = [
    (Email, Email("ada"), {"to": "ada", "copies": 1}),
    (Order, Order(3, ["a"]), {"total": 3, "items": ["a"]}),
    (Reading, {"degrees": 20.5}, {"degrees": 20.5}),
    (Person, Person(name="ada", age=36), {"name": "ada", "age": 36}),
    (list[int], [1, 2], [1, 2]),
    (bytes, b"\xff", b"\xff"),
]


@pytest.mark.parametrize(("type", "value", "stored"), FITTING, ids=lambda one: getattr(one, "__name__", None))
def test_values_come_back_as_they_were_written(journal: Journal, type: Any, value: Any, stored: Any) -> None:
    topic: Topic[Any] = journal.topic("t", payload=type)
    queue: Queue[Any] = journal.queue("q", payload=type)
    topic.append("k", value)
    topic.append("k", stored)
    topic.submit_many([Draft("k", value)]).result()
    assert [event.payload for event in topic.read()] == [value] * 3
    assert [event.payload for event in journal.topic("t").read()] == [stored] * 3
    queue.push(value)
    queue.submit(stored).result()
    queue.push_many([value, Draft("k", stored)])
    assert [event.payload for event in queue.peek(9)] == [value] * 4 == [event.payload for event in queue]
    assert [one.payload for one in queue.take_many(9)] == [value] * 4


@pytest.mark.parametrize(
    ("type", "bad", "field"),
    [
        (Email, {"to": 3}, r"\$\.to"),
        (Email, {"copies": 3}, "`to`"),
        (Email, Email("ada", "many"), r"\$\.copies"),  # type: ignore[arg-type]
        (Email, None, "null"),
        (Order, Order(3, [7]), r"\$\.items\[0\]"),  # type: ignore[list-item]
        (Reading, {"degrees": "hot"}, r"\$\.degrees"),
        (Person, {"name": "ada", "age": "old"}, "age"),
        (Email, {1, 2}, "array"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(journal: Journal, type: Any, bad: Any, field: str) -> None:
    topic: Topic[Any] = journal.topic("t", payload=type)
    queue: Queue[Any] = journal.queue("q", payload=type)
    attempts = [
        lambda: topic.append("k", bad),
        lambda: topic.append_many([Draft("k", bad)]),
        lambda: topic.submit("k", bad),
        lambda: queue.push(bad),
        lambda: queue.push_many([bad]),
        lambda: queue.submit(bad),
        lambda: queue.every(60, bad, name="hourly"),
    ]
    for attempt in attempts:
        with pytest.raises(ConfigError, match=field):
            attempt()
    assert topic.latest == 0 and len(queue) == 0


def test_a_stored_misfit_is_poison_for_this_reader_only(journal: Journal) -> None:
    plain, typed = journal.topic("t"), journal.topic("t", payload=Email)
    for payload in ({"to": "ada"}, {"to": 7}, {"to": "bob"}):
        plain.append("k", payload)
    found = []
    for event in typed.read():
        try:
            found.append(event.payload.to)
        except PoisonMessage as error:
            assert "event 2 of topic 't'" in str(error) and "$.to" in str(error)
            found.append(event.raw.decode())
    assert found == ["ada", '{"to":7}', "bob"]
    assert [event.payload["to"] for event in plain.read()] == ["ada", 7, "bob"]


def test_a_follower_a_worker_and_an_index_give_values(journal: Journal) -> None:
    topic = journal.topic("t", payload=Email)
    receipt = topic.append("k", Email("ada"))
    with topic.subscribe() as subscription:
        event = subscription.next(DEADLINE)
        assert event is not None and event.payload == Email("ada")
    first, again = topic.get(1), topic.find(receipt.id)
    assert first is not None and again is not None and first.payload == again.payload == Email("ada") and first == again
    handled: list[str] = []

    def handle(events: list[Event[Email]]) -> None:
        handled.extend(event.payload.to for event in events)

    with topic.worker("c", handle):
        eventually(lambda: handled == ["ada"])


def test_a_misfit_fails_in_the_handler_and_becomes_a_dead_letter(journal: Journal) -> None:
    emails = journal.queue("mail", payload=Email, dead_letter="mail.dead", max_attempts=2, retry=0)
    journal.queue("mail").push_many([{"to": "ada"}, {"to": 7}, {"to": "bob"}])
    handled: list[str] = []

    def handle(delivery: penstock.Delivery[Email]) -> None:
        handled.append(delivery.payload.to)

    with emails.worker(handle):
        eventually(lambda: len(emails) == 0 and len(journal.queue("mail.dead")) == 1)
    (letter,) = emails.dead_letters()
    assert sorted(handled) == ["ada", "bob"]
    assert letter.reason is not None and "does not fit Email" in str(letter.error) and "$.to" in str(letter.error)


def test_asynchronous_handlers_and_batches_get_values(journal: Journal) -> None:
    emails = journal.queue("mail", payload=Email)
    handled: list[Email] = []

    async def handle(delivery: penstock.Delivery[Email]) -> None:
        handled.append(delivery.payload)

    async def main() -> None:
        async with emails.worker(handle):
            while len(handled) < 2:
                await asyncio.sleep(0.01)

    emails.push_many([Email("ada"), Email("bob")])
    asyncio.run(main())
    emails.push_many([Email("eve"), Email("joe")])
    with emails.worker(lambda batch: handled.extend(one.payload for one in batch), batch=2):
        eventually(lambda: len(handled) == 4)
    assert sorted(one.to for one in handled) == ["ada", "bob", "eve", "joe"]


def test_declared_events_keep_their_kinds_and_versions(journal: Journal) -> None:
    topic: Topic[Placed | Paid] = journal.topic("t", payload=Placed | Paid)
    topic.append(Placed(1))
    topic.append("placed", {"total": 2})  # type: ignore[arg-type]
    topic.append("paid", Paid("ada"))
    journal.topic("t").append("placed", {"sum": 3})
    journal.topic("t").append("other", {})
    *known, other = topic.read()
    assert [event.payload for event in known] == [Placed(1), Placed(2), Paid("ada"), Placed(3)]
    with pytest.raises(PoisonMessage, match="event 5 of topic 't'"):
        print(other.payload)
    for kind, payload in (("paid", Placed(1)), ("paid", {"by": 1}), ("other", {"by": "ada"})):
        with pytest.raises(ConfigError):
            topic.append(kind, payload)  # type: ignore[arg-type]
    queue = journal.queue("q", payload=Placed)
    queue.push({"total": 4})  # type: ignore[arg-type]
    queue.push(Placed(5))
    taken = queue.take_many(2)
    assert [(one.kind, one.payload) for one in taken] == [("placed", Placed(4)), ("placed", Placed(5))]
    assert queue.ack_many(taken) == 2


def test_what_cannot_be_a_type_is_refused(journal: Journal) -> None:
    for bad in (3, "Email", journal, type("Plain", (), {})):
        with pytest.raises(ConfigError):
            journal.topic("t", payload=bad)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            journal.queue("q", payload=bad)  # type: ignore[arg-type]


def test_an_outbox_checks_what_it_stages(journal: Journal) -> None:
    topic = journal.topic("t", payload=Email)
    with pytest.raises(ConfigError, match=r"\$\.to"), journal.outbox() as outbox:
        outbox.stage(topic, "k", Email("ada"))
        outbox.stage(topic, "k", {"to": 1})
    assert topic.latest == 0


def test_a_transaction_checks_and_gives_values(journal: Journal) -> None:
    topic, queue = journal.topic("t", payload=Email), journal.queue("q", payload=Email)
    with pytest.raises(ConfigError, match=r"\$\.to"), journal.transaction() as tx:
        tx.append(topic, "k", {"to": 1})
    with pytest.raises(ConfigError, match=r"\$\.to"), journal.transaction() as tx:
        tx.push(queue, {"to": 1})
    with journal.transaction() as tx:
        tx.append(topic, "k", Email("ada"))
        tx.append_many(topic, [Draft("k", {"to": "bob"})])
        tx.push_many(queue, [Email("eve")])
        assert [event.payload.to for event in tx.read(topic)] == ["ada", "bob"]
        taken = tx.take(queue)
        assert taken is not None and taken.payload == Email("eve")
        tx.ack(taken)
    assert len(queue) == 0 and topic.latest == 2
