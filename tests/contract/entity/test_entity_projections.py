"""Projections: state folded from events, saved, watched, rebuilt; always what a fold over `read()` gives."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from journals import DEADLINE, Place, on, only, payloads, seqs
from small_index import small_index

import penstock
from penstock import Draft, Event, Journal, ManualClock, Projection, Topic, event
from penstock import on as handles
from penstock.core import schema
from penstock.core.engine.contract import Snapshot
from penstock.core.entity import states
from penstock.core.entity.projection import folder_of
from penstock.core.entity.states import (
    StreamedState,
    StreamedStates,
    load_streamed,
    pack_state,
    save_streamed,
    states_topic,
)
from penstock.core.journal.catalog import TopicRecord, load_record
from penstock.core.journal.keys import prefix_end
from penstock.core.journal.writer import Writer
from penstock.errors import Closed, ConfigError, PositionTrimmed

Reopen = Callable[[Journal], Journal]


class Owner(msgspec.Struct):
    name: str


class Account(Projection):
    """An account, as its events leave it."""

    balance: int = 0
    owner: Owner | None = None
    log: list[str] = []
    by_day: dict[str, int] = {}
    tags: set[str] = set()
    seen_at: datetime | None = None
    limit: ClassVar[int] = 10

    @handles("deposited", "corrected")
    def add(self, payload: Any) -> None:
        self.balance += payload["amount"]

    @handles("opened")
    def opened(self, payload: Any, event: Event) -> None:
        self.owner = Owner(payload["owner"])
        self.seen_at = event.recorded_at
        self.tags.add("open")

    @handles("noted")
    def noted(self, event: Event) -> None:
        self.log.append(f"{event.seq}:{event.payload}")
        self.by_day[str(event.seq)] = event.seq


class Total(Projection):
    total: int = 0

    @handles("deposited")
    def add(self, payload: Any) -> None:
        self.total += payload["amount"]


def deposit(topic: Topic, key: str, count: int = 1, amount: int = 1) -> None:
    topic.append_many([Draft("deposited", {"amount": amount}, key=key) for _ in range(count)])


def saved(journal: Journal) -> list[bytes]:
    journal.flush()
    with journal._engine.read() as snap:
        return [key for key, _ in snap.scan(b"p", prefix_end(b"p"))]


def test_an_entity_whose_events_nobody_handles_has_the_first_state(topic: Topic) -> None:
    topic.append("unknown", key="a")
    assert topic.project(Account, "a") == Account()


def test_every_caller_gets_a_state_of_its_own(topic: Topic) -> None:
    topic.append("noted", 1, key="a")
    first = topic.project(Account, "a")
    assert first is not None
    first.log.append("mine")
    second = topic.project(Account, "a")
    assert second is not None and second.log == ["1:1"] and Account().log == []


@pytest.mark.parametrize("indexed", [False, True])
def test_saved_states_are_used_and_reading_goes_on_after_them(
    journal: Journal, topic: Topic, reopen: Reopen, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_index():
        deposit(topic, "a", 300)
        if indexed:
            journal.maintain()
        assert topic.project(Total, "a") == Total(300)
        assert len(saved(journal)) == 1
        journal = reopen(journal)
        topic = journal.topic("orders")
        deposit(topic, "a", 7)
        folded: list[int] = []
        original = type(folder_of(Total)).fold_pieces

        def counting(self: Any, state: Any, pieces: Any) -> Any:
            outcome = original(self, state, pieces)
            folded.append(outcome[2])
            return outcome

        monkeypatch.setattr(type(folder_of(Total)), "fold_pieces", counting)
        assert topic.project(Total, "a") == Total(307)
        assert folded == [7]


def test_cached_may_be_stale_and_consistent_never_is(journal: Journal, topic: Topic) -> None:
    assert topic.project(Total, "a", freshness="cached") is None
    deposit(topic, "a", 3)
    assert topic.project(Total, "a", freshness="cached") == Total(3), "nothing was cached: it is folded"
    deposit(topic, "a", 1)
    assert topic.project(Total, "a", freshness="cached") == Total(3)
    assert topic.project(Total, "a") == Total(4)
    assert topic.project(Total, "a", freshness="cached") == Total(4)
    with pytest.raises(ConfigError, match="freshness"):
        topic.project(Total, "a", freshness="fresh")  # type: ignore[arg-type]


def test_another_version_or_other_fields_are_folded_anew(journal: Journal, topic: Topic) -> None:
    deposit(topic, "a", 200)

    class Sum(Projection, name="sum"):
        value: int = 0

        @handles("deposited")
        def add(self, payload: Any) -> None:
            self.value += payload["amount"]

    assert topic.project(Sum, "a") == Sum(200)

    class Doubled(Projection, name="sum", version=2):
        value: int = 0

        @handles("deposited")
        def add(self, payload: Any) -> None:
            self.value += 2 * payload["amount"]

    class Renamed(Projection, name="sum"):
        amount: int = 0

        @handles("deposited")
        def add(self, payload: Any) -> None:
            self.amount += payload["amount"]

    journal.flush()
    assert topic.project(Doubled, "a") == Doubled(400)
    assert topic.project(Renamed, "a") == Renamed(200)
    assert len(saved(journal)) == 2


@pytest.mark.parametrize("by_key", [False, True])
def test_after_compaction_a_state_is_what_is_left(journal: Journal, topic: Topic, by_key: bool) -> None:
    deposit(topic, "a", 150)
    deposit(topic, "b", 150)
    assert topic.project(Total, "a") == Total(150) and topic.project(Total) == Total(300)
    journal.flush()
    if by_key:
        topic.compact_keys()
        assert topic.project(Total, "a") == Total(1) and topic.project(Total) == Total(2)
    else:
        topic.compact(50)
        assert topic.project(Total, "a") == Total(100) and topic.project(Total) == Total(250)
        assert topic.project(Total, "b") == Total(150)
    assert topic.project(Total, "a") == Total.fold(topic.read(key="a"))


def test_a_damaged_saved_state_is_folded_anew(journal: Journal, topic: Topic) -> None:
    deposit(topic, "a", 200)
    topic.project(Total, "a")
    (key,) = saved(journal)
    for broken in (b"", b"abc", b"x" * 40):
        with journal._engine.write() as tx:
            tx.put(key, broken)
        journal._entities.states.clear()
        assert topic.project(Total, "a") == Total(200)
        journal.flush()


# ── rebuilding ───────────────────────────────────────────────────────────────────────────────────────────────────────


# ── watching ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_watch_yields_the_state_and_then_every_change(
    journal: Journal, topic: Topic, in_threads: Callable[..., threading.Thread]
) -> None:
    deposit(topic, "a", 2)
    watch = topic.watch(Total, "a")
    assert watch.next(0) == Total(2) and watch.next(0) is None
    deposit(topic, "b")
    assert watch.next(0) is None

    def later() -> None:
        deposit(topic, "a")

    in_threads(later)
    assert watch.next(DEADLINE) == Total(3) and watch.generation == 4
    watch.close()
    assert watch.next() is None and list(watch) == []


def test_a_watch_can_be_iterated_by_an_event_loop(topic: Topic) -> None:
    async def main() -> list[int]:
        totals: list[int] = []
        with topic.watch(Total) as watch:
            await asyncio.to_thread(deposit, topic, "a")
            async for state in watch:
                totals.append(state.total)
                if state.total >= 3:
                    break
                await asyncio.to_thread(deposit, topic, "a")
        return totals

    assert asyncio.run(main()) == [1, 2, 3]


def test_closing_the_journal_ends_a_watch(journal: Journal, topic: Topic) -> None:
    watch = topic.watch(Total, "a")
    journal.close()
    with pytest.raises(Closed):
        watch.next()


@only(second_open=True)
def test_a_watch_sees_what_another_journal_appends(place: Place, topic: Topic) -> None:
    watch = topic.watch(Total, "a")
    deposit(place.open().topic("orders"), "a")
    assert watch.next(DEADLINE) == Total(1)


# ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def paid() -> Iterator[type[Any]]:
    @event("projection.paid")
    class Paid(msgspec.Struct):
        amount: int

    yield Paid
    schema.forget("projection.paid")


@on("memory")
def test_typed_payloads_go_to_handlers_that_name_the_type(topic: Topic, paid: type[Any]) -> None:
    Paid = paid

    class Sum(Projection):
        total: int = 0
        kinds: int = 0

        @handles(Paid)
        def add(self, event: Paid) -> None:  # type: ignore[valid-type]
            self.total += event.amount  # type: ignore[attr-defined]

        @handles("deposited")
        def other(self, payload: Any) -> None:
            self.kinds += 1

    topic.append_many([Draft(Paid(number), key="a") for number in range(50)])
    topic.append("deposited", {"amount": 1}, key="a")
    topic.append("projection.paid", {"amount": 7}, key="a")
    assert topic.project(Sum, "a") == Sum(49 * 25 + 7, 1)
    assert Sum.fold(topic.read(key="a")) == topic.project(Sum, "a")


@on("memory")
def test_kinds_and_bytes_in_one_block_are_handled_in_order(topic: Topic) -> None:
    class Trace(Projection):
        seen: list[Any] = []

        @handles("a", "b")
        def note(self, payload: Any) -> None:
            self.seen.append(payload if isinstance(payload, int) else len(payload))

        @handles("c")
        def note_event(self, event: Event) -> None:
            self.seen.append(event.seq)

    topic.append_many([Draft("ab"[number % 2], number, key="k") for number in range(10)])
    assert topic.project(Trace, "k") == Trace(list(range(10)))
    topic.append_many([Draft("abcd"[number % 4], b"xyz" if number == 4 else number, key="k") for number in range(8)])
    assert topic.project(Trace, "k") == Trace([*range(10), 0, 1, 13, 3, 5, 17])


@on("memory")
def test_a_handler_that_raises_is_named_and_nothing_is_saved(journal: Journal, topic: Topic) -> None:
    deposit(topic, "a", 120)
    topic.append_many([Draft("deposited", {"amount": 1}, key="a"), Draft("deposited", {}, key="a")])
    for projected in (lambda: topic.project(Total, "a"), lambda: topic.rebuild(Total), lambda: topic.project(Total)):
        with pytest.raises(KeyError) as failure:
            projected()
        assert failure.value.__notes__ == [
            "in projection handler Total.add, for event 122 of topic 'orders' ('deposited')"
        ]
    assert saved(journal) == [] and len(topic) == 122


@on("memory")
def test_payloads_are_told_apart_whatever_they_hold(topic: Topic) -> None:
    class Seen(Projection):
        payloads: list[Any] = []

        @handles("a")
        def note(self, payload: Any) -> None:
            self.payloads.append(payload)

    awkward = [{"a": "}{"}, {"b": {}}, {}, 5, 55, [1, [2]], "}{", {"a": "}{}{"}, 7, {}, None, True, "", {"x": "},{"}]
    for start in range(len(awkward)):
        for stop in range(start + 1, len(awkward) + 1):
            topic.append_many([Draft("a", payload, key=f"{start}-{stop}") for payload in awkward[start:stop]])
            assert topic.project(Seen, f"{start}-{stop}") == Seen(awkward[start:stop])


@on("memory")
def test_a_poison_payload_is_named(journal: Journal, topic: Topic) -> None:
    from penstock.core.journal.blocks import Columns
    from penstock.core.journal.prepare import PreparedBatch
    from penstock.errors import PoisonMessage

    columns = Columns(["deposited"] * 3, [b'{"amount":1}', b'{"amount":', b'{"amount":1}'])
    columns.key = ["a"] * 3
    journal._core.run(lambda commit: commit.append("orders", PreparedBatch(columns, 30)))
    with pytest.raises(PoisonMessage) as failure:
        topic.project(Total, "a")
    assert "event 2" in failure.value.__notes__[0]


def test_handlers_are_inherited_and_overridden() -> None:
    class Base(Projection):
        seen: list[str] = []

        @handles("a")
        def first(self, payload: Any) -> None:
            self.seen.append("base a")

        @handles("b")
        def second(self, payload: Any) -> None:
            self.seen.append("base b")

    class Derived(Base):
        extra: int = 0

        @handles("a", "c")
        def first(self, payload: Any) -> None:
            self.seen.append("derived a")
            self.extra += 1

    with penstock.open("memory:") as journal:
        journal.topic("t").append_many([penstock.Draft(kind, {}) for kind in ("a", "b", "c")])
        state = Derived.fold(journal.topic("t").read())
    assert state == Derived(["derived a", "base b", "derived a"], 2)
    assert folder_of(Base).kinds == {"a", "b"}


def test_a_state_can_be_pickled_for_other_processes() -> None:
    state = Account(balance=3, owner=Owner("ada"), log=["x"])
    assert pickle.loads(pickle.dumps(state)) == state
    assert pickle.loads(pickle.dumps(Account)) is Account


def test_an_attribute_without_a_type_is_refused_with_the_line_to_write() -> None:
    with pytest.raises(
        ConfigError, match=r"attribute 'count' of projection Untyped .* write `count: int = …` .*ClassVar"
    ):

        class Untyped(Projection):
            total: int = 0
            count = 0

            @handles("a")
            def note(self, event: Any) -> None:
                self.count += 1

    with pytest.raises(ConfigError, match=r"`seen: set = …`"):

        class Seen(Projection):
            seen = set[str]()

            @handles("a")
            def note(self, event: Any) -> None: ...

    with pytest.raises(ConfigError, match="'value' of projection Restarted"):  # the base's default would stay

        class Restarted(Total):
            value = 100


def test_a_field_that_a_plain_base_brings_is_refused() -> None:
    class Counting:
        count: int = 0

        @handles("a")
        def note(self, event: Any) -> None:
            self.count += 1

    with pytest.raises(ConfigError, match=r"field 'count' of Counting, a base of projection Counted, .* a dataclass"):

        class Counted(Counting, Projection):
            total: int = 0

    class Constant:
        rate = 3

    with pytest.raises(ConfigError, match=r"attribute 'rate' of Constant, a base of projection Rated,"):

        class Rated(Constant, Total): ...

    class CountedHere(Counting, Projection):
        count: int = 0

    assert folder_of(CountedHere).kinds == {"a"} and CountedHere(3) == CountedHere(count=3)
    counting = dataclass(Counting)

    class CountedThere(counting, Projection):  # type: ignore[misc, valid-type]
        total: int = 0

    assert CountedThere(count=3).count == 3


def test_methods_properties_classes_and_constants_need_no_type_of_a_field(topic: Topic) -> None:
    class Base(Projection):
        limit: ClassVar[int] = 10
        total: int = 0

        class Unit:
            pass

        @handles("a")
        def add(self, payload: Any) -> None:
            self.total += payload * self.limit * self.factor()

        @property
        def twice(self) -> int:
            return 2 * self.total

        @cached_property
        def thrice(self) -> int:
            return 3 * self.total

        @staticmethod
        def factor() -> int:
            return 1

        @classmethod
        def new(cls) -> Base:
            return cls()

    class Other(Base):
        limit = 20  # a constant stays one

    for number in range(3):
        topic.append("a", number, key="k")
    state = topic.project(Other, "k")
    assert state is not None and (state.total, state.twice, state.thrice) == (60, 120, 180)
    assert topic.project(Base, "k") == Base(30)


def test_an_attribute_that_only_a_handler_sets_is_refused(topic: Topic) -> None:
    class Closing(Projection):
        total: int = 0

        @handles("closed")
        def closed(self, event: Event) -> None:
            self.closed_at = event.seq

        @handles("read")
        def read(self, event: Event) -> None:
            self.total += self.kept

        @cached_property
        def kept(self) -> int:
            return 7

    topic.append("read", key="a")
    assert topic.project(Closing, "a") == Closing(7)
    topic.append("closed", key="a")
    with pytest.raises(ConfigError, match="sets 'closed_at', which is no field"):
        topic.project(Closing, "a")
    with pytest.raises(ConfigError, match="closed_at"):
        topic.rebuild(Closing)


def test_what_cannot_be_a_projection_is_refused_when_declared() -> None:
    with pytest.raises(ConfigError, match="default"):

        class NoDefault(Projection):
            count: int

            @handles("a")
            def note(self, event: Any) -> None: ...

    with pytest.raises(ConfigError, match="handles nothing"):

        class Handless(Projection):
            count: int = 0

    with pytest.raises(ConfigError, match="version"):

        class Zero(Projection, version=0):
            @handles("a")
            def note(self, event: Any) -> None: ...

    with pytest.raises(ConfigError, match="name"):

        class Long(Projection, name="x" * 81):
            @handles("a")
            def note(self, event: Any) -> None: ...

    with pytest.raises(ConfigError, match="at least one kind"):
        handles()
    with pytest.raises(ConfigError, match="declared event type"):
        handles(Owner)
    with pytest.raises(ConfigError, match="kind"):
        handles("")


def test_what_is_no_projection_cannot_be_projected(topic: Topic) -> None:
    for wrong in (dict, Projection, Account(), "Account"):
        for attempt in (topic.project, topic.rebuild, topic.watch):
            with pytest.raises(ConfigError, match="Projection"):
                attempt(wrong)  # type: ignore[operator]


@on("memory")
def test_a_handler_must_be_able_to_take_an_event(topic: Topic) -> None:
    class Blind(Projection):
        count: int = field(default=0)

        @handles("a")
        def note(self) -> None:
            self.count += 1

    class Greedy(Projection):
        count: int = 0

        @handles("a")
        def note(self, *events: Any) -> None: ...

    topic.append("a", key="k")
    for wrong in (Blind, Greedy):
        with pytest.raises(ConfigError, match="handler"):
            topic.project(wrong, "k")


@on("memory")
def test_a_state_that_cannot_be_kept_says_which(topic: Topic) -> None:
    class Odd(Projection):
        thing: Any = None

        @handles("a")
        def note(self, event: Any) -> None:
            self.thing = object()

    topic.append("a", key="k")
    with pytest.raises(ConfigError, match=r"Odd.*cannot be saved"):
        topic.project(Odd, "k")


@only(on_disk=True, reads_beside_writer=True)
def test_a_read_only_journal_projects_without_saving(place: Place, journal: Journal, topic: Topic) -> None:
    deposit(topic, "a", 200)
    reader = place.open(read_only=True)
    assert reader.topic("orders").project(Total, "a") == Total(200)
    assert saved(journal) == []


def test_a_state_is_folded_as_it_was_after_a_position_or_at_a_time(place: Place) -> None:
    clock = ManualClock()
    with place.open(clock=clock) as journal:
        topic = journal.topic("accounts")
        for amount in (1, 10, 100):
            topic.append("deposited", {"amount": amount}, key="a")
            topic.append("deposited", {"amount": 5}, key="b")
            clock.advance(60)
        second = topic.position_at(next(topic.read(4, 1)).recorded_at)
        assert [topic.project(Account, "a", through=seq).balance for seq in (1, 2, 3, 6)] == [1, 1, 11, 111]  # type: ignore[union-attr]
        assert second == 4 and topic.project(Account, through=second) == Account(21)
        at = next(topic.read(2, 1)).recorded_at
        assert topic.project(Account, "a", as_of=at + timedelta(seconds=1)) == Account(11)
        assert topic.project(Account, "a", as_of=at - timedelta(hours=1)) is None
        assert topic.project(Account, "a", through=0) is None and topic.project(Account, "c", through=6) is None


def test_a_state_that_cannot_be_folded_any_more_says_so(topic: Topic) -> None:
    topic.append_many([Draft("deposited", {"amount": 1}, key="a")] * 5)
    topic.compact(3)
    with pytest.raises(PositionTrimmed, match="cannot be folded any more"):
        topic.project(Account, "a", through=2)
    with pytest.raises(ConfigError, match="not both"):
        topic.project(Account, "a", through=5, as_of=datetime.now(UTC))
    with pytest.raises(ConfigError, match="through"):
        topic.project(Account, "a", through=-1)


class Seen(Projection):
    """The payloads of an entity's events."""

    payloads: list[int] = []

    @handles("placed")
    def add(self, event: Any) -> None:
        self.payloads.append(event.payload)


def test_a_state_is_void_as_soon_as_one_of_its_events_is_removed(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when compaction by key has come to its end: it may be killed before."""
    for number, key in enumerate("abb", 1):
        topic.append("placed", number, key=key)
    assert topic.compact_keys() == 1  # of the positions so far
    topic.append("placed", 4, key="a")
    assert topic.project(Seen, "a") == Seen([1, 4])
    run_relaxed = Writer.run_relaxed

    def killed_at_the_end(writer: Writer, apply: Any, *args: Any) -> Any:
        if apply.__name__ == "end":
            raise KeyboardInterrupt
        return run_relaxed(writer, apply, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Writer, "run_relaxed", killed_at_the_end)
        topic.compact_keys()
    assert payloads(topic.read(key="a")) == [4] and topic.project(Seen, "a") == Seen([4])


def test_a_state_of_an_imported_topic_is_void_when_one_of_its_events_is_removed(
    journal: Journal, topic: Topic, tmp_path: Path
) -> None:
    """An import of events with positions missing says that they were compacted, all of them."""
    with penstock.open("memory:") as other:
        source = other.topic("orders")
        for number, key in enumerate("caba", 1):
            source.append("placed", number, key=key)
        source.compact_keys()
        source.append("placed", 5, key="a")
        other.export(tmp_path / "copy")
    journal.import_(tmp_path / "copy")
    assert topic.project(Seen, "a") == Seen([4, 5])
    assert topic.compact_keys() == 1
    assert topic.project(Seen, "a") == Seen([5]) and len(topic) == 3
    topic.append("placed", 6, key="a")
    assert topic.project(Seen, "a") == Seen([5, 6]) and seqs(topic.read()) == [1, 3, 5, 6]


class Kinds(Projection):
    """Which kinds of events an entity had."""

    seen: list[str] = []

    @handles("placed", "made anew")
    def add(self, event: Any) -> None:
        self.seen.append(event.kind)


def make_anew(journal: Journal, count: int = 1) -> None:
    journal.drop_topic("orders", force=True)
    journal.topic("orders").append_many([Draft("made anew", key="a") for _ in range(count)])


@pytest.mark.parametrize("key", ["a", None])
def test_a_watch_goes_on_with_a_topic_made_anew(journal: Journal, topic: Topic, key: str | None) -> None:
    topic.append("placed", key="a")
    with topic.watch(Kinds, key) as watch:
        assert watch.next(0) == Kinds(["placed"]) and watch.next(0) is None
        make_anew(journal)
        assert watch.next(0) == Kinds(["made anew"]) and watch.generation == 2
        assert watch.next(0) is None


@pytest.mark.parametrize("key", ["a", None])
def test_a_state_of_a_dropped_topic_has_changed_in_one_made_anew(
    journal: Journal, topic: Topic, key: str | None
) -> None:
    topic.append("placed", key="a")
    journal.drop_topic("orders")
    topic.configure()
    assert topic.project_if_changed(Kinds, key, 1) == (0, None) and topic.rebuild(Kinds).through == 0
    topic.append("made anew", key="a")
    assert topic.project_if_changed(Kinds, key, 1) == (2, Kinds(["made anew"]))


def test_a_state_folded_while_its_topic_was_dropped_is_not_cached(journal: Journal, topic: Topic) -> None:
    topic.append("placed", key="a")

    class Slow(Kinds):
        @handles("placed")
        def dropped_here(self, event: Any) -> None:
            make_anew(journal)

    assert topic.project(Slow, "a") == Slow(["placed"])
    for _ in range(2):
        assert topic.project(Slow, "a", freshness="cached") == Slow(["made anew"])
    journal.drop_topic("orders")
    assert topic.project(Slow, "a", freshness="cached") is None


@only(second_open=True)
def test_a_state_of_a_topic_that_another_journal_object_dropped_is_not_cached(place: Place, topic: Topic) -> None:
    other = place.open()
    topic.append("placed", key="a")
    assert topic.project(Kinds, "a") == topic.project(Kinds, "a", freshness="cached") == Kinds(["placed"])
    make_anew(other)
    assert topic.project(Kinds, "a", freshness="cached") == Kinds(["made anew"])
    other.drop_topic("orders")
    assert topic.project(Kinds, "a", freshness="cached") is None


@only(reads_beside_writer=True, on_disk=True)
def test_a_reader_caches_no_state_of_a_dropped_topic(place: Place, journal: Journal, topic: Topic) -> None:
    topic.append("placed", key="a")
    reader = place.open(read_only=True).topic("orders")
    assert reader.project(Kinds, "a") == Kinds(["placed"])
    make_anew(journal)
    assert reader.project(Kinds, "a", freshness="cached") == Kinds(["made anew"])


def test_a_cached_state_asks_which_topic_it_is_only_after_a_commit(
    journal: Journal, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append_many([Draft("placed", key=key) for key in "ab"])
    for key in "ab":
        topic.project(Kinds, key)
    journal.maintain()  # nothing is left to do in the background
    asked: list[str] = []

    def asking(snap: Snapshot, name: str) -> TopicRecord | None:
        asked.append(name)
        return load_record(snap, name)

    monkeypatch.setattr(states, "load_record", asking)
    for _ in range(2):
        for key in "ab" * 10:
            assert topic.project(Kinds, key, freshness="cached") == Kinds(["placed"])
        assert 1 <= len(asked) <= 3, "one of them, but for commits in the background"
        asked.clear()
        topic.append("placed", key="c")


def test_a_stream_keeps_no_state_of_a_dropped_topic_with_the_one_made_anew(journal: Journal, topic: Topic) -> None:
    topic.append("placed", key="a")
    wanted = StreamedStates("orders", "Kinds", 1, "query")

    def keep(*states: StreamedState) -> None:
        journal._core.run(lambda commit: save_streamed(commit, wanted, states, whole=True))  # type: ignore[attr-defined]

    old = StreamedState("a", Kinds.__projection__.fingerprint, 1, 1, pack_state(Kinds(["placed"])))
    keep(old)
    make_anew(journal)
    with pytest.raises(PositionTrimmed):
        keep(old)
    new = StreamedState("a", Kinds.__projection__.fingerprint, 2, 2, pack_state(Kinds(["made anew"])))
    keep(new)
    with journal._engine.read() as snap:  # type: ignore[attr-defined]
        assert load_streamed(snap, states_topic(snap, "orders"), wanted, "a") == new
    assert topic.project(Kinds, "a", freshness="cached") == Kinds(["made anew"])
