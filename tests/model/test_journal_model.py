"""The journal against a model of it: random operations, crashes, clocks that go back; after each, both must agree."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from journal_model import Known, Refused, TopicModel

import penstock
from dead_store import copy_as_it_is
from nightly import examples
from penstock import Draft, Journal, ManualClock, Receipt, Topic
from penstock.errors import Conflict, PositionTrimmed
from penstock.journal.commit import recent as tail
from penstock.journal.upkeep.housekeeper import Housekeeper

SCHEMES = ("memory", "sqlite", "rocksdb", "file", "slatedb")
TOPICS = st.sampled_from(["a", "b"])
CONSUMERS = st.sampled_from(["c1", "c2"])
_names = itertools.count()

drafts = st.builds(
    Draft,
    kind=st.sampled_from(["placed", "paid", "é"]),
    payload=st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=5), st.binary(max_size=5), st.just({"a": [1]})),
    key=st.sampled_from([None, None, "x", "y", "z"]),
    scope=st.sampled_from([None, None, "s"]),
    headers=st.sampled_from([None, None, {}, {"h": "1"}, {"h": "2", "i": ""}]),
    occurred_at=st.sampled_from([None, None, datetime(1969, 5, 5, tzinfo=UTC), datetime(2024, 5, 5, tzinfo=UTC)]),
    dedup=st.sampled_from([None, None, None, "d1", "d2"]),
    correlation=st.sampled_from([None, None, None, "c"]),
)


class Rollback(Exception):
    pass


class JournalMachine(RuleBasedStateMachine):
    """Everything one process does to a journal."""

    scheme = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.url = f"memory:journal-model-{next(_names)}" if self.scheme == "memory" else self._place("store")
        self.clock = ManualClock()
        self.topics: dict[str, TopicModel] = {}
        self.ids: dict[str, Known] = {}
        self.marks: dict[str, int] = {}
        self.copies = 0
        # Few commits are enough for a merge: the machine's topics are short.
        self.fan_in, tail.MERGE_FAN_IN = tail.MERGE_FAN_IN, 5
        self.journal = self._open()

    def _place(self, name: str) -> str:
        return f"{self.scheme}:{self.folder / name}"

    def _open(self) -> Journal:
        with mock.patch.object(Housekeeper, "begin"):  # a thread of its own would come at another step each time
            journal = penstock.open(self.url, clock=self.clock, durability="process")
        # Housekeeping happens when the machine says so: the model must know of it.
        journal._core.housekeeper.request = lambda topic: None  # type: ignore[method-assign]
        return journal

    def teardown(self) -> None:
        self.journal.close()
        tail.MERGE_FAN_IN = self.fan_in
        shutil.rmtree(self.folder)

    # appending

    def _drawn(self, data: st.DataObject, model: TopicModel, count: int) -> list[Draft]:
        made = data.draw(st.lists(drafts, min_size=count, max_size=count))
        for row, draft in enumerate(made):
            choices: list[Any] = [None, None, *range(max(0, row - 2), row), *list(self.ids)[-3:], "unknown"]
            draft.cause = data.draw(st.sampled_from(choices))
            newest = model.newest.get(draft.key or "", 0)
            if draft.key is not None and (newest == 0 or newest in model.events):
                draft.expect = data.draw(st.sampled_from([None, None, None, newest, newest + 1]))
        return made

    def _expect(self, model: TopicModel, made: list[Draft]) -> list[tuple[Known, bool]] | None:
        causes = {known.id: known for topic in self.topics.values() for known in topic.stored()}
        causes.update({known.id: known for known in model.stored()})
        try:
            return model.append(made, self.clock.now_ms(), causes)
        except Refused:
            return None

    def _compare(self, receipts: list[Receipt], made: list[tuple[Known, bool]]) -> None:
        """Receipts agree with the model, which now learns the ids that were given."""
        assert [(r.seq, r.duplicate) for r in receipts] == [(known.seq, duplicate) for known, duplicate in made]
        for receipt, (known, duplicate) in zip(receipts, made, strict=True):
            if not duplicate:
                assert not known.id
                known.id = receipt.id
                self.ids[known.id] = known
            assert receipt.id == known.id
        for known, duplicate in made:
            if not duplicate and known.causation and known.causation.startswith("row "):
                cause, _ = made[int(known.causation[4:])]
                if known.correlation == known.causation:
                    known.correlation = cause.correlation or cause.id
                known.causation = cause.id
        assert [r.correlation_id for r in receipts] == [known.correlation for known, _ in made]

    def _topic(self, name: str) -> tuple[Topic, TopicModel]:
        return self.journal.topic(name), self.topics.get(name, TopicModel())

    @rule(
        name=TOPICS,
        count=st.sampled_from([1, 1, 2, 3, 6]),
        data=st.data(),
        way=st.sampled_from(["many", "submit", "one"]),
    )
    def append(self, name: str, count: int, data: st.DataObject, way: str) -> None:
        topic, model = self._topic(name)
        made = self._drawn(data, model, 1 if way == "one" else count)
        expected = self._expect(model, made)
        call: Callable[[], list[Receipt]]
        if way == "many":
            call = lambda: topic.append_many(made)
        elif way == "submit":
            call = lambda: topic.submit_many(made).result(60)
        else:
            (draft,) = made
            fields = {field: getattr(draft, field) for field in Draft.__struct_fields__[2:]}
            call = lambda: [
                topic.append(draft.kind, draft.payload, **{k: v for k, v in fields.items() if v is not None})
            ]
        if expected is None:
            with pytest.raises(Conflict):
                call()
        else:
            self._compare(call(), expected)
            self.topics[name] = model

    @rule(data=st.data(), keep=st.booleans(), steps=st.integers(1, 4))
    def transaction(self, data: st.DataObject, keep: bool, steps: int) -> None:
        before = {name: model.copy() for name, model in self.topics.items()}
        ids, marks = dict(self.ids), dict(self.marks)
        try:
            with self.journal.transaction() as tx:
                for _ in range(steps):
                    name = data.draw(TOPICS)
                    model = self.topics.get(name, TopicModel())
                    step = data.draw(st.sampled_from(["append", "append", "read", "cursor", "mark"]))
                    if step == "append":
                        made = self._drawn(data, model, data.draw(st.integers(1, 3)))
                        expected = self._expect(model, made)
                        if expected is None:
                            with pytest.raises(Conflict):
                                tx.append_many(name, made)
                        else:
                            self._compare(tx.append_many(name, made), expected)
                            self.topics[name] = model
                    elif step == "read":
                        after = data.draw(st.integers(model.trimmed, model.latest + 1))
                        wanted = [known.as_dict(name) for known in model.stored() if known.seq > after]
                        assert [event.as_dict() for event in tx.read(name, after=after)] == wanted
                    elif step == "cursor" and name in self.topics:
                        seq = data.draw(st.integers(0, model.latest))
                        tx.commit(name, "c1", seq)
                        model.cursors["c1"] = max(seq, model.cursors.get("c1", 0))
                        assert tx.cursor(name, "c1") == model.cursors["c1"]
                    elif step == "mark":
                        self.marks["m"] = data.draw(st.integers(-3, 3))
                        tx.set_mark("m", self.marks["m"])
                if not keep:
                    raise Rollback
        except Rollback:
            self.topics, self.ids, self.marks = before, ids, marks

    # cursors and compaction

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), consumer=CONSUMERS, step=st.sampled_from(["commit", "commit", "seek", "forget"]))
    def move_cursor(self, data: st.DataObject, consumer: str, step: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic, model = self._topic(name)
        if step == "forget":
            assert topic.forget(consumer) == (model.cursors.pop(consumer, None) is not None)
            return
        seq = data.draw(st.integers(0, model.latest))
        if step == "commit":
            topic.commit(consumer, seq)
            model.cursors[consumer] = max(seq, model.cursors.get(consumer, 0))
        else:
            topic.seek(consumer, seq)
            model.cursors[consumer] = seq

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), force=st.booleans())
    def compact(self, data: st.DataObject, force: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic, model = self._topic(name)
        through = data.draw(st.integers(0, model.latest + 2))
        reach = min(through, model.latest)
        slowest = min(model.cursors.values(), default=reach)
        stopped = not force and slowest < reach
        report = topic.compact(through, force=force)
        assert report.removed == model.compact(slowest if stopped else reach)
        assert (report.remaining, report.latest) == (len(model.events), model.latest)
        assert (report.stopped_at is not None) == stopped
        if stopped:
            assert model.cursors[report.stopped_at or ""] == slowest

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def compact_keys(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic, model = self._topic(name)
        assert topic.compact_keys() == model.compact_keys()

    @rule(
        name=TOPICS,
        change=st.sampled_from(
            [("max_events", 5), ("max_events", None), ("max_age", 50.0), ("max_age", None), ("by_key", True),
             ("by_key", False), ("dedup_window", 30.0), ("dedup_window", 500.0), ("dedup_window", None)]
        ),
    )  # fmt: skip
    def configure(self, name: str, change: tuple[str, Any]) -> None:
        topic, model = self._topic(name)
        field, value = change
        settings = topic.configure(**{field: value})
        assert getattr(settings, field) == value == getattr(topic.settings, field)
        if field == "dedup_window":
            model.change_window(value, self.clock.now_ms())
        else:
            setattr(model, field, value)
        self.topics[name] = model
        self._remove_what_is_too_old()

    def _remove_what_is_too_old(self) -> None:
        """Readers see nothing past its `max_age`, removed or not: here it is removed at once, so that a clock that goes
        back brings nothing to light again. What is hidden and still stored has contract tests of its own."""
        if any(model.max_age is not None for model in self.topics.values()):
            self.maintain()

    @rule()
    def maintain(self) -> None:
        self.journal.maintain()
        for model in self.topics.values():
            model.maintain(self.clock.now_ms())

    # time, closing, crashing

    @rule(by=st.sampled_from([0.001, 1, 20, 100, 1000, -0.5, -40, -5000]))
    def time_passes(self, by: float) -> None:
        self.clock.advance(by)
        self._remove_what_is_too_old()

    @rule()
    def close_and_reopen(self) -> None:
        self.journal.close()
        self.journal = self._open()

    @precondition(lambda self: self.scheme not in ("memory", "rocksdb"))
    @rule()
    def crash_and_reopen(self) -> None:
        """Goes on with a copy of the files as they are: what a killed process leaves behind.

        Not for RocksDB, whose own threads exchange files while they are copied; the crash tests kill it for real.
        """
        self.copies += 1
        old, name = self.url.partition(":")[2], f"crashed-{self.copies}"
        if Path(old).is_dir():
            copy_as_it_is(Path(old), self.folder / name)
        else:
            for suffix in ("", "-wal"):
                shutil.copy(old + suffix, f"{self.folder / name}{suffix}")
        self.journal.close()
        self.url = self._place(name)
        self.journal = self._open()

    # looking

    @rule(name=TOPICS, data=st.data())
    def read(self, name: str, data: st.DataObject) -> None:
        topic, model = self._topic(name)
        after = data.draw(st.integers(0, model.latest + 1))
        through = data.draw(st.sampled_from([None, model.latest, max(0, model.latest - 2), 3]))
        limit = data.draw(st.sampled_from([None, None, 0, 1, 3]))
        reverse = data.draw(st.booleans())
        key = data.draw(st.sampled_from([None, None, "x", "nobody"]))
        kind = data.draw(st.sampled_from([None, None, "paid", ["paid", "é"]]))
        scope = data.draw(st.sampled_from([None, None, "s"]))
        moments = [known.recorded_ms for known in model.stored()]
        since = data.draw(st.sampled_from([None, None, *moments[::3]]))
        kinds = None if kind is None else {kind} if isinstance(kind, str) else set(kind)
        wanted = [
            known.as_dict(name)
            for known in model.stored()
            if known.seq > after
            and (through is None or known.seq <= through)
            and (key is None or known.key == key)
            and (kinds is None or known.kind in kinds)
            and (scope is None or known.scope == scope)
            and (since is None or known.recorded_ms >= since)
        ]
        if reverse:
            wanted.reverse()
        reading = topic.read(
            after,
            limit,
            through=through,
            key=key,
            kind=kind,
            scope=scope,
            since=None if since is None else datetime.fromtimestamp(since / 1000, UTC),
            reverse=reverse,
        )
        if 0 < after < model.trimmed and limit != 0:
            with pytest.raises(PositionTrimmed) as trimmed:
                list(reading)
            assert trimmed.value.oldest == min(model.events, default=model.trimmed + 1)
        else:
            assert [event.as_dict() for event in reading] == wanted[:limit]

    @rule(name=TOPICS, data=st.data())
    def find(self, name: str, data: st.DataObject) -> None:
        topic, model = self._topic(name)
        seq = data.draw(st.integers(0, model.latest + 1))
        event, known = topic.get(seq), model.events.get(seq)
        assert (event.as_dict() if event else None) == (known.as_dict(name) if known else None)
        for id in data.draw(st.lists(st.sampled_from(sorted(self.ids)), max_size=3)) if self.ids else ():
            found, known = topic.find(id), self.ids[id]
            if known in model.events.values():
                assert found is not None and found.as_dict() == known.as_dict(name)
            else:
                assert found is None
        ms = self.clock.now_ms() - data.draw(st.sampled_from([-1, 0, 1, 1000, 60_000]))
        assert topic.position_at(datetime.fromtimestamp(ms / 1000, UTC)) == model.position_before(ms)

    @invariant()
    def both_agree(self) -> None:
        assert self.journal.topics() == sorted(self.topics)
        assert self.journal.mark("m") == self.marks.get("m")
        for name, model in self.topics.items():
            topic = self.journal.topic(name)
            assert [event.as_dict() for event in topic.read()] == [known.as_dict(name) for known in model.stored()]
            assert (topic.latest, len(topic)) == (model.latest, len(model.events))
            assert topic.oldest == min(model.events, default=0)
            assert topic.cursors() == model.cursors
            for consumer, at in model.cursors.items():
                assert topic.cursor(consumer) == at and topic.lag(consumer) == model.latest - at

    @initialize()
    def begin(self) -> None:
        assert self.journal.topics() == []


def _machine(scheme: str) -> type[RuleBasedStateMachine]:
    return type(f"{scheme.title()}Machine", (JournalMachine,), {"scheme": scheme})


def _case(scheme: str, count: int) -> Any:
    case = _machine(scheme).TestCase  # type: ignore[attr-defined]
    case.settings = settings(max_examples=examples(count), stateful_step_count=40, deadline=None)
    return case


TestMemory = _case("memory", 60)
TestSqlite = _case("sqlite", 12)
TestRocksdb = _case("rocksdb", 8)
TestFile = _case("file", 12)
TestSlatedb = _case("slatedb", 8)


def test_every_engine_has_its_machine() -> None:
    from penstock.engine.url import ENGINES, OBJECT_SCHEMES

    buckets = set(OBJECT_SCHEMES) - {"slatedb"}  # the same engine, on another store
    assert set(ENGINES) - buckets == set(SCHEMES) and all(f"Test{scheme.title()}" in globals() for scheme in SCHEMES)
