"""What a program does with topics: appends, reads, cursors, retention, projections, drops; and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

import penstock
from model.homes import Home, Lockstep, Raised, step
from model.topic_model import Known, Made, Positions, Refused, TopicModel
from penstock import Draft, Event, EventQuery, Journal, ManualClock, Projection, Topic
from penstock.errors import ConfigError, Conflict, PositionTrimmed, TopicInUse, UnknownTopic

NAMES = ["a", "b"]
TOPICS = st.sampled_from(NAMES)
CONSUMERS = st.sampled_from(["c1", "c2"])
KEYS = ["x", "xy", "z"]
KINDS = st.sampled_from([None, None, "placed", ("paid", "é")])
WHICH = st.integers(0, 1)

drafts = st.builds(
    Draft,
    kind=st.sampled_from(["placed", "paid", "é"]),
    payload=st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=5), st.binary(max_size=5), st.just({"a": [1]})),
    key=st.sampled_from([None, None, *KEYS]),
    scope=st.sampled_from([None, None, "s"]),
    headers=st.sampled_from([None, None, {}, {"h": "1"}, {"h": "2", "i": ""}]),
    occurred_at=st.sampled_from([None, None, datetime(1969, 5, 5, tzinfo=UTC), datetime(2024, 5, 5, tzinfo=UTC)]),
    dedup=st.sampled_from([None, None, None, "d1", "d2"]),
    correlation=st.sampled_from([None, None, None, "c"]),
    tags=st.sampled_from([None, None, ("a",), ("b", "a"), ["c", "a", "c"]]),
)

CONDITIONS: dict[str, Callable[[Known], bool]] = {
    "payload > 0": lambda known: isinstance(known.payload, int) and known.payload > 0,
    "headers.h = '1' or seq >= 4": lambda known: known.headers.get("h") == "1" or known.seq >= 4,
    "key in ('x', 'z') and not kind = 'é'": lambda known: known.key in ("x", "z") and known.kind != "é",
    "payload.a contains 1": lambda known: isinstance(known.payload, dict),
    "tags contains 'b' or len(tags) = 1": lambda known: "b" in known.tags or len(known.tags) == 1,
    "tags contains 'a'": lambda known: "a" in known.tags,
}


class Seen(Projection):
    """Which events were folded."""

    seqs: list[int] = []
    kinds: dict[str, int] = {}

    @penstock.on("placed", "é")
    def note(self, event: Event) -> None:
        self.seqs.append(event.seq)

    @penstock.on("placed", "paid")
    def count(self, event: Event) -> None:
        self.kinds[event.kind] = self.kinds.get(event.kind, 0) + 1


def folded(events: list[Known]) -> dict[str, Any] | None:
    kinds = [known.kind for known in events]
    seqs = [known.seq for known in events if known.kind != "paid"]
    counts = {kind: kinds.count(kind) for kind in ("placed", "paid") if kind in kinds}
    return {"seqs": seqs, "kinds": counts} if events else None


def plain(known: Known) -> dict[str, Any]:
    """An event as a home's answer has it."""
    return {**known.as_dict(), "tags": list(known.tags)}


def shown(events: list[Known]) -> list[dict[str, Any]]:
    return [plain(known) for known in events]


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def place(event: Event | Known) -> tuple[str, int]:
    return event.topic, event.seq


def in_order(events: Iterator[Event]) -> list[Event]:
    """Events of several topics, by topic: those of one millisecond are in no order across topics."""
    return sorted(events, key=place)


def as_set(given: str | Iterable[str]) -> set[str]:
    return {given} if isinstance(given, str) else set(given)


class Rollback(Exception):
    pass


class TopicRules(Lockstep):
    clock: ManualClock
    positions: Positions
    topics: dict[str, TopicModel]
    marks: dict[str, int]
    following: tuple[str, int, dict[str, Any], list[Any]] | None
    """A subscription: its topic, the last position heard, what it chooses, and its handles."""

    def ask_topic(self, name: str, question: Callable[[Topic], object], which: int = 0) -> Any:
        return self.ask(lambda home: question(home.journal(which).topic(name)))

    def ask_store(self, question: Callable[[Home, Journal], object], refused: Callable[[Journal], object]) -> Any:
        """What is not served: the client says so, and the store behind it is asked."""
        for home in self.homes:
            if home.served:
                with pytest.raises(ConfigError):
                    refused(home.journal(0))
        return self.ask(lambda home: question(home, home.store(0)))

    def model(self, name: str) -> TopicModel:
        """The topic, or what it would be from its first append on."""
        return self.topics.get(name) or self.positions.made(name)

    def seen(self, name: str) -> TopicModel:
        """The topic as a reader sees it: one that was dropped is like one that never was."""
        return self.topics.get(name) or TopicModel(name, self.positions.id_of)

    def known(self, id: str) -> Known | None:
        return next((known for topic in self.topics.values() for known in topic.stored() if known.id == id), None)

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────
    def drawn(self, data: st.DataObject, model: TopicModel, count: int) -> list[Draft]:
        made: list[Draft] = data.draw(st.lists(drafts, min_size=count, max_size=count))
        ids = [known.id for topic in self.topics.values() for known in topic.stored()[-2:]]
        for row, draft in enumerate(made):
            draft.cause = data.draw(st.sampled_from([None, None, *range(max(0, row - 2), row), *ids, "unknown"]))
            newest = model.newest.get(draft.key or "", 0)
            if draft.key is not None and (newest == 0 or newest in model.events):
                draft.expect = data.draw(st.sampled_from([None, None, None, newest, newest + 1]))
            if data.draw(st.sampled_from([False, False, False, True])):
                tags, kinds = data.draw(st.sampled_from([(), "a", ("a", "b"), "c"])), data.draw(KINDS)
                draft.unless = EventQuery(tags=tags, kinds=kinds)
                later = max(model.trimmed, model.latest - 2, 0)
                draft.after = data.draw(st.sampled_from([None, model.trimmed, later, model.latest]))
        return made

    def expected(self, model: TopicModel, made: list[Draft]) -> Made | Raised:
        try:
            return model.append(made, self.clock.now_ms(), lambda id: self.known(id) or self._own(model, id))
        except Refused as refused:
            return Raised(Conflict, {"expected": refused.expected, "actual": refused.actual})

    def _own(self, model: TopicModel, id: str) -> Known | None:
        return next((known for known in model.stored() if known.id == id), None)

    def sent(self, home: Home, made: list[Draft]) -> list[Draft]:
        """Drafts that name their causes by the ids they have in a home."""
        return [msgspec.structs.replace(draft, cause=home.real(draft.cause)) for draft in made]

    @step(
        8,
        name=TOPICS,
        count=st.sampled_from([1, 1, 2, 3, 6]),
        data=st.data(),
        way=st.sampled_from(["many", "submit", "one"]),
        which=WHICH,
    )
    def append(self, name: str, count: int, data: st.DataObject, way: str, which: int) -> None:
        self.append_drafts(name, self.drawn(data, self.model(name), 1 if way == "one" else count), way, which)

    def append_drafts(self, name: str, made: list[Draft], way: str = "many", which: int = 0) -> None:
        model = self.model(name)
        expected = self.expected(model, made)

        def call(home: Home) -> object:
            topic, sent = home.journal(which).topic(name), self.sent(home, made)
            if way == "many":
                return topic.append_many(sent)
            if way == "submit":
                return topic.submit_many(sent).result(60)
            fields = {field: getattr(sent[0], field) for field in Draft.__struct_fields__[2:]}
            given: Any = {field: value for field, value in fields.items() if field != "topic" and value is not None}
            return [topic.append(sent[0].kind, sent[0].payload, **given)]

        answer = self.ask(call)
        if isinstance(expected, Raised):
            assert answer == expected
        else:
            assert answer == [known.receipt(duplicate) for known, duplicate in expected]
            if made:
                self.topics[name] = model

    @step(2, data=st.data(), names=st.lists(TOPICS, min_size=1, max_size=4), fails=st.booleans(), which=WHICH)
    def flush_an_outbox(self, data: st.DataObject, names: list[str], fails: bool, which: int) -> None:
        models = {name: self.model(name).copy() for name in names}
        made: list[Draft] = data.draw(st.lists(drafts, min_size=len(names), max_size=len(names)))
        staged = list(zip(names, made, strict=True))
        if fails:
            staged.append(("a", Draft("paid", key="x", expect=10_000)))
        expected: list[Any] = []
        before = self.topics
        # One batch: a topic's drafts come together, the dedup keys of one row are known to the next.
        for name in dict.fromkeys(names):
            mine = [(row, draft) for row, (at, draft) in enumerate(staged[: len(names)]) if at == name]
            appended = models[name].append([draft for _, draft in mine], self.clock.now_ms(), self.known)
            expected += [(row, known.receipt(again)) for (row, _), (known, again) in zip(mine, appended, strict=True)]

        def call(home: Home) -> object:
            outbox = home.journal(which).outbox()
            for name, draft in staged:
                fields = {field: getattr(draft, field) for field in Draft.__struct_fields__[3:]}
                outbox.stage(name, draft.kind, draft.payload, **fields)
            return outbox.flush()

        answer = self.ask(call)
        if fails:
            assert isinstance(answer, Raised) and answer.error is Conflict
            assert self.topics is before
        else:
            assert answer == [receipt for _, receipt in sorted(expected)]
            self.topics |= models

    @step(2, data=st.data(), keep=st.booleans(), steps=st.integers(1, 4))
    def transaction(self, data: st.DataObject, keep: bool, steps: int) -> None:
        before, marks = {name: model.copy() for name, model in self.topics.items()}, dict(self.marks)
        plan: list[tuple[str, str, Any]] = []
        wanted: list[Any] = []
        for _ in range(steps):
            name = data.draw(TOPICS)
            model = self.model(name)
            step = data.draw(st.sampled_from(["append", "append", "read", "cursor", "mark"]))
            if step == "append":
                made = self.drawn(data, model, data.draw(st.integers(1, 3)))
                expected = self.expected(model, made)
                plan.append((step, name, made))
                if isinstance(expected, Raised):
                    wanted.append(expected)
                else:
                    wanted.append([known.receipt(duplicate) for known, duplicate in expected])
                    self.topics[name] = model
            elif step == "read":
                after = data.draw(st.integers(model.trimmed, model.latest + 1))
                plan.append((step, name, after))
                wanted.append(shown([known for known in model.stored() if known.seq > after]))
            elif step == "cursor" and name in self.topics:
                seq = data.draw(st.integers(0, model.latest))
                model.move("c1", seq)
                plan.append((step, name, seq))
                wanted.append(model.cursors["c1"])
            elif step == "mark":
                self.marks["m"] = data.draw(st.integers(-3, 3))
                plan.append((step, name, self.marks["m"]))
                wanted.append(self.marks["m"])

        def call(home: Home, journal: Journal) -> list[Any]:
            answers: list[Any] = []
            try:
                with journal.transaction() as tx:
                    for step, name, given in plan:
                        if step == "append":
                            try:
                                answers.append(home.plain(tx.append_many(name, self.sent(home, given))))
                            except Conflict as error:
                                answers.append(error)
                        elif step == "read":
                            answers.append(home.plain(tx.read(name, after=given)))
                        elif step == "cursor":
                            tx.commit(name, "c1", given)
                            answers.append(tx.cursor(name, "c1"))
                        else:
                            tx.set_mark("m", given)
                            answers.append(tx.get_mark("m"))
                    if not keep:
                        raise Rollback
            except Rollback:
                pass
            return [home.raised(one) if isinstance(one, Exception) else one for one in answers]

        assert self.ask_store(call, lambda journal: journal.transaction()) == wanted
        if not keep:
            self.topics, self.marks = before, marks

    # ── cursors and compaction ───────────────────────────────────────────────────────────────────────────────────────
    @step(
        3,
        when=lambda self: self.topics,
        data=st.data(),
        consumer=CONSUMERS,
        step=st.sampled_from(["commit", "commit", "seek", "forget"]),
        which=WHICH,
    )
    def move_cursor(self, data: st.DataObject, consumer: str, step: str, which: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        model = self.model(name)
        if step == "forget":
            forgotten = model.cursors.pop(consumer, None) is not None
            assert self.ask_topic(name, lambda topic: topic.forget(consumer), which) == forgotten
            return
        seq = data.draw(st.integers(0, model.latest))
        if step == "commit":
            assert self.ask_topic(name, lambda topic: topic.commit(consumer, seq), which) is None
            model.move(consumer, seq)
        else:
            assert self.ask_topic(name, lambda topic: topic.seek(consumer, seq), which) is None
            model.move(consumer, seq, back=True)

    @step(2, when=lambda self: self.topics, data=st.data(), force=st.booleans(), which=WHICH)
    def compact(self, data: st.DataObject, force: bool, which: int) -> None:
        self.stop_following()
        name = data.draw(st.sampled_from(sorted(self.topics)))
        model = self.model(name)
        through = data.draw(st.integers(0, model.latest + 2))
        reach = min(through, model.latest)
        slowest = min(model.cursors.values(), default=reach)
        stopped = not force and slowest < reach
        report = self.ask_topic(name, lambda topic: topic.compact(through, force=force), which)
        assert report["removed"] == model.compact(slowest if stopped else reach)
        assert (report["remaining"], report["latest"]) == (len(model.events), model.latest)
        assert (report["stopped_at"] is not None) == stopped
        if stopped:
            assert model.cursors[report["stopped_at"]] == slowest

    @step(1, when=lambda self: self.topics, data=st.data(), which=WHICH)
    def compact_keys(self, data: st.DataObject, which: int) -> None:
        self.stop_following()
        name = data.draw(st.sampled_from(sorted(self.topics)))
        removed = self.model(name).compact_keys()
        assert self.ask_topic(name, lambda topic: topic.compact_keys(), which) == removed

    @step(2, name=TOPICS,
        change=st.sampled_from(
            [("max_events", 5), ("max_events", None), ("max_age", 50.0), ("max_age", None), ("by_key", True),
             ("by_key", False), ("dedup_window", 30.0), ("dedup_window", 500.0), ("dedup_window", None)]
        ),
        which=WHICH)  # fmt: skip
    def configure_topic(self, name: str, change: tuple[str, Any], which: int) -> None:
        model = self.model(name)
        field, value = change
        changes: Any = {field: value}
        settings = self.ask_topic(name, lambda topic: topic.configure(**changes), which)
        assert settings[field] == value
        assert self.ask_topic(name, lambda topic: topic.settings, 1 - which) == settings
        if field == "dedup_window":
            model.change_window(value, self.clock.now_ms())
        else:
            setattr(model, field, value)
        self.topics[name] = model
        self.remove_what_is_too_old()

    def remove_what_is_too_old(self) -> None:
        """Readers see nothing past its `max_age`, removed or not: here it is removed at once, so that a clock that goes
        back brings nothing to light again. What is hidden and still stored has contract tests of its own."""
        if any(model.max_age is not None for model in self.topics.values()):
            self.maintain(0)

    @step(1, which=WHICH)
    def maintain(self, which: int) -> None:
        self.stop_following()
        assert self.ask(lambda home: home.journal(which).maintain()) is None
        for model in self.topics.values():
            model.maintain(self.clock.now_ms())

    # ── dropping ─────────────────────────────────────────────────────────────────────────────────────────────────────
    @step(1, name=TOPICS, force=st.booleans(), which=WHICH)
    def drop_topic(self, name: str, force: bool, which: int) -> None:
        self.stop_following()
        answer = self.ask(lambda home: home.journal(which).drop_topic(name, force=force))
        model = self.topics.get(name)
        if model is None:
            assert answer == Raised(UnknownTopic)
        elif model.cursors and not force:
            assert answer == Raised(TopicInUse)
        else:
            assert answer == {"topic": name, "events": len(model.events), "files": []}
            self.positions.dropped(name, model.latest, model.recorded_ms)
            del self.topics[name]

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────
    filters = st.builds(
        lambda by_key, others: by_key | others,
        st.sampled_from([{}, {}, {}, {}, {"key": "x"}, {"key": "nobody"}, {"key_prefix": "x"}, {"key_prefix": "q"}]),
        st.sampled_from(
            [{}, {}, {}, {"kind": "paid"}, {"kind": ["paid", "é"]}, {"kind": []}, {"scope": "s"}]
            + [{"tags": "a"}, {"tags": ["a", "b"]}, {"tags": "a", "kind": "paid"}, {"tags": ("nobody",)}]
            + [{"where": where} for where in sorted(CONDITIONS)]
        ),
    )

    def chosen(self, model: TopicModel, after: int, filters: dict[str, Any]) -> list[Known]:
        kind = filters.get("kind")
        kinds = None if kind is None else {kind} if isinstance(kind, str) else set(kind)
        return [
            known
            for known in model.stored()
            if known.seq > after
            and ("key" not in filters or known.key == filters["key"])
            and (known.key or "").startswith(filters.get("key_prefix", ""))
            and (kinds is None or known.kind in kinds)
            and ("scope" not in filters or known.scope == filters["scope"])
            and as_set(filters.get("tags", ())) <= set(known.tags)
            and ("where" not in filters or CONDITIONS[filters["where"]](known))
        ]

    @step(8, name=TOPICS, data=st.data(), filters=filters, reverse=st.booleans(), which=WHICH)
    def read(self, name: str, data: st.DataObject, filters: dict[str, Any], reverse: bool, which: int) -> None:
        model = self.seen(name)
        after = data.draw(st.sampled_from([0, 0, model.trimmed, max(0, model.trimmed - 1), model.latest]))
        through = data.draw(st.sampled_from([None, None, model.latest, max(0, model.latest - 2), 3]))
        limit = data.draw(st.sampled_from([None, None, None, 0, 1, 3]))
        moments = [known.recorded_ms for known in model.stored()]
        since = data.draw(st.sampled_from([None, None, None, *moments[::4]]))
        wanted = [
            known
            for known in self.chosen(model, after, filters)
            if (through is None or known.seq <= through) and (since is None or known.recorded_ms >= since)
        ]
        if reverse:
            wanted.reverse()
        answer = self.ask_topic(
            name,
            lambda topic: topic.read(
                after,
                limit,
                through=through,
                since=None if since is None else moment(since),
                reverse=reverse,
                **filters,
            ),
            which,
        )
        if 0 < after < model.trimmed and limit != 0 and filters.get("kind") != []:
            assert answer == Raised(PositionTrimmed, {"oldest": min(model.events, default=model.trimmed + 1)})
        else:
            assert answer == shown(wanted[:limit])

    @step(
        3,
        topics=st.sampled_from(["[ab]", ["a", "b"], "a*", "b"]),
        data=st.data(),
        filters=filters,
        reverse=st.booleans(),
        which=WHICH,
    )
    def read_across(
        self, topics: str | list[str], data: st.DataObject, filters: dict[str, Any], reverse: bool, which: int
    ) -> None:
        models = [
            model for name, model in sorted(self.topics.items()) if topics in ("[ab]", ["a", "b"], f"{name}*", name)
        ]
        after = {
            model.name: data.draw(st.sampled_from([0, model.trimmed, max(0, model.trimmed - 1), model.latest]))
            for model in models
            if data.draw(st.booleans())
        }
        wanted = [known for model in models for known in self.chosen(model, after.get(model.name, 0), filters)]

        def call(home: Home) -> object:
            found = list(home.journal(which).read(topics, after, reverse=reverse, **filters))
            assert found == sorted(found, key=lambda event: event.id, reverse=reverse)
            return in_order(iter(found))

        answer = self.ask(call)
        trimmed = [model for model in models if 0 < after.get(model.name, 0) < model.trimmed]
        if trimmed and filters.get("kind") != []:
            assert isinstance(answer, Raised) and answer.error is PositionTrimmed
        else:
            assert answer == shown(sorted(wanted, key=place))

    @step(1, name=TOPICS, data=st.data(), which=WHICH)
    def read_arrow(self, name: str, data: st.DataObject, which: int) -> None:
        model = self.model(name)
        after = data.draw(st.integers(model.trimmed, model.latest + 1))
        limit = data.draw(st.sampled_from([None, 0, 2]))

        def call(topic: Topic) -> Iterator[object]:
            for batch in topic.read_arrow(after, limit, batch_rows=3, payload="binary"):
                for row in batch.to_pylist():
                    yield row["seq"], row["kind"], row["key"], row["recorded_at"], row["payload"]

        found = self.ask_topic(name, call, which)
        wanted = [known for known in model.stored() if known.seq > after][:limit]
        assert [row[:3] for row in found] == [[known.seq, known.kind, known.key] for known in wanted]

    @step(2, name=TOPICS, data=st.data(), which=WHICH)
    def find(self, name: str, data: st.DataObject, which: int) -> None:
        model = self.seen(name)
        seq = data.draw(st.integers(0, model.latest + 1))
        known = model.events.get(seq)
        wanted = plain(known) if known else None
        assert self.ask_topic(name, lambda topic: topic.get(seq), which) == wanted
        id = self.positions.id_of(name, seq)
        assert self.ask(lambda home: home.journal(which).topic(name).find(home.real(id))) == wanted
        ms = self.clock.now_ms() - data.draw(st.sampled_from([-1, 0, 1, 1000, 60_000]))
        position = model.position_before(ms)
        assert self.ask_topic(name, lambda topic: topic.position_at(moment(ms)), which) == position

    @step(3, name=TOPICS, key=st.sampled_from([None, *KEYS, "nobody"]), rebuild=st.booleans(), which=WHICH)
    def project(self, name: str, key: str | None, rebuild: bool, which: int) -> None:
        model = self.model(name)
        events = [known for known in model.stored() if key is None or known.key == key]
        state, newest = folded(events), events[-1].seq if events else 0
        if rebuild and name in self.topics:
            self.ask_topic(name, lambda topic: topic.rebuild(Seen, whole=key is None), which)
        assert self.ask_topic(name, lambda topic: topic.project(Seen, key), which) == state
        if key is not None:
            assert self.ask_topic(name, lambda topic: topic.position_of(key), which) == newest
            answer = self.ask_topic(name, lambda topic: topic.project_if_changed(Seen, key, newest + 1), which)
            assert answer == [newest, state]
            assert self.ask_topic(name, lambda topic: topic.project_if_changed(Seen, key, newest), which) is None

    @step(2, when=lambda self: self.topics, data=st.data(), which=WHICH)
    def causes(self, data: st.DataObject, which: int) -> None:
        everything = [known for model in self.topics.values() for known in model.stored()]
        if not everything:
            return
        known = data.draw(st.sampled_from(everything))
        chain: list[Known] = []
        at: Known | None = known
        while at is not None and at not in chain:
            chain.append(at)
            at = self.known(at.causation or "")
        topic = lambda home: home.journal(which).topic(known.topic)
        assert self.ask(lambda home: topic(home).ancestors(home.real(known.id))) == shown(chain)
        effects = [one for one in everything if one.causation == known.id]
        found = self.ask(lambda home: in_order(topic(home).effects(home.real(known.id))))
        assert found == shown(sorted(effects, key=place))
        correlation = known.correlation or known.id
        together = [one for one in everything if correlation in (one.correlation, one.id)]
        found = self.ask(lambda home: in_order(home.journal(which).correlated(home.real(correlation))))
        assert found == shown(sorted(together, key=place))

    # ── following ────────────────────────────────────────────────────────────────────────────────────────────────────
    def stop_following(self) -> None:
        """What a server has sent before events are removed has arrived by then, so nobody follows meanwhile."""
        if self.following is not None:
            for subscription in self.following[3]:
                subscription.close()
            self.following = None

    @step(2, name=TOPICS, data=st.data(), filters=filters, which=WHICH)
    def follow(self, name: str, data: st.DataObject, filters: dict[str, Any], which: int) -> None:
        self.stop_following()
        model = self.model(name)
        after = data.draw(st.sampled_from(["latest", 0, model.trimmed, model.latest]))
        answer = self.ask_topic(name, lambda topic: topic.subscribe(after, **filters), which)
        if filters.get("kind") == []:
            assert answer == Raised(ConfigError)
        else:
            self.following = name, model.latest if after == "latest" else after, filters, self.raw
            self.hear()

    @step(4, when=lambda self: self.following is not None)
    def hear(self) -> None:
        """Everything that was appended since, and no more."""
        assert self.following is not None
        name, heard, filters, handles = self.following
        wanted = self.chosen(self.model(name), heard, filters)
        handle = dict(zip([home.name for home in self.homes], handles, strict=True))
        answer = self.ask(lambda home: [handle[home.name].next(0) for _ in range(len(wanted) + 1)])
        assert answer == [*shown(wanted), None]
        self.following = name, max([heard, *(known.seq for known in wanted)]), filters, handles

    # ── what must agree ──────────────────────────────────────────────────────────────────────────────────────────────
    def topics_agree(self, homes: list[Home], which: int) -> None:
        found = self.ask(lambda home: home.journal(which).topics(), homes)
        assert [name for name in found if name in NAMES] == sorted(self.topics)
        local = [home for home in homes if not home.served]
        assert self.ask(lambda home: home.store(which).mark("m"), local) == self.marks.get("m")
        for model in self.topics.values():
            self.topic_agrees(homes, which, model)

    def topic_agrees(self, homes: list[Home], which: int, model: TopicModel) -> None:
        topic = lambda home: home.journal(which).topic(model.name)
        assert self.ask(lambda home: topic(home).read(), homes) == shown(model.stored())
        ends = self.ask(lambda home: (topic(home).latest, len(topic(home)), topic(home).oldest), homes)
        assert ends == [model.latest, len(model.events), min(model.events, default=0)]
        assert self.ask(lambda home: topic(home).cursors(), homes) == model.cursors
        consumers = self.ask(lambda home: topic(home).consumers(), homes)
        lags = {consumer: sum(seq > at for seq in model.events) for consumer, at in model.cursors.items()}
        assert {one["name"]: one["lag"] for one in consumers} == lags
