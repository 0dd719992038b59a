"""Gates: functions that see every draft before it is appended, whichever way it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from journals import payloads

import penstock
from penstock import Draft, Journal, Topic, event
from penstock.core import schema
from penstock.errors import Closed, ConfigError, Denied


@pytest.fixture
def journal() -> Iterator[Journal]:
    with penstock.open("memory:") as opened:
        yield opened


def no_negative_amounts(draft: Draft) -> None:
    if draft.payload["amount"] < 0:
        raise Denied(f"{draft.key} may not take {draft.payload['amount']}")


def test_a_gate_refuses_before_anything_is_written(topic: Topic) -> None:
    topic.gate(no_negative_amounts)
    topic.append("paid", {"amount": 1}, key="a")
    with pytest.raises(Denied, match="a may not take -1") as denied:
        topic.append("paid", {"amount": -1}, key="a")
    assert denied.value.reason == "a may not take -1"
    assert len(topic) == 1


def test_one_refusal_refuses_the_whole_batch(topic: Topic) -> None:
    topic.gate(no_negative_amounts)
    with pytest.raises(Denied):
        topic.append_many([Draft("paid", {"amount": 1}), Draft("paid", {"amount": -1}), Draft("paid", {"amount": 2})])
    assert len(topic) == 0


def test_every_way_in_passes_the_gate(journal: Journal, topic: Topic) -> None:
    topic.gate(no_negative_amounts)
    bad: dict[str, Any] = {"amount": -1}
    for attempt in (
        lambda: topic.append("paid", bad),
        lambda: topic.append_many([Draft("paid", bad)]),
        lambda: topic.submit("paid", bad),
        lambda: topic.submit_many([Draft("paid", bad)]),
        lambda: topic.try_submit("paid", bad),
        lambda: topic.try_submit_many([Draft("paid", bad)]),
    ):
        with pytest.raises(Denied):
            attempt()
    with pytest.raises(Denied), journal.transaction() as tx:
        tx.append("other", "x")
        tx.append(topic, "paid", bad)
    outbox = journal.outbox()
    outbox.stage("other", "x")
    outbox.stage(topic, "paid", {"amount": 1})
    outbox.stage(topic, "paid", bad)
    with pytest.raises(Denied):
        outbox.flush()
    with journal.fence() as fence:
        with pytest.raises(Denied):
            fence.submit(topic, "paid", bad)
        staged = fence.outbox()
        staged.stage(topic, "paid", bad)
        with pytest.raises(Denied):
            staged.submit()
    assert len(topic) == 0 and len(journal.topic("other")) == 0


def test_gates_are_for_their_topic_and_kinds_only(journal: Journal, topic: Topic) -> None:
    topic.gate(no_negative_amounts, kind=["paid", "refunded"])
    journal.topic("other").append("paid", {"amount": -1})
    topic.append("noted", {"amount": -1})
    with pytest.raises(Denied):
        topic.append("refunded", {"amount": -1})
    with pytest.raises(ConfigError, match="empty"):
        topic.gate(no_negative_amounts, kind=[])


def test_a_gate_may_read_the_store(topic: Topic) -> None:
    def once(draft: Draft) -> None:
        assert draft.key is not None
        if topic.position_of(draft.key):
            raise Denied(f"{draft.key} is there already")

    topic.gate(once)
    topic.append("made", key="a")
    with pytest.raises(Denied, match="a is there"):
        topic.append("made", key="a")
    topic.append("made", key="b")


def test_a_gate_sees_the_draft_as_it_will_be_stored_and_cannot_change_it(topic: Topic) -> None:
    @event("gate.paid", version=2)
    class Paid(msgspec.Struct):
        amount: int

    seen: list[Draft] = []

    def look(draft: Draft) -> None:
        seen.append(draft)
        draft.key = "spoiled"

    topic.gate(look, kind=Paid)
    try:
        topic.append(Paid(3), key="k")
    finally:
        schema.forget("gate.paid")
    (draft,) = seen
    assert (draft.kind, draft.payload, draft.topic) == ("gate.paid", {"amount": 3}, "orders")
    assert next(topic.read()).key == "k"


def test_nothing_a_gate_does_to_a_draft_is_stored(journal: Journal, topic: Topic) -> None:
    seen: list[object] = []

    def spoil(draft: Draft) -> None:
        seen.append(draft.payload)
        draft.payload["lines"].append("forged")
        draft.payload["total"] = 0
        if draft.headers is not None:
            draft.headers["who"] = "mallory"  # type: ignore[index]

    topic.gate(spoil)
    topic.gate(lambda draft: spoil(draft))
    payload, headers = {"total": 9, "lines": ["a"]}, {"who": "ada"}
    topic.append("paid", payload, headers=headers)
    topic.append("paid", payload)
    topic.append_many([Draft("paid", payload, headers=headers)])
    topic.submit("paid", payload).result()
    with journal.transaction() as tx:
        tx.append("orders", "paid", payload)
    with journal.outbox() as outbox:
        outbox.stage("orders", "paid", payload, headers=headers)
    with journal.fence() as fence:
        fence.submit("orders", "paid", payload)
    journal.queue("orders").push(payload)
    assert all(found == {"total": 9, "lines": ["a"]} for found in (event.payload for event in topic.read()))
    assert payload == {"total": 9, "lines": ["a"]} and headers == {"who": "ada"}
    assert {tuple(event.headers.items()) for event in topic.read()} == {(), (("who", "ada"),)}
    assert len(seen) == 16 and len(topic) == 8


def test_a_gate_that_fails_refuses_and_is_named(topic: Topic) -> None:
    topic.gate(no_negative_amounts, name="amounts")
    with pytest.raises(Denied, match=r"gate amounts of topic 'orders' failed: KeyError") as denied:
        topic.append("paid", {})
    assert isinstance(denied.value.__cause__, KeyError)
    assert len(topic) == 0


def test_an_error_of_the_journal_inside_a_gate_stays_what_it_is(topic: Topic) -> None:
    def closed(draft: Draft) -> None:
        raise Closed("the other journal is closed")

    topic.gate(closed)
    with pytest.raises(Closed) as error:
        topic.append("paid")
    assert "gate" in error.value.__notes__[0]


def test_refusals_can_be_recorded(journal: Journal, topic: Topic) -> None:
    topic.gate(no_negative_amounts, name="amounts", record="refusals")
    with pytest.raises(Denied):
        topic.append("paid", {"amount": -7}, key="a")
    with journal.transaction() as tx, pytest.raises(Denied):
        tx.append(topic, "paid", {"amount": -8}, key="a")
    journal.flush()
    first, second = journal.topic("refusals").read(key="a")
    assert (first.kind, second.kind) == ("append.denied", "append.denied")
    assert first.payload == {
        "topic": "orders",
        "gate": "amounts",
        "reason": "a may not take -7",
        "kind": "paid",
        "key": "a",
        "payload": {"amount": -7},
    }
    with pytest.raises(ConfigError, match="itself"):
        topic.gate(no_negative_amounts, record=topic)


def test_describe_lists_gates_and_they_can_be_taken_away(journal: Journal, topic: Topic) -> None:
    topic.gate(no_negative_amounts, kind="paid", record="refusals")
    topic.gate(print, name="shown")
    assert journal.describe().gates == {"orders": ["no_negative_amounts (paid) → refusals", "shown"]}
    assert topic.ungate(no_negative_amounts) and topic.ungate(print) and not topic.ungate(print)
    assert journal.describe().gates == {}
    topic.append("paid", {"amount": -1})
    assert payloads(topic.read()) == [{"amount": -1}]


def test_a_gate_is_a_function(topic: Topic) -> None:
    with pytest.raises(ConfigError, match="function"):
        topic.gate("no")  # type: ignore[arg-type]
