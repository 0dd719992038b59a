"""Every way to ask a journal for the same events; each answer is what walking over all of them gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import penstock
from model.programs import same
from model.topic_model import Known, TopicModel
from penstock import Event, Journal, Projection, Topic
from waiting import DEADLINE

CONDITIONS: dict[str, Callable[[Known], bool]] = {
    "payload.total > 5": lambda known: isinstance(known.payload, dict) and known.payload["total"] > 5,
    "headers.h = '1' or seq >= 14": lambda known: known.headers.get("h") == "1" or known.seq >= 14,
    "key in ('k1', 'é') and not kind = 'é'": lambda known: known.key in ("k1", "é") and known.kind != "é",
    "key = 'k1'": lambda known: known.key == "k1",
    "tags contains 'a' and tags contains 'b'": lambda known: {"a", "b"} <= set(known.tags),
}
BY_KEY: list[dict[str, Any]] = [
    *({"key": key} for key in ("k1", "k11", "k2", "é", "nobody")),
    *({"key_prefix": begin} for begin in ("k", "k1", "é", "q")),
    *({"tags": tags} for tags in ("a", ["a", "é"], ["b", "a"], "nobody")),
]
OTHERS: list[dict[str, Any]] = [
    {"kind": "paid"},
    {"kind": ["placed", "é"]},
    {"kind": "never"},
    {"scope": "s"},
    {"tags": "b"},
    *({"where": where} for where in CONDITIONS),
]


class Seen(Projection):
    """Which events were folded, in which order."""

    seqs: list[int] = []
    kinds: dict[str, int] = {}

    @penstock.on("placed", "é")
    def note(self, event: Event) -> None:
        self.seqs.append(event.seq)

    @penstock.on("placed", "paid")
    def count(self, event: Event) -> None:
        self.kinds[event.kind] = self.kinds.get(event.kind, 0) + 1


def folded(events: list[Known]) -> Seen | None:
    """The state after some events; no handler gets an erased event."""
    if not events:
        return None
    state, handled = Seen(), [known for known in events if "erased-at" not in known.headers]
    state.seqs = [known.seq for known in handled if known.kind != "paid"]
    kinds = [known.kind for known in handled]
    state.kinds = {kind: kinds.count(kind) for kind in ("placed", "paid") if kind in kinds}
    return state


def _texts(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


def chosen(events: list[Known], filters: Mapping[str, Any]) -> list[Known]:
    """A filter over everything."""
    kind = filters.get("kind")
    kinds = None if kind is None else {kind} if isinstance(kind, str) else set(kind)
    return [
        known
        for known in events
        if ("key" not in filters or known.key == filters["key"])
        and ("key_prefix" not in filters or (known.key or "").startswith(filters["key_prefix"]))
        and (kinds is None or known.kind in kinds)
        and ("scope" not in filters or known.scope == filters["scope"])
        and ("tags" not in filters or set(known.tags) >= {*_texts(filters["tags"])})
        and ("where" not in filters or CONDITIONS[filters["where"]](known))
    ]


@dataclass
class Asked:
    """A journal that is asked, and what there is to know."""

    place: str
    journal: Journal
    topics: Mapping[str, TopicModel]
    ended: Mapping[str, TopicModel]
    now_ms: int
    chance: random.Random
    share: float
    """How much is asked of what can be asked."""
    remote: bool

    def some(self, of: list[Any]) -> list[Any]:
        return [one for one in of if self.chance.random() < self.share]


def ask_everything(asked: Asked) -> None:
    for model in asked.topics.values():
        ask_topic(asked, model)
    ask_across(asked)
    ask_causes(asked)
    if asked.topics and asked.chance.random() < 0.2:  # as expensive as all others together
        ask_sql(asked)
    for name, model in asked.ended.items():
        if name not in asked.topics:
            topic = asked.journal.topic(name)
            same(f"{asked.place}a dropped topic", seqs(topic.read()), [])
            same(f"{asked.place}a dropped topic by key", seqs(topic.read(key="k1")), [])
            assert model.latest


def seqs(events: Iterator[Event]) -> list[int]:
    return [event.seq for event in events]


def numbers(known: list[Known]) -> list[int]:
    return [one.seq for one in known]


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def ask_topic(asked: Asked, model: TopicModel) -> None:
    place, chance, topic = asked.place, asked.chance, asked.journal.topic(model.name)
    stored = model.stored()
    same(f"{place}read", [event.as_dict() for event in topic.read()], [known.as_dict() for known in stored])
    ends = (topic.latest, topic.oldest, len(topic))
    same(f"{place}latest, oldest, len", ends, (model.latest, min(model.events, default=0), len(model.events)))
    for filters in asked.some([{}, *BY_KEY, *OTHERS]):
        wanted = chosen(stored, filters)
        same(f"{place}read {filters}", seqs(topic.read(**filters)), numbers(wanted))
        _read_a_part(asked, model, topic, filters, wanted)
    for key in asked.some(BY_KEY):
        filters = key | chance.choice(OTHERS)
        wanted = chosen(stored, filters)
        same(f"{place}read {filters}", seqs(topic.read(**filters)), numbers(wanted))
        _read_a_part(asked, model, topic, filters, wanted)
    for filters in [{}, *asked.some([chance.choice(BY_KEY), chance.choice(OTHERS)])]:
        _follow(asked, model, topic, filters)
    _read_arrow(asked, model, topic)
    _find(asked, model, topic)
    _project(asked, model, topic)
    same(f"{place}cursors", topic.cursors(), model.cursors)
    lags = {consumer: sum(seq > at for seq in model.events) for consumer, at in model.cursors.items()}
    same(f"{place}consumers", {one.name: one.lag for one in topic.consumers()}, lags)
    if not asked.remote:
        found = sorted(topic.entities())
        same(f"{place}entities", found, sorted({known.key for known in stored if known.key is not None}))


def _positions(asked: Asked, model: TopicModel) -> int:
    """A position that may be read from."""
    choice = [0, model.trimmed, model.sealed, model.sealed - 1, model.latest, model.latest - 1]
    choice.append(asked.chance.randint(0, model.latest + 1))
    at = asked.chance.choice(choice)
    return at if at >= model.trimmed and at > 0 else 0


def _read_a_part(asked: Asked, model: TopicModel, topic: Topic, filters: dict[str, Any], wanted: list[Known]) -> None:
    chance = asked.chance
    given: dict[str, Any] = {"after": _positions(asked, model)}
    part = [known for known in wanted if known.seq > given["after"]]
    if chance.random() < 0.4:
        given["through"] = chance.choice([model.sealed, model.latest, chance.randint(0, model.latest)])
        part = [known for known in part if known.seq <= given["through"]]
    moments = [known.recorded_ms for known in model.stored()]
    if moments and chance.random() < 0.2:
        since = chance.choice(moments) + chance.choice([0, 1])
        given["since"] = moment(since)
        part = [known for known in part if known.recorded_ms >= since]
    if moments and chance.random() < 0.2:
        until = chance.choice(moments) + chance.choice([0, 1])
        given["until"] = moment(until)
        part = [known for known in part if known.recorded_ms < until]
    if chance.random() < 0.4:
        given["reverse"] = True
        part.reverse()
    if chance.random() < 0.4:
        given["limit"] = chance.choice([1, 2, 7])
        part = part[: given["limit"]]
    same(f"{asked.place}a part of read {filters}: {given}", seqs(topic.read(**given, **filters)), numbers(part))


def _follow(asked: Asked, model: TopicModel, topic: Topic, filters: dict[str, Any]) -> None:
    after = _positions(asked, model)
    wanted = [known.seq for known in chosen(model.stored(), filters) if known.seq > after]
    with topic.subscribe(after, **filters) as subscription:
        found: list[int] = []
        # What a server sends is on its way for a moment; here it is there.
        while event := subscription.next(DEADLINE if asked.remote and len(found) < len(wanted) else 0):
            found.append(event.seq)
            if len(found) > len(wanted) + 3:
                break
    same(f"{asked.place}subscribe {filters}: after {after}", found, wanted)


def _read_arrow(asked: Asked, model: TopicModel, topic: Topic) -> None:
    after, limit = _positions(asked, model), asked.chance.choice([None, None, 3])
    wanted = [known for known in model.stored() if known.seq > after][:limit]
    found: list[Any] = []
    rows = asked.chance.choice([2, 1000])
    for batch in topic.read_arrow(after, limit, batch_rows=rows, payload="binary"):
        for row in batch.to_pylist():
            found.append(tuple(row[name] for name in ("seq", "id", "kind", "key", "scope", "causation_id", "tags")))
    same(
        f"{asked.place}read_arrow: after {after}, limit {limit}",
        found,
        [(one.seq, one.id, one.kind, one.key, one.scope, one.causation, list(one.tags) or None) for one in wanted],
    )


def _find(asked: Asked, model: TopicModel, topic: Topic) -> None:
    chance, place = asked.chance, asked.place
    for seq in {0, model.trimmed, model.sealed, model.latest, chance.randint(0, model.latest + 1)}:
        known = model.events.get(seq)
        found = topic.get(seq)
        same(f"{place}get: {seq}", found and found.id, known and known.id)
    for known in chance.sample(model.stored(), min(3, len(model.events))):
        found = topic.find(known.id)
        same(f"{place}find: {known.seq}", found and found.seq, known.seq)
        ms = known.recorded_ms + chance.choice([0, 1])
        before = max((seq for seq, one in model.events.items() if one.recorded_ms < ms), default=0)
        found_at_time = topic.position_at(moment(ms))
        # When the events that are gone were recorded is not always known.
        same(f"{place}position_at: {ms}", 0 if found_at_time <= model.trimmed else found_at_time, before)


def _project(asked: Asked, model: TopicModel, topic: Topic) -> None:
    chance, place = asked.chance, asked.place
    for key in asked.some([None, "k1", "k11", "k2", "é", "nobody"]):
        events = [known for known in model.stored() if key is None or known.key == key]
        same(f"{place}project {key}", topic.project(Seen, key), folded(events))
        if key is None:
            continue
        newest = events[-1].seq if events else 0
        same(f"{place}position_of {key}", topic.position_of(key), newest)
        changed = topic.project_if_changed(Seen, key, newest + 1)
        same(f"{place}project_if_changed {key}", changed, (newest, folded(events)))
        if events:
            through = chance.choice(events).seq
            if through >= model.trimmed:
                part = [known for known in events if known.seq <= through]
                same(f"{place}project through {key}", topic.project(Seen, key, through=through), folded(part))


def ask_across(asked: Asked) -> None:
    """Several topics at once."""
    models, chance = list(asked.topics.values()), asked.chance
    for filters in [{}, *asked.some([chance.choice(BY_KEY), chance.choice(OTHERS)])]:
        after = {model.name: _positions(asked, model) for model in models if chance.random() < 0.5}
        wanted = [
            known
            for model in models
            for known in chosen(model.stored(), filters)
            if known.seq > after.get(model.name, 0)
        ]
        wanted.sort(key=lambda known: known.id)
        given: dict[str, Any] = {}
        if chance.random() < 0.4:
            given["reverse"] = True
            wanted.reverse()
        if chance.random() < 0.3:
            given["limit"] = 5
            wanted = wanted[:5]
        found = [(event.topic, event.seq) for event in asked.journal.read("[ab]", after, **given, **filters)]
        name = f"{asked.place}journal.read {filters}: after {after}, {given}"
        same(name, found, [(known.topic, known.seq) for known in wanted])
        _follow_across(asked, models, filters)


def _follow_across(asked: Asked, models: list[TopicModel], filters: dict[str, Any]) -> None:
    after = {model.name: _positions(asked, model) for model in models if asked.chance.random() < 0.5}
    wanted = [
        known for model in models for known in chosen(model.stored(), filters) if known.seq > after.get(model.name, 0)
    ]
    wanted.sort(key=lambda known: known.id)
    found: list[tuple[str, int]] = []
    with asked.journal.subscribe("[ab]", after, **filters) as subscription:
        while event := subscription.next(DEADLINE if asked.remote and len(found) < len(wanted) else 0):
            found.append((event.topic, event.seq))
            if len(found) > len(wanted) + 3:
                break
    same(f"{asked.place}journal.subscribe {filters}: after {after}", found, known_at(wanted))


def ask_causes(asked: Asked) -> None:
    everything = [known for model in asked.topics.values() for known in model.stored()]
    if not everything:
        return
    place, chance, journal = asked.place, asked.chance, asked.journal
    by_id = {known.id: known for known in everything}
    for known in chance.sample(everything, min(len(everything), 3 if asked.share == 1 else 1)):
        topic = journal.topic(known.topic)
        chain: list[Known] = []
        at: Known | None = known
        while at is not None and at not in chain:
            chain.append(at)
            at = by_id.get(at.causation or "")
        same(f"{place}ancestors: {known.topic} {known.seq}", found_at(topic.ancestors(known.id)), known_at(chain))
        cause = known.causation or known.id
        effects = [one for one in everything if one.causation == cause]
        same(f"{place}effects: {cause}", sorted(found_at(topic.effects(cause))), sorted(known_at(effects)))
        correlation = known.correlation or known.id
        together = [one for one in everything if correlation in (one.correlation, one.id)]
        found = found_at(journal.correlated(correlation))
        same(f"{place}correlated: {correlation}", sorted(found), sorted(known_at(together)))


def found_at(events: Iterator[Event]) -> list[tuple[str, int]]:
    return [(event.topic, event.seq) for event in events]


def known_at(events: list[Known]) -> list[tuple[str, int]]:
    return [(known.topic, known.seq) for known in events]


def ask_sql(asked: Asked) -> None:
    chance, place = asked.chance, asked.place
    model = asked.topics[chance.choice(sorted(asked.topics))]
    stored, key, kind = model.stored(), chance.choice(["k1", "k11", "nobody"]), chance.choice(["paid", "é"])
    low = _positions(asked, model)
    moments = [known.recorded_ms for known in stored] or [0]
    ms = chance.choice(moments)
    queries: list[tuple[str, list[Any], list[int]]] = [
        ("true", [], numbers(stored)),
        ("key = ?", [key], numbers([one for one in stored if one.key == key])),
        ("kind = ?", [kind], numbers([one for one in stored if one.kind == kind])),
        ("key in ('k1', 'k2')", [], numbers([one for one in stored if one.key in ("k1", "k2")])),
        (
            "seq > ? and (key = ? or kind = 'paid')",
            [low, key],
            numbers([one for one in stored if one.seq > low and (one.key == key or one.kind == "paid")]),
        ),
        ("recorded_at >= ?", [moment(ms)], numbers([one for one in stored if one.recorded_ms >= ms])),
    ]
    for where, parameters, wanted in chance.sample(queries, 2):
        found = asked.journal.sql(f'select seq from "{model.name}" where {where}', parameters)
        same(f"{place}sql {where}: {parameters}", sorted(found.column("seq").to_pylist()), wanted)
