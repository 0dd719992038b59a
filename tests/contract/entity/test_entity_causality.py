"""Causality: causes, effects and correlations across topics, and their picture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from journals import on
from small_index import small_index

from penstock import Draft, Event, Journal, ManualClock, Receipt, Topic
from penstock.core.engine.contract import Snapshot
from penstock.core.journal.locating import topics_naming
from penstock.errors import ConfigError


@pytest.fixture(autouse=True)
def runs_after_a_few_events() -> Iterator[None]:
    with small_index():
        yield


def kinds(events: Iterator[Event]) -> list[str]:
    return [event.kind for event in events]


def story(journal: Journal) -> dict[str, str]:
    """placed → charged → (sent → delivered), (mailed); and something else."""
    placed = journal.topic("orders").append("placed", key="o1")
    charged = journal.topic("payments").append("charged", cause=placed)
    sent = journal.topic("shipping").append("sent", cause=charged)
    mailed = journal.topic("shipping").append("mailed", cause=charged)
    delivered = journal.topic("orders").append("delivered", key="o1", cause=sent)
    journal.topic("orders").append("else")
    return {one: receipt.id for one, receipt in zip(
        ("placed", "charged", "sent", "mailed", "delivered"), (placed, charged, sent, mailed, delivered), strict=True
    )}  # fmt: skip


@pytest.mark.parametrize("indexed", [False, True])
def test_a_walk_shows_nothing_past_its_topics_max_age(
    journal: Journal, topic: Topic, clock: ManualClock, indexed: bool
) -> None:
    """As for every other reader, also before housekeeping has removed it."""
    ids = story(journal)
    journal.topic("payments").configure(max_age=50)
    if indexed:
        for name in journal.topics():
            journal.topic(name).append_many([Draft("noise", number, key="n") for number in range(40)])
        journal.maintain()
    clock.advance(40)
    later = journal.topic("payments").append("refunded", cause=ids["placed"])
    assert kinds(topic.ancestors(ids["sent"])) == ["sent", "charged", "placed"]
    assert kinds(topic.effects(ids["placed"])) == ["charged", "refunded"]
    clock.advance(20)
    assert kinds(topic.ancestors(ids["sent"])) == ["sent"] and kinds(topic.ancestors(ids["charged"])) == []
    assert kinds(topic.effects(ids["placed"])) == ["refunded"]
    assert sorted(kinds(topic.correlated(ids["placed"]))) == ["delivered", "mailed", "placed", "refunded", "sent"]
    assert "charged" not in journal.graph(ids["placed"])
    journal.topic("orders").configure(max_age=10)
    assert kinds(topic.ancestors(later)) == ["refunded"]
    assert sorted(kinds(topic.correlated(ids["placed"]))) == ["mailed", "refunded", "sent"]


def test_events_receipts_and_ids_name_an_event(journal: Journal, topic: Topic) -> None:
    first = topic.append("first")
    topic.append("second", cause=first)
    stored = topic.get(2)
    assert stored is not None
    for named in (stored, stored.id):
        assert kinds(topic.ancestors(named)) == ["second", "first"]
    assert kinds(topic.effects(first)) == ["second"]
    assert kinds(topic.ancestors("no such id")) == []
    for wrong in (3, None, ""):
        with pytest.raises(ConfigError):
            list(topic.effects(wrong))  # type: ignore[arg-type]


def test_a_cause_outside_the_journal_ends_the_walk(topic: Topic) -> None:
    topic.append("webhook", cause="request-7")
    topic.append("handled", cause=topic.get(1))
    assert kinds(topic.ancestors(topic.get(2))) == ["handled", "webhook"]  # type: ignore[arg-type]
    assert kinds(topic.effects("request-7")) == ["webhook"]
    assert kinds(topic.correlated("request-7")) == ["webhook", "handled"]


def test_a_long_chain_is_walked_to_its_beginning(topic: Topic) -> None:
    receipt = topic.append("link", 0)
    for number in range(1, 120):
        receipt = topic.append("link", number, cause=receipt)
    assert [event.payload for event in topic.ancestors(receipt)] == list(range(119, -1, -1))


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@on("memory")
def test_a_graph_has_every_event_and_an_arrow_from_each_cause(journal: Journal) -> None:
    mermaid = journal.graph(story(journal)["placed"])
    assert mermaid.startswith("flowchart TD\n")
    assert mermaid.count("-->") == 4 and '["placed<br/>orders#35;1 · o1<br/>' in mermaid


@on("memory")
def test_awkward_text_is_escaped_and_nothing_is_drawn_for_nobody(journal: Journal, topic: Topic) -> None:
    first = topic.append('<b> & "q" \\ #', key="a]b\nc")
    topic.append("x" * 100, cause=first)
    assert '["#lt;b#gt; #38; #quot;q#quot; \\ #35;<br/>' in (drawn := journal.graph(first.id)) and "a]b c" in drawn
    assert journal.graph("nobody") == "flowchart TD\n"


@pytest.mark.parametrize("walk", ["effects", "correlated"])
def test_a_walk_sees_a_topic_that_is_made_while_it_begins(
    journal: Journal, topic: Topic, monkeypatch: pytest.MonkeyPatch, walk: str
) -> None:
    """One commit made the topic and wrote to another: a walk sees both events or none."""
    first = topic.append("placed")

    def names(snap: Snapshot, id: str) -> list[str]:
        monkeypatch.undo()
        found = topics_naming(snap, id)
        with journal.transaction() as tx:
            tx.append("invoices", "written", cause=first.id)
            tx.append("orders", "paid", cause=first.id)
        return found

    monkeypatch.setattr("penstock.core.entity.causality.topics_naming", names)
    began = ["placed"] if walk == "correlated" else []
    assert [event.kind for event in _walked(topic, first, walk)] == began
    assert sorted(event.kind for event in _walked(topic, first, walk)) == ["paid", *began, "written"]


def _walked(topic: Topic, first: Receipt, walk: str) -> Iterator[Event]:
    return topic.effects(first) if walk == "effects" else topic.correlated(first.id)
