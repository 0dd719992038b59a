"""Appending: positions, times, ids, batches, dedup keys, causes, expectations, and what is refused."""

from __future__ import annotations

import dataclasses
import math
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from typing import Any

import msgspec
import pydantic
import pytest
from journals import Place, contiguous, on, payloads, seqs

import penstock.limits
from penstock import Draft, Journal, ManualClock, Topic
from penstock.core.journal.blocks import Columns, PlacedRows, build_wire, low_bytes
from penstock.core.journal.bulk import append_wires
from penstock.core.journal.commit import append_copies
from penstock.errors import ConfigError, Conflict, InvalidName

Reopen = Callable[[Journal], Journal]


# positions


@pytest.mark.parametrize("verified", [False, True])
def test_beyond_the_highest_position_nothing_is_appended(place: Place, verified: bool) -> None:
    """The last position can be read, looked up and taken; what has no place gets an error and leaves no trace."""
    last = penstock.limits.MAX_POSITION
    with place.open() as journal:
        topic = journal.topic("orders")
        topic.append("k", 0)
        soon = journal.clock.now_ms() + 1
        at_the_end = PlacedRows(Columns(["k"], [b"1"]), [last - 2], [bytes(10)], [soon])
        journal._core.run(lambda commit: append_copies(commit, "orders", at_the_end, 1))
        if verified:
            topic.configure(verified=True)
        assert topic.append("k", 2, key="e").seq == last - 1
    with place.open() as journal:
        topic = journal.topic("orders")
        with pytest.raises(ConfigError, match=rf"'orders' is at position {last - 1}.*new topic"):
            topic.append_many([Draft("k", 3), Draft("k", 4)])
        wires = [build_wire(Columns(["k"], [b"3"]), 1, 0, 0) for _ in range(2)]
        with pytest.raises(ConfigError, match="new topic"):
            journal._core.run(lambda commit: append_wires(commit, "orders", wires))
        assert (topic.latest, len(topic)) == (last - 1, 3)
        assert topic.append("k", 3, key="e", expect=last - 1).seq == last
        for attempt in (
            lambda: topic.append("k"),
            lambda: topic.append("k", key="e", expect=last),
            lambda: topic.append("k", dedup="d"),
            lambda: topic.submit("k").result(60),
            lambda: journal.queue("orders").push(1),
        ):
            with pytest.raises(ConfigError, match=f"position {last} of {last}"):
                attempt()
        later = journal.clock.now_ms() + 60_000
        beyond = PlacedRows(Columns(["k"], [b"1"]), [last + 1], [bytes(10)], [later])
        with pytest.raises(ConfigError, match="new topic"):
            journal._core.run(lambda commit: append_copies(commit, "orders", beyond, last))
        journal.maintain()
        assert seqs(topic.read()) == [1, last - 2, last - 1, last]
        assert payloads(topic.read(last - 1)) == [3] and topic.get(last).payload == 3  # type: ignore[union-attr]
        assert seqs(topic.read(key="e", reverse=True)) == [last, last - 1] and topic.position_of("e") == last
        assert journal.topic("other").append("k").seq == 1


@on("memory")
def test_copies_that_do_not_follow_what_is_there_are_refused(
    journal: Journal, topic: Topic, clock: ManualClock
) -> None:
    topic.append("k")
    now, newest = clock.now_ms(), uuid.UUID(next(topic.read()).id).int
    for seq, number, ms in ((1, newest + 1, now), (2, newest, now), (2, (now - 1) << 80, now - 1)):
        copies = PlacedRows(Columns(["k"], [b"1"]), [seq], [low_bytes(number)], [ms])
        with pytest.raises(ConfigError, match=f"event {seq} of topic 'orders' does not follow"):
            journal._core.run(lambda commit, copies=copies: append_copies(commit, "orders", copies, 1))
    assert topic.latest == 1


def test_an_empty_batch_appends_nothing_and_creates_no_topic(journal: Journal) -> None:
    topic = journal.topic("orders")
    assert topic.append_many([]) == [] and topic.submit_many(iter(())).result() == []
    assert journal.topics() == []


@pytest.mark.parametrize("reopened", [False, True])
def test_positions_and_ids_are_never_reused_after_compacting_everything(
    journal: Journal, reopen: Reopen, reopened: bool
) -> None:
    topic = journal.topic("orders")
    last = topic.append_many([Draft("k")] * 7)[-1]
    assert topic.compact(7).remaining == 0
    if reopened:
        journal = reopen(journal)
        topic = journal.topic("orders")
    assert (topic.latest, topic.oldest, len(topic)) == (7, 0, 0)
    after = topic.append("k")
    assert after.seq == 8 and after.id > last.id
    assert (topic.oldest, len(topic)) == (8, 1)


# times and ids


def test_times_and_ids_of_every_event_never_go_back(topic: Topic, clock: ManualClock) -> None:
    for step in (0, 0.001, -5, -5, 20, 0, -100):
        clock.advance(step)
        topic.append("k")
        topic.append_many([Draft("k")] * 3)
    events = list(topic.read())
    times, ids = [e.recorded_at for e in events], [e.id for e in events]
    assert times == sorted(times) and ids == sorted(ids) and len(set(ids)) == len(ids)


def test_ids_are_version_7_uuids_of_the_recording_time(topic: Topic) -> None:
    topic.append_many([Draft("k")] * 3)
    for event in topic.read():
        made = uuid.UUID(event.id)
        assert made.version == 7 and made.variant == uuid.RFC_4122
        assert made.int >> 80 == int(event.recorded_at.timestamp() * 1000)


def test_ids_differ_between_topics_of_the_same_millisecond(journal: Journal) -> None:
    ids = {journal.topic(f"t{n}").append("k").id for n in range(200)}
    assert len(ids) == 200


def test_occurred_at_is_the_producers_time_or_the_recording_time(topic: Topic, clock: ManualClock) -> None:
    given = datetime(1969, 7, 20, 20, 17, 40, 123000, tzinfo=timezone(timedelta(hours=-4)))
    topic.append("k", occurred_at=given)
    topic.append("k")
    topic.append_many([Draft("k"), Draft("k", occurred_at=given)])
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    assert [e.occurred_at for e in topic.read()] == [given, now, now, given]
    assert all(e.recorded_at == now for e in topic.read())


# every field


def test_every_field_comes_back_as_it_was_given(topic: Topic, journal: Journal, reopen: Reopen) -> None:
    cause = topic.append("cause", correlation="cor")
    occurred = datetime(2024, 2, 29, 12, tzinfo=UTC)
    headers = {"z": "1", "a": "ü", "empty": ""}
    receipt = topic.append(
        "плaced ✓",
        {"a": [1, None, True, 1.5, "é"]},
        key="käy",
        scope="s/1",
        headers=headers,
        occurred_at=occurred,
        cause=cause,
    )
    event = reopen(journal).topic("orders").get(receipt.seq)
    assert event is not None
    assert (event.seq, event.topic, event.kind) == (2, "orders", "плaced ✓")
    assert event.payload == {"a": [1, None, True, 1.5, "é"]}
    assert (event.key, event.scope, event.occurred_at) == ("käy", "s/1", occurred)
    assert dict(event.headers) == headers and list(event.headers) == ["z", "a", "empty"]
    assert (event.correlation_id, event.causation_id) == ("cor", cause.id)
    assert event.id == receipt.id and receipt.correlation_id == "cor" and not receipt.duplicate
    assert receipt.topic == "orders"


@pytest.mark.parametrize(
    "payload",
    [
        None, True, 0, -1, 1.5, "", "text", "\0\n\u2028", [], {}, [[[]]], {"": None}, 2**63, -(2**63) - 1, 10**300,
        1e308, -0.0, 5e-324, "🎉" * 1000, ["null", None], {"NaN": "NaN"},
    ],
    ids=repr,
)  # fmt: skip
@on("memory")
def test_json_like_payloads_come_back_equal(topic: Topic, payload: Any) -> None:
    topic.append("k", payload)
    topic.append_many([Draft("k", payload), Draft("k", [payload])])
    assert payloads(topic.read()) == [payload, payload, [payload]]


@pytest.mark.parametrize(
    "payload", [b"", b"\0\xff", bytearray(b"ab"), memoryview(b"abc")[1:]], ids=["none", "some", "bytearray", "view"]
)
@on("memory", "sqlite")
def test_bytes_stay_bytes(topic: Topic, payload: Any) -> None:
    class Tagged(bytes):
        pass

    topic.append("k", payload)
    topic.append_many([Draft("k", payload), Draft("k", "text"), Draft("k", Tagged(payload))])
    first, second, text, tagged = topic.read()
    assert first.payload == second.payload == tagged.payload == bytes(payload)
    assert type(first.payload) is bytes and first.binary and tagged.binary and not text.binary
    assert first.raw == bytes(payload) and text.raw == b'"text"'


def test_a_payload_changed_after_submitting_is_stored_as_it_was(topic: Topic) -> None:
    payload, headers = {"a": 1}, {"h": "1"}
    ticket = topic.submit("k", payload, headers=headers)
    payload["a"], headers["h"] = 2, "2"
    ticket.result(60)
    event = topic.get(1)
    assert event is not None and event.payload == {"a": 1} and event.headers == {"h": "1"}


# what is refused leaves no trace


@dataclasses.dataclass
class Reading:
    value: float


class ModelReading(pydantic.BaseModel):
    grams: float


class Level(Enum):
    UNKNOWN = math.nan


class Sample(msgspec.Struct):
    value: float


def _cyclic() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


REFUSED_PAYLOADS = {
    "nan": math.nan,
    "infinity": [1, {"a": math.inf}],
    "nan in a dataclass": {"r": Reading(math.nan)},
    "nan in a struct": Sample(-math.inf),
    "nan in an enum": [Level.UNKNOWN],
    "nan in a tuple": (None, (math.nan,)),
    "lone surrogate": {"text": "\ud800"},
    "surrogate key": {"\udfff": 1},
    "cyclic": _cyclic(),
    "an object": object(),
    "a function": [print],
    "complex": 1j,
    "too many digits": 10**5000,
    "mixed keys": {("a", "b"): 1},
    "a number as a key": [{"a": {1: 2}}],
    "a time without a zone": {"at": (datetime(2026, 1, 2, 3, 4, 5),)},
}


@pytest.mark.parametrize("payload", REFUSED_PAYLOADS.values(), ids=REFUSED_PAYLOADS)
@on("memory")
def test_a_payload_that_cannot_be_encoded_leaves_no_trace(journal: Journal, payload: Any) -> None:
    topic = journal.topic("orders")
    for attempt in (
        lambda: topic.append("k", payload),
        lambda: topic.submit("k", payload),
        lambda: topic.append_many([Draft("k", 1), Draft("k", payload)]),
        lambda: topic.append("k", payload, key="a", dedup="d"),
    ):
        with pytest.raises(ConfigError):
            attempt()
    assert journal.topics() == []
    assert not topic.append("k", 1, dedup="d").duplicate
    assert topic.latest == 1


REFUSED_DRAFTS: dict[str, dict[str, Any]] = {
    "empty key": {"key": ""},
    "numeric key": {"key": 5},
    "list key": {"key": ["a"]},
    "surrogate key": {"key": "\ud800"},
    "long key": {"key": "k" * 401},
    "long key in bytes": {"key": "é" * 201},
    "empty scope": {"scope": ""},
    "long scope": {"scope": "s" * 401},
    "empty dedup": {"dedup": ""},
    "long dedup": {"dedup": "d" * 401},
    "numeric dedup": {"dedup": 7},
    "empty correlation": {"correlation": ""},
    "headers not a mapping": {"headers": [("a", "b")]},
    "header value not text": {"headers": {"a": 1}},
    "header name not text": {"headers": {1: "a"}},
    "empty header name": {"headers": {"": "a"}},
    "surrogate header": {"headers": {"a": "\ud800"}},
    "too many headers": {"headers": {str(n): "" for n in range(257)}},
    "headers too large": {"headers": {"a": "x" * (64 << 10)}},
    "naive time": {"occurred_at": datetime(2024, 1, 1)},
    "time not a datetime": {"occurred_at": 17},
    "time beyond the calendar": {"occurred_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
    "another topic": {"topic": "other"},
    "expect without key": {"expect": 0},
    "negative expect": {"key": "a", "expect": -1},
    "cause out of the batch": {"cause": 0},
    "cause of a wrong type": {"cause": 1.5},
    "cause a bool": {"cause": True},
    "empty cause": {"cause": ""},
}


@pytest.mark.parametrize("draft", REFUSED_DRAFTS.values(), ids=REFUSED_DRAFTS)
@on("memory")
def test_a_draft_with_a_bad_field_leaves_no_trace(journal: Journal, draft: dict[str, Any]) -> None:
    topic = journal.topic("orders")
    with pytest.raises(ConfigError):
        topic.append("k", **draft)
    assert journal.topics() == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((None, {"a": 1}), "an event's kind is text, like 'order.placed', not None"),
        (({"a": 1},), "an event's kind is missing"),
        (({"a": 1}, "placed"), "an event's kind is missing"),
        ((7, {"a": 1}), "not 7"),
    ],
)
def test_a_kind_that_was_left_out_is_named(topic: Topic, given: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        topic.append(*given)


def test_a_pydantic_model_is_a_payload_like_a_dataclass(topic: Topic, journal: Journal) -> None:
    topic.append("weighed", ModelReading(grams=2.5))
    topic.append("weighed", {"all": [ModelReading(grams=1.0)]})
    journal.queue("weights").push(ModelReading(grams=3.0))
    assert payloads(topic.read()) == [{"grams": 2.5}, {"all": [{"grams": 1.0}]}]
    assert [event.payload for event in journal.queue("weights").peek(1)] == [{"grams": 3.0}]
    with pytest.raises(ConfigError, match="NaN"):
        topic.append("weighed", ModelReading(grams=math.nan))


@pytest.mark.parametrize("kind", ["", "k" * 256, "\ud800", None, 5, b"k", []], ids=lambda kind: repr(kind)[:20])
@on("memory")
def test_a_bad_kind_is_refused(journal: Journal, kind: Any) -> None:
    topic = journal.topic("orders")
    with pytest.raises(ConfigError):
        topic.append(kind)
    with pytest.raises(ConfigError):
        topic.append_many([Draft("good"), Draft(kind)])
    assert journal.topics() == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "é", "a\n", "x" * 256, None, 5, b"a", [], "a\0"], ids=repr
)
@on("memory")
def test_a_bad_topic_name_is_refused(journal: Journal, name: Any) -> None:
    with pytest.raises(InvalidName):
        journal.topic(name)


@pytest.mark.parametrize("name", ["a", "...", "A-Z_0.9", "x" * 255, "-", "CON"])
def test_any_other_topic_name_is_good(journal: Journal, name: str, reopen: Reopen) -> None:
    assert journal.topic(name).append("k", name).seq == 1
    assert reopen(journal).topics() == [name]


@on("memory")
def test_only_drafts_can_be_appended_in_batches(topic: Topic) -> None:
    receipt = topic.append("k")
    event = topic.get(1)
    for wrong in ("k", ("k", 1), {"kind": "k"}, event, receipt, None):
        with pytest.raises(ConfigError, match="Draft"):
            topic.append_many([Draft("k"), wrong])  # type: ignore[list-item]
    assert topic.latest == 1


def test_the_longest_names_and_keys_are_stored(journal: Journal, reopen: Reopen) -> None:
    topic = journal.topic("t" * 255)
    long = "é" * 200
    draft = {"key": long, "scope": long, "dedup": long, "correlation": long}
    topic.append("k" * 255, headers={"h" * 100: "v" * 1000}, **draft)
    topic.commit(long, 1)
    topic = reopen(journal).topic("t" * 255)
    event = topic.get(1)
    assert event is not None
    assert (event.key, event.scope, event.correlation_id, event.kind) == (long, long, long, "k" * 255)
    assert topic.cursors() == {long: 1} and topic.append("k", dedup=long).duplicate


@on("memory", "sqlite")
def test_header_limits_are_inclusive(topic: Topic) -> None:
    many = {f"h{n}": str(n) for n in range(penstock.limits.MAX_HEADERS)}
    large = {"a": "x" * (penstock.limits.MAX_HEADER_BYTES - 1)}
    topic.append_many([Draft("k", headers=many), Draft("k", headers=large), Draft("k", headers={})])
    assert [dict(e.headers) for e in topic.read()] == [many, large, {}]


# sizes


@pytest.mark.slow
def test_a_payload_of_64_mib_is_kept(place: Place) -> None:
    large = bytes(range(256)) * (64 << 12)
    journal = place.open()
    topic = journal.topic("large")
    topic.append_many([Draft("k", "before"), Draft("k", large), Draft("k", "after")])
    before, found, after = place.reopen(journal).topic("large").read()
    assert found.raw == large and found.payload == large
    assert (before.payload, after.payload) == ("before", "after")


@on("memory")
def test_sizes_out_of_range_are_refused(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.journal.prepare.MAX_PAYLOAD_BYTES", 1000)
    monkeypatch.setattr("penstock.core.journal.prepare.MAX_BATCH_BYTES", 5000)
    topic.append("k", b"x" * 1000)
    for payload in (b"x" * 1001, "x" * 999):
        with pytest.raises(ConfigError, match="too large"):
            topic.append("k", payload)
    topic.append_many([Draft("k", b"x" * 1000)] * 5)
    with pytest.raises(ConfigError, match="too large"):
        topic.append_many([Draft("k", b"x" * 1000)] * 5 + [Draft("k", b"x")])
    assert topic.latest == 6


@on("memory", "sqlite")
def test_a_large_batch_becomes_several_blocks_and_stays_one_batch(topic: Topic) -> None:
    sizes = [10, 300_000, 0, 250_000, 5, 1_000_000, 1]
    drafts = [
        Draft("k", bytes([n % 256]) * size, key=f"k{n}", headers={"n": str(n)}, cause=n - 1 if n else None)
        for n, size in enumerate(sizes * 3)
    ]
    receipts = topic.append_many(drafts)
    events = list(topic.read())
    assert seqs(events) == [r.seq for r in receipts] == list(range(1, 22))
    assert [len(e.raw) for e in events] == sizes * 3
    assert [e.key for e in events] == [f"k{n}" for n in range(21)]
    assert [e.headers["n"] for e in events] == [str(n) for n in range(21)]
    assert [e.causation_id for e in events] == [None, *(r.id for r in receipts[:-1])]
    assert {e.correlation_id for e in events[1:]} == {receipts[0].id}
    assert all(topic.find(r.id) == e for r, e in zip(receipts, events, strict=True))


@on("memory", "sqlite")
def test_headers_count_when_blocks_are_cut(topic: Topic) -> None:
    topic.append_many(Draft("k", headers={"a": f"{n:02}" * 30_000}) for n in range(100))
    with topic.journal._engine.read() as snap:
        assert all(len(value) < 2 << 20 for _, value in snap.scan(b"b", b"c"))
    assert [e.headers["a"][:2] for e in topic.read()] == [f"{n:02}" for n in range(100)]


@on("memory", "sqlite")
def test_a_batch_of_a_hundred_thousand(topic: Topic) -> None:
    receipts = topic.append_many([Draft("k", n) for n in range(100_000)])
    assert contiguous([r.seq for r in receipts]) and receipts[-1].seq == 100_000
    assert payloads(topic.read(65_530, 20)) == list(range(65_530, 65_550))
    assert len(topic) == 100_000


# dedup keys


def test_a_dedup_key_is_known_for_its_window(topic: Topic, clock: ManualClock) -> None:
    topic.configure(dedup_window=100)
    topic.append("k", dedup="d")
    clock.advance(99.999)
    assert topic.append("k", dedup="d").duplicate  # a duplicate does not prolong the window
    clock.advance(0.001)
    again = topic.append("k", dedup="d")
    assert not again.duplicate and again.seq == 2
    clock.advance(50)
    assert topic.append("k", dedup="d").seq == 2


@pytest.mark.parametrize("window", [0.05, 1, 59, 61, 3600, 7 * 86400.0])
@on("memory")
def test_windows_of_any_length_work(topic: Topic, clock: ManualClock, window: float) -> None:
    topic.configure(dedup_window=window)
    for start in range(3):
        topic.append("k", dedup=f"d{start}")
        clock.advance(window * 0.7)
        assert topic.append("k", dedup=f"d{start}").duplicate
        topic.journal.maintain()
        assert topic.append("k", dedup=f"d{start}").duplicate
        clock.advance(window * 0.3)
        assert not topic.append("k", dedup=f"d{start}").duplicate
        topic.journal.maintain()


@on("memory")
def test_a_window_of_zero_remembers_nothing_and_of_none_everything(topic: Topic, clock: ManualClock) -> None:
    topic.configure(dedup_window=None)
    topic.append("k", dedup="d")
    clock.advance(86400 * 365 * 20)
    topic.journal.maintain()
    assert topic.append("k", dedup="d").duplicate
    topic.configure(dedup_window=0)
    assert not topic.append("k", dedup="d").duplicate
    assert not topic.append("k", dedup="d").duplicate


def test_changing_the_window_forgets_no_key_that_still_counts(
    journal: Journal, clock: ManualClock, reopen: Reopen
) -> None:
    topic = journal.topic("orders")
    topic.append("k", dedup="old")
    clock.advance(1000)
    topic.append("k", dedup="new")
    for window in (100_000, None, 5000, 2000):
        topic.configure(dedup_window=window)
        assert topic.append("k", dedup="new").seq == 2 and topic.append("k", dedup="old").seq == 1
        journal = reopen(journal)
        topic = journal.topic("orders")
    topic.configure(dedup_window=500)
    assert topic.append("k", dedup="new").seq == 2
    assert not topic.append("k", dedup="old").duplicate


@on("memory")
@pytest.mark.parametrize("back", [0, 3600])
def test_a_key_given_in_the_millisecond_in_which_the_window_grew_is_remembered(
    topic: Topic, clock: ManualClock, back: float
) -> None:
    """Also while the topic's time stands still, because the clock was set back."""
    topic.append("k", dedup="before")
    clock.advance(-back)
    topic.configure(dedup_window=0)
    topic.append("k", dedup="never")
    topic.configure(dedup_window=None)
    clock.advance(back / 2)
    first = topic.append("k", dedup="after")
    again = [topic.append("k", dedup=key) for key in ("after", "before", "never")]
    assert [receipt.duplicate for receipt in again] == [True, False, False] and again[0].seq == first.seq
    clock.advance(86_400)
    assert all(topic.append("k", dedup=key).duplicate for key in ("after", "before", "never"))


def test_expired_dedup_keys_are_removed_in_passing(topic: Topic, clock: ManualClock) -> None:
    topic.configure(dedup_window=100)
    topic.append_many([Draft("k", dedup=str(n)) for n in range(100)])
    clock.advance(1000)
    topic.append("k", dedup="kept")
    topic.journal.maintain()
    with topic.journal._engine.read() as snap:
        assert len(list(snap.scan(b"d", b"e"))) == 1


# causes


def test_an_event_inherits_its_causes_correlation_or_its_id(topic: Topic, journal: Journal) -> None:
    root = topic.append("root")
    named = topic.append("named", correlation="cor")
    root_event, named_event = topic.read()
    other = journal.topic("other")
    for cause, correlation in (
        (root, root.id), (root_event, root.id), (root.id, root.id),
        (named, "cor"), (named_event, "cor"), (named.id, "cor"),
    ):  # fmt: skip
        receipt = other.append("effect", cause=cause)
        event = other.get(receipt.seq)
        assert event is not None
        cause_id = cause if isinstance(cause, str) else cause.id
        assert (event.causation_id, event.correlation_id) == (cause_id, correlation)
        assert receipt.correlation_id == correlation
    own = other.append("effect", cause=named, correlation="mine")
    assert own.correlation_id == "mine"
    foreign = other.append("effect", cause="an id of somewhere else")
    event = other.get(foreign.seq)
    assert event is not None and event.causation_id == event.correlation_id == "an id of somewhere else"


def test_an_effect_behind_a_repeated_draft_has_its_cause(topic: Topic) -> None:
    topic.append("a", dedup="a")
    root, again, effect = topic.append_many([Draft("b"), Draft("a", dedup="a", cause=0), Draft("c", cause=0)])
    assert again.duplicate and [event.causation_id for event in topic.read()] == [None, None, root.id]
    assert effect.correlation_id == root.id


# expectations


def test_a_conflict_in_a_batch_refuses_the_whole_batch(topic: Topic) -> None:
    topic.append("k", key="a")
    with pytest.raises(Conflict):
        topic.append_many([Draft("k", key="b", expect=0), Draft("k", key="a", expect=0)])
    assert topic.latest == 1
    receipts = topic.append_many([Draft("k", key="b", expect=0), Draft("k", key="b", expect=0), Draft("k")])
    assert [r.seq for r in receipts] == [2, 3, 4]  # expectations are about the time before the batch


@on("memory")
@pytest.mark.parametrize("seed", range(5))
def test_dedup_keys_count_as_the_windows_of_their_time_say(
    journal: Journal, topic: Topic, clock: ManualClock, seed: int
) -> None:
    """However often the window changes: a key counts while it is in the window, and never again after it was not."""
    chance = random.Random(seed)
    window: float | None = 7 * 86_400.0
    known: dict[str, tuple[int, float]] = {}
    for _ in range(400):
        now = clock.now_ms() / 1000
        known = {key: (seq, at) for key, (seq, at) in known.items() if window is None or now - at < window}
        match chance.randrange(8):
            case 0:
                window = chance.choice([None, 0.0, 10.0, 45.0, 100.0, 3_600.0, 3_700.0, 86_400.0])
                topic.configure(dedup_window=window)
            case 1:
                clock.advance(chance.choice([1, 30, 90, 3_000, 50_000]))
            case 2:
                journal.maintain()
            case _:
                key = f"key {chance.randrange(12)}"
                receipt = topic.append("e", dedup=key)
                assert receipt.duplicate == (key in known), (key, window)
                assert receipt.seq == known.setdefault(key, (receipt.seq, now))[0]
