"""What ranges of positions hold: reads by kind, scope and time skip the others, and find the same as without."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from journals import eventually, on, seqs

from penstock import Draft, Event, Journal, ManualClock, Topic
from penstock.core.journal import keys
from penstock.core.journal.blocks import Block
from penstock.core.journal.index import indexer
from penstock.core.journal.index.runs import load_directory
from penstock.core.journal.reading import TopicView
from penstock.core.journal.summaries import stored_hashes
from penstock.core.local.bulk import read_spans
from penstock.core.model.query import EventQuery
from penstock.core.protocol.bulk import SpansDocument, SpansRequest, Wanted, blocks_of
from penstock.errors import Corrupt

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
KINDS, SCOPES = ["placed", "paid", "sent", "rare"], [None, "eu", "us"]


def fill(topic: Topic, clock: ManualClock, seed: int = 1) -> None:
    """Commits of every size, in which kinds and scopes come and go."""
    chance = random.Random(seed)
    for commit in range(60):
        kinds, scopes = chance.sample(KINDS, 2), chance.sample(SCOPES, 2)
        count = chance.choice([1, 3, 70, 200])
        topic.append_many(
            [
                Draft(
                    chance.choice(kinds),
                    {"n": number},
                    key=f"key {chance.randrange(40)}",
                    scope=chance.choice(scopes),
                    correlation=f"chain {chance.randrange(60)}" if commit % 2 else None,
                    occurred_at=EPOCH + timedelta(seconds=commit * 10 + number % 10) if commit % 3 else None,
                )
                for number in range(count)
            ]
        )
        clock.advance(1)


def plan(topic: Topic, after: int, through: int, wanted: Wanted) -> SpansDocument:
    return read_spans(topic.journal._backend.store("a plan", ""), topic.name, SpansRequest(wanted, through, after))


def check(topic: Topic) -> None:
    """Every read finds what looking at each event finds."""
    events = list(topic.read())
    for kind in [*KINDS, "none"]:
        wanted = [event.seq for event in events if event.kind == kind]
        assert seqs(topic.read(kind=kind)) == wanted
        assert seqs(topic.read(kind=kind, reverse=True)) == wanted[::-1]
        assert seqs(topic.read(kind=kind, limit=3)) == wanted[:3]
        assert seqs(topic.read(kind=kind, limit=3, reverse=True)) == wanted[::-1][:3]
        middle = events[len(events) // 2].seq
        assert seqs(topic.read(middle, kind=kind, scope="eu")) == [
            event.seq for event in events if event.kind == kind and event.scope == "eu" and event.seq > middle
        ]
    for scope in ["eu", "none"]:
        assert seqs(topic.read(scope=scope)) == [event.seq for event in events if event.scope == scope]
    earliest, latest = (EPOCH + timedelta(seconds=100), EPOCH + timedelta(seconds=200))
    bounds = tuple(int(time.timestamp() * 1000) for time in (earliest, latest))
    covered(topic, Wanted(occurred=bounds), [e for e in events if earliest <= e.occurred_at <= latest])
    covered(topic, Wanted(kinds=("rare",)), [e for e in events if e.kind == "rare"])
    covered(topic, Wanted(keys=("key 7",)), [e for e in events if e.key == "key 7"])
    covered(topic, Wanted(keys=("key 7", "key 8", "none")), [e for e in events if e.key in ("key 7", "key 8")])
    covered(topic, Wanted(key_prefix="key 7"), [e for e in events if (e.key or "").startswith("key 7")])
    covered(topic, Wanted(correlations=("chain 7",)), [e for e in events if e.correlation_id == "chain 7"])
    some = events[:: len(events) // 3]
    covered(topic, Wanted(ids=tuple(event.id for event in some)), some)
    covered(topic, Wanted(seqs=tuple(event.seq for event in some)), some)


def covered(topic: Topic, wanted: Wanted, events: list[Event]) -> None:
    """Every wanted event was found, as it is, or lies between bounds, in order; these leave out what they can."""
    places = plan(topic, 0, topic.latest, wanted)
    spans = places.spans
    assert spans == sorted(spans) and all(low < high for low, high in spans)
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    found = {event.seq: event for block in blocks_of(places.found, topic.name) for event in block.events()}
    between = [event for event in events if any(low < event.seq <= high for low, high in spans)]
    assert [found[event.seq].as_dict() for event in events if event not in between] == [
        event.as_dict() for event in events if event not in between
    ]
    if wanted.keys or wanted.correlations or wanted.ids or wanted.seqs:
        assert not spans or plan(topic, 0, spans[0][0], wanted).spans == []


@on("memory")
def test_reads_find_the_same_in_every_state_of_a_store(
    journal: Journal, clock: ManualClock, reopen: Callable[[Journal], Journal]
) -> None:
    topic = journal.topic("t")
    fill(topic, clock)
    check(topic)
    journal = reopen(journal)
    check(journal.topic("t"))
    journal.maintain()
    check(journal.topic("t"))
    fill(journal.topic("t"), clock, seed=2)
    check(journal.topic("t"))
    journal.topic("t").compact(1000)
    check(journal.topic("t"))
    journal.topic("t").compact_keys()
    check(journal.topic("t"))
    journal.maintain()
    check(journal.topic("t"))
    fill(journal.topic("t"), clock, seed=3)
    check(journal.topic("t"))


def rows(journal: Any, prefix: bytes) -> list[bytes]:
    with journal._engine.read() as snap:
        return [key for key, _ in snap.scan(prefix, keys.prefix_end(prefix))]


@on("memory")
def test_a_range_without_a_wanted_event_is_not_in_the_plan(topic: Topic) -> None:
    for kind in ("placed", "paid", "placed"):
        topic.append_many([Draft(kind, occurred_at=EPOCH) for _ in range(200)])

    def spans(wanted: Wanted, after: int = 0, through: int = 600) -> list[tuple[int, int]]:
        return plan(topic, after, through, wanted).spans

    assert spans(Wanted(kinds=("paid",))) == [(200, 400)]
    assert spans(Wanted(kinds=("placed",))) == [(0, 200), (400, 600)]
    assert spans(Wanted(kinds=("placed",)), 250, 450) == [(400, 450)]
    assert spans(Wanted(scopes=("any",))) == []
    assert spans(Wanted(occurred=(0, 1))) == []
    assert spans(Wanted()) == [(0, 600)]


@on("memory")
def test_a_store_without_summaries_reads_the_same_and_gets_them_in_passing(
    journal: Any, clock: ManualClock, reopen: Callable[[Journal], Journal]
) -> None:
    fill(journal.topic("t"), clock)
    journal.maintain()
    with journal._engine.write() as tx:  # as an earlier version would have left it
        for prefix in (keys.SUMMARY, keys.HASHES):
            tx.delete_range(prefix, keys.prefix_end(prefix))
    journal = reopen(journal)
    check(journal.topic("t"))
    fill(journal.topic("t"), clock, seed=2)
    check(journal.topic("t"))
    journal.maintain()
    with journal._engine.read() as snap:
        view = TopicView.open(snap, "t")
        left = list(view.spans(0, view.latest(), EventQuery(kinds=frozenset(["none"]))))
    assert sum(high - low for low, high in left) < 64, "all but a few are summarised"
    check(journal.topic("t"))


@on("memory")
def test_summaries_become_few_rows_and_go_with_their_events(journal: Any, clock: ManualClock) -> None:
    topic = journal.topic("t")
    for _ in range(200):
        topic.append_many([Draft("placed", "x" * 500, key="k") for _ in range(200)])
    assert 5 < len(rows(journal, keys.SUMMARY)) <= 200
    journal.maintain()
    assert len(rows(journal, keys.SUMMARY)) == 4
    topic.compact(30_000)
    assert len(rows(journal, keys.SUMMARY)) == 2
    topic.compact(topic.latest)
    assert len(rows(journal, keys.SUMMARY)) <= 1 and rows(journal, keys.HASHES) == []
    journal.drop_topic("t")
    journal.maintain()
    assert rows(journal, keys.SUMMARY) == []


@on("memory")
def test_a_damaged_summary_is_noticed_and_made_anew(journal: Any) -> None:
    topic = journal.topic("t")
    topic.append_many([Draft("placed") for _ in range(200)])
    [key] = rows(journal, keys.SUMMARY)
    with journal._engine.write() as tx:
        tx.put(key, tx.get(key).replace(b"placed", b"paid!!"))
    with pytest.raises(Corrupt, match="reindex"):
        list(topic.read(kind="placed"))
    topic.reindex()
    assert len(list(topic.read(kind="placed"))) == 200


@on("memory", "sqlite")
def test_what_a_load_left_unindexed_is_found_at_once_and_indexed_when_it_is_calm(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = place.open(durability="process")
    for request in ("request", "request_merge"):
        monkeypatch.setattr(indexer.Indexer, request, lambda self, topic: None)
    topic = journal.topic("t")
    for start in range(0, 40_000, 1_000):
        topic.append_many([Draft("placed", key=f"key {start + n}", correlation=f"c {start + n}") for n in range(1_000)])
    journal.close()
    monkeypatch.undo()
    opened: list[int] = []
    asking = threading.current_thread()
    original = Block.__init__

    def counting(self: Block, wire: Any, name: str) -> None:
        if threading.current_thread() is asking:  # the indexer's own work is not counted
            opened.append(wire.count)
        original(self, wire, name)

    monkeypatch.setattr(Block, "__init__", counting)
    monkeypatch.setattr(indexer, "INDEX_CALM_SECONDS", 0.02)
    journal = place.open(durability="process")
    topic = journal.topic("t")
    assert seqs(topic.read(key="key 23456")) == seqs(topic.correlated("c 23456")) == [23457]
    assert topic.position_of("key 40001") == 0
    assert sum(opened) <= 6_000, "few blocks are opened, whatever is unindexed"

    def through() -> int:
        with journal._engine.read() as snap:
            view = TopicView.open(snap, "t")
            return load_directory(snap, view.topic_id, "t").through

    eventually(lambda: through() > 40_000 - 16_384, "it is indexed")
    with journal._engine.read() as snap:
        view = TopicView.open(snap, "t")
        hashes = [hashes.first for hashes in stored_hashes(snap, view.topic_id, "t", 0)]
    assert all(first > through() for first in hashes), "what is indexed needs no hashes"
    assert seqs(topic.read(key="key 23456")) == seqs(topic.correlated("c 23456")) == [23457]
