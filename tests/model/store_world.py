"""A store and what people do to it: they write, and they rearrange: seal, compact, index, back up, copy, move, drop.

What is rearranged answers as before: to the model, which is `TopicModel`, a seal, a merge, an index, a copy, a move to
another engine and a restart are nothing at all. `ways` asks for the same events in every way there is.
"""

from __future__ import annotations

import itertools
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest

import penstock
from dead_store import copy_as_it_is
from model.programs import Program, a_seed, a_share, one_of, rule, rules_of, same
from model.topic_model import Known, Refused, TopicModel
from model.ways import Asked, Seen, ask_everything
from penstock import Draft, EventQuery, Journal, ManualClock, limits
from penstock.core.clock import from_ms
from penstock.core.entity import states
from penstock.core.journal import following
from penstock.core.journal.from_arrow import blocks
from penstock.core.journal.index import index, indexer, runs
from penstock.core.journal.sealed import writing
from penstock.core.journal.sealed.bulk import write_files
from penstock.core.journal.sealed.referring import append_segments, check_there, plan_bulk
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.journal.sealed.tables import TableRequest
from penstock.core.journal.upkeep import by_key
from penstock.core.journal.waking import Background
from penstock.core.local.backend import LocalJournal
from penstock.core.names import check_tags, pack_tags
from penstock.errors import ConfigError, Conflict
from penstock.transfer.publishing import Blocks, publish_blocks
from server.over_http.shared_server import SharedServer

NAMES = ("a", "b")
KEYS = ("k1", "k11", "k2", "é")
KINDS = ("placed", "paid", "é")
SHARED = ("memory", "sqlite")
"""Engines whose stores are open twice here."""

_places = itertools.count()

SMALL: dict[str, list[tuple[Any, str, Any]]] = {
    "summaries": [
        (limits, "SUMMARY_EVENTS", 4),
        (limits, "SUMMARY_RANGES", 3),
        (limits, "SUMMARY_VALUES", 2),
    ],
    "merging": [(limits, "MERGE_FAN_IN", 3)],
    "batches": [(limits, "BLOCK_EVENTS", 16)],
    "blocks": [
        (limits, "BLOCK_BYTES", 900),
        (limits, "SMALL_BYTES", 300),
        (limits, "MERGED_BYTES", 500),
        (limits, "INLINE_BYTES", 400),
    ],
    "housekeeping": [
        (by_key, "SCAN_BYTES", 700),
        (limits, "EXCHANGE_BYTES", 700),
        (limits, "RETENTION_BLOCKS", 3),
        (states, "SAVE_AFTER", 3),
    ],
    "row groups": [(writing, "GROUP_ROWS", 7)],
    "larger row groups": [(writing, "GROUP_ROWS", 40)],
    "index": [
        (limits, "INDEX_RUN_EVENTS", 16),
        (limits, "INDEX_FAN_IN", 3),
        (limits, "INDEX_STEP_BYTES", 400),
        (limits, "INDEX_CHUNK_BYTES", 300),
        (limits, "INDEX_LARGE_CHUNK_BYTES", 700),
        (runs, "STEP_ROWS", 16),
        (runs, "WINDOW_ROWS", 24),
        (indexer, "_READ_CHUNKS", 2),
        (limits, "UNFOLDED_TOPICS", 1),
    ],
    "memory": [(limits, "INDEX_MEMORY_BYTES", 1500), (index, "_PREFIXED", 6)],
    "followers": [(following, "SEARCHED", 8), (following, "STEP", 16), (following, "_READ_AHEAD", 4)],
}
"""Limits that few events reach, so that short programs have all shapes that long ones have."""
RARE = {"memory": 0.2, "row groups": 0.3, "batches": 0.3, "merging": 0.4}
"""How often some of them are small: the less, the more is left to others."""


def _bound(limit: str) -> list[ModuleType]:
    """Returns the modules that have a limit of `penstock.limits`; a constant of their own has another value."""
    value = vars(limits)[limit]
    modules = [one for name, one in list(sys.modules.items()) if name.startswith("penstock.")]
    return [one for one in modules if vars(one).get(limit) == value]


class StoreWorld:
    """One store, the model of its topics, and the rules of what is done to both."""

    places: Mapping[str, Callable[[random.Random], Any]] = {
        "engine": one_of("memory", "memory", "memory", "sqlite", "sqlite", "sqlite", "file", "rocksdb"),
        "small": lambda chance: [name for name in SMALL if chance.random() < RARE.get(name, 0.6)],
        "http": one_of(True, False, False, False),
    }

    def __init__(self, program: Program, server: SharedServer | None) -> None:
        self.chance = random.Random(program.seed)
        self.server = server if program.world["http"] else None
        self.engine: str = program.world["engine"]
        self.clock = ManualClock()
        self.topics: dict[str, TopicModel] = {}
        self.ended: dict[str, TopicModel] = {}
        self.ids: dict[tuple[str, int], str] = {}
        self.made = 0
        self.lakes: dict[str, int] = {}
        self._undo = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-program-"))
        self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            for name in program.world["small"]:
                for module, limit, value in SMALL[name]:
                    for place in _bound(limit) if module is limits else [module]:
                        self._undo.enter_context(patch.object(place, limit, value))
            # Threads in the background come when a step says so.
            self._undo.enter_context(patch.object(Background, "_wake", lambda self: None))
            self.url = self._new_place()
            self.abandoned: list[Journal] = []
            self.stores: list[Journal] = []
            self._client: tuple[Journal, str] | None = None
            self._open()
        except BaseException:
            self._undo.close()
            raise

    # ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────
    def _new_place(self) -> str:
        self.made += 1
        if self.engine == "memory":
            return f"memory:program-{next(_places)}"
        return f"{self.engine}:{self.folder / f'store-{self.made}'}"

    def _open(self) -> None:
        for _ in range(2 if self.engine in SHARED else 1):
            self.stores.append(penstock.open(self.url, clock=self.clock, durability="process"))

    @property
    def journal(self) -> Journal:
        return self.stores[0]

    @property
    def core(self) -> Any:
        assert isinstance(self.journal, LocalJournal)
        return self.journal._core

    def client(self) -> Journal | None:
        """The store at the other end of a url."""
        if self.server is None:
            return None
        if self._client is None:
            url = self.server.move_in(self.journal)
            self._client = penstock.open(url), url
        return self._client[0]

    def _let_go(self, *, abandon: bool = False) -> None:
        """Ends all openings; `abandon`: as when a process dies, nobody closes anything."""
        if self._client is not None:
            assert self.server is not None
            self._client[0].close()
            self.server.move_out(self._client[1])
            self._client = None
        for store in self.stores:
            if abandon and self.engine in SHARED:
                self.abandoned.append(store)
            else:
                store.close()
        self.stores = []

    def close(self) -> None:
        with self._undo:
            self._let_go()
            for store in self.abandoned:
                store.close()

    def look(self, *, whole: bool) -> None:
        places = {"": self.stores[0]}
        if len(self.stores) > 1:
            places["another opening, "] = self.stores[1]
        if (client := self.client()) is not None:
            places["http, "] = client
        same("topics", self.journal.topics(), sorted(self.topics))
        for place, journal in places.items():
            share = 1.0 if whole and not place else 0.3
            remote = journal is client
            ask_everything(
                Asked(place, journal, self.topics, self.ended, self.clock.now_ms(), self.chance, share, remote)
            )

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _drafts(self, count: int, seed: int) -> list[Draft]:
        chance = random.Random(seed)
        ids = [known.id for model in self.topics.values() for known in model.stored()]
        ids = [*ids[-3:], *chance.sample(ids, min(len(ids), 3))]
        keys = chance.choice([(None,), KEYS, (*KEYS, None), ("k1", None, None)])
        scopes = chance.choice([(None,), ("s", "t", None)])
        causes = chance.choice([(None,), (None, None, *ids), ids or (None,)])
        tags = chance.choice([(None,), (("a",), ("a", "b"), None), (("a",), ("b", "é", "a"), ("c",))])
        payloads: list[Callable[[int], object]] = [
            lambda row: row,
            lambda row: {"total": row, "name": "x" * (row % 9)},
            lambda row: b"\x00\xff" * (row % 5),
        ]
        payload = chance.choice([*payloads, lambda row: chance.choice(payloads)(row), lambda row: None])
        moments = chance.choice([(None,), (None, datetime(1969, 5, 5, tzinfo=UTC), datetime(2024, 5, 5, tzinfo=UTC))])
        return [
            Draft(
                chance.choice(KINDS),
                payload(row),
                key=chance.choice(keys),
                scope=chance.choice(scopes),
                headers=chance.choice([None, None, {"h": str(row % 2)}]),
                occurred_at=chance.choice(moments),
                cause=chance.choice([*causes, *([chance.randrange(row)] if row and None in causes else [])]),
                correlation=chance.choice([None, None, None, "c"]),
                tags=chance.choice(tags),
            )
            for row in range(count)
        ]

    def _model(self, name: str) -> TopicModel:
        """The topic, or what it would be from its first append on."""
        known = self.topics.get(name)
        if known is not None:
            return known.copy()
        ended = self.ended.get(name)
        last, recorded = (ended.latest, ended.recorded_ms) if ended else (0, 0)
        model = TopicModel(name, lambda topic, seq: self.ids[topic, seq], last, recorded_ms=recorded, began=last)
        model.trimmed, model.trimmed_ms, model.sealed = last, recorded, last
        return model

    def _find(self, id: str) -> Known | None:
        return next((known for model in self.topics.values() for known in model.stored() if known.id == id), None)

    def _appended(self, models: dict[str, TopicModel], name: str, drafts: list[Draft], receipts: list[Any]) -> None:
        """Notes in a model what was appended."""
        model = models.setdefault(name, self._model(name))
        self.ids.update(((name, receipt.seq), receipt.id) for receipt in receipts)

        def find(id: str) -> Known | None:
            mine = (known for one in models.values() for known in one.stored())
            return next((known for known in mine if known.id == id), None) or self._find(id)

        wanted = [known.receipt(again) for known, again in model.append(drafts, self.clock.now_ms(), find)]
        found = [[one.topic, one.seq, one.id, one.correlation_id, one.duplicate] for one in receipts]
        same("the receipts of an append", found, wanted)

    @rule(
        12,
        topic=one_of("a", "a", "a", "b"),
        count=one_of(1, 1, 1, 2, 3, 5, 9, 20, 45),
        seed=a_seed,
        way=one_of("many", "each", "outbox", "transaction", "http"),
    )
    def append(self, topic: str, count: int, seed: int, way: str) -> None:
        if not count:
            return
        drafts, models = self._drafts(count, seed), dict[str, TopicModel]()
        journal = (self.client() if way == "http" else None) or self.stores[seed % len(self.stores)]
        if way == "transaction":
            with self.journal.transaction() as tx:
                for at in (0, count // 2):
                    part = drafts[at : count // 2 if at == 0 else None]
                    part = [self._without_rows(draft) for draft in part]
                    if part:
                        self._appended(models, topic, part, tx.append_many(topic, part))
                        self._read_inside(tx, models[topic])
        elif way == "each":
            for draft in map(self._without_rows, drafts):
                self._appended(models, topic, [draft], journal.topic(topic).append_many([draft]))
        elif way == "outbox":
            outbox = journal.outbox()
            drafts = [self._without_rows(draft) for draft in drafts]
            for draft in drafts:
                given = {field: getattr(draft, field) for field in ("key", "scope", "headers", "occurred_at", "tags")}
                outbox.stage(
                    topic, draft.kind, draft.payload, cause=draft.cause, correlation=draft.correlation, **given
                )
            self._appended(models, topic, drafts, outbox.flush())
        else:
            self._appended(models, topic, drafts, journal.topic(topic).append_many(drafts))
        self.topics |= models

    @staticmethod
    def _without_rows(draft: Draft) -> Draft:
        """A draft that names no other row of its batch as its cause."""
        if isinstance(draft.cause, int):
            draft.cause = None
        return draft

    def _read_inside(self, tx: Any, model: TopicModel) -> None:
        """A transaction sees its own events in every way."""
        for key in KEYS:
            wanted = [known.seq for known in model.stored() if known.key == key]
            same("a transaction, by key", [event.seq for event in tx.read(model.name, key=key)], wanted)
        for tag in ("a", "b"):
            wanted = [known.seq for known in model.stored() if tag in known.tags]
            same("a transaction, by tag", [event.seq for event in tx.read(model.name, tags=tag)], wanted)
        same("a transaction", [event.seq for event in tx.read(model.name)], [known.seq for known in model.stored()])

    @rule(
        4,
        topic=one_of("a", "a", "b"),
        key=one_of(None, *KEYS),
        dedup=one_of(None, "d1", "d1", "d2"),
        expect=one_of(None, None, 0, 0, 1),
        unless=one_of(None, None, {"tags": ["a"]}, {"tags": ["a", "b"]}, {"kinds": ["é"]}, {"key": "k1"}),
        share=a_share,
        seed=a_seed,
        way=one_of("here", "elsewhere", "transaction", "http"),
    )
    def append_once(
        self,
        topic: str,
        key: str | None,
        dedup: str | None,
        expect: int | None,
        unless: dict[str, Any] | None,
        share: float,
        seed: int,
        way: str,
    ) -> None:
        """Appends unless the event is there already, its entity has moved on, or others came; `expect`: how far beside
        the truth."""
        model = self._model(topic)
        (draft,) = self._drafts(1, seed)
        draft.key, draft.dedup = key, dedup
        newest = model.newest.get(key or "", 0)
        if key is not None and expect is not None and (newest == 0 or newest in model.events):
            draft.expect = newest + expect
        if unless is not None:
            after = round(share * model.latest)
            draft.unless = EventQuery(**unless, after=after if after >= model.trimmed else 0)
        journal = (self.client() if way == "http" else None) or self.stores[-1 if way == "elsewhere" else 0]

        models: dict[str, TopicModel] = {}
        try:
            if way == "transaction":
                with self.journal.transaction() as tx:
                    receipts = tx.append_many(topic, [draft])
            else:
                receipts = journal.topic(topic).append_many([draft])
        except Conflict as error:
            with pytest.raises(Refused) as refused:
                model.append([draft], self.clock.now_ms(), self._find)
            wanted = (refused.value.expected, refused.value.actual)
            same("a refused append", (error.expected, error.actual), wanted)
            return
        self._appended(models, topic, [draft], receipts)
        self.topics |= models

    @rule(
        4,
        topic=one_of("a", "a", "b"),
        count=one_of(1, 3, 9, 20, 45),
        seed=a_seed,
        way=one_of("files", "files", "blocks"),
    )
    def write_in_bulk(self, topic: str, count: int, seed: int, way: str) -> None:
        """Appends what tasks of Spark have made: blocks, or files to which a commit refers."""
        target = None
        if way == "files" and not (
            target := plan_bulk(self.core, topic, f"{self.folder}/lake-{self.lakes.get(topic, 0)}")
        ):
            return
        drafts = self._drafts(count, seed)
        timed = all(draft.occurred_at for draft in drafts)
        for draft in drafts:
            draft.cause, draft.occurred_at = None, draft.occurred_at if timed else None
            if target is not None:
                draft.tags = draft.correlation = None
        rows = _rows(topic, drafts)
        if target is None:
            size = rows.column("payload").nbytes
            assert isinstance(self.journal, LocalJournal)
            publish_blocks(self.journal, Blocks(list(blocks(rows)), size, count, keyed=True), None, 0)
        else:
            self.made += 1
            written = list(write_files(target, [rows], (f"job{self.made}", 0, "try"), now_ms=self.clock.now_ms()))
            check_there(written)
            self.core.run(lambda commit: append_segments(commit, topic, written))
        model, handle = self._model(topic), self.journal.topic(topic)
        new = range(model.latest + 1, model.latest + count + 1)
        for seq in new:
            event = handle.get(seq)
            assert event is not None, f"position {seq} of a bulk write of {count}"
            self.ids[topic, seq] = event.id
        model.append(drafts, self.clock.now_ms(), self._find)
        if target is not None:
            model.filed, model.referred = model.latest, model.referred | {*new}
        self.topics[topic] = model

    @rule(
        2,
        topic=one_of("a", "a", "b"),
        consumer=one_of("c1", "c2"),
        how=one_of("commit", "commit", "seek", "forget"),
        share=a_share,
        http=one_of(False, True),
    )
    def move_cursor(self, topic: str, consumer: str, how: str, share: float, http: bool) -> None:
        if topic not in self.topics:
            return
        model = self._model(topic)
        handle = ((self.client() if http else None) or self.stores[-1]).topic(topic)
        if how == "forget":
            same("forget", handle.forget(consumer), model.cursors.pop(consumer, None) is not None)
        else:
            seq = round(share * model.latest)
            if how == "commit":
                handle.commit(consumer, seq)
            else:
                handle.seek(consumer, seq)
            model.move(consumer, seq, back=how == "seek")
        self._keep(model)

    @rule(1, topic=one_of("a", "a", "b"), count=one_of(3, 20), seed=a_seed)
    def roll_back(self, topic: str, count: int, seed: int) -> None:
        drafts, models = [self._without_rows(draft) for draft in self._drafts(count, seed)], dict[str, TopicModel]()
        with suppress(ZeroDivisionError), self.journal.transaction() as tx:
            self._appended(models, topic, drafts, tx.append_many(topic, drafts))
            self._read_inside(tx, models[topic])
            raise ZeroDivisionError

    @rule(3, seconds=one_of(0.001, 1, 60, 40_000, 90_000))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._remove_what_is_too_old()

    def _remove_what_is_too_old(self) -> None:
        """Removes what readers are not shown any more; contract tests ask for what is hidden and still stored."""
        if any(model.max_age is not None for model in self.topics.values()):
            self.maintain()

    # ── what is kept ─────────────────────────────────────────────────────────────────────────────────────────────────
    @rule(3, topic=one_of("a", "a", "b"), share=a_share)
    def compact(self, topic: str, share: float) -> None:
        model = self._model(topic)
        through = round(share * (model.latest + 1))
        report = self.journal.topic(topic).compact(through, force=True)
        same("compact", report.removed, model.compact(through))
        self._keep(model)

    @rule(3, topic=one_of("a", "a", "b"))
    def compact_keys(self, topic: str) -> None:
        model = self._model(topic)
        same("compact_keys", self.journal.topic(topic).compact_keys(), model.compact_keys())
        self._keep(model)

    @rule(3, topic=one_of("a", "a", "b"), count=one_of(1, 2, 9), seed=a_seed)
    def erase(self, topic: str, count: int, seed: int) -> None:
        model = self._model(topic)
        if topic in self.topics and model.events:
            chosen = random.Random(seed).sample(sorted(model.events), min(count, len(model.events)))
            report = self.journal.topic(topic).erase(chosen, by="ada")
            same("erase", report.events, model.erase(chosen, from_ms(self.clock.now_ms()).isoformat(), "ada"))
            self._keep(model)

    def _keep(self, model: TopicModel) -> None:
        if model.name in self.topics:
            self.topics[model.name] = model

    @rule(
        2,
        topic=one_of("a", "a", "b"),
        change=one_of(("max_events", 30), ("max_events", None), ("by_key", True), ("by_key", False),
                      ("indexed", False), ("indexed", True), ("verified", True), ("max_age", 50_000.0),
                      ("max_age", None), ("dedup_window", 30.0), ("dedup_window", 50_000.0), ("dedup_window", None)),
    )  # fmt: skip
    def configure(self, topic: str, change: tuple[str, Any]) -> None:
        name, value = change
        if topic not in self.topics:
            return
        model = self._model(topic)
        opposite = {"by_key": "verified", "verified": "by_key"}.get(name, "")
        if value is True and opposite and getattr(self.journal.topic(topic).settings, opposite):
            with pytest.raises(ConfigError, match="verified"):
                self.journal.topic(topic).configure(**{name: value})
            return
        settings = self.journal.topic(topic).configure(**{name: value})
        same("configure", getattr(settings, name), value)
        if name in ("max_events", "max_age", "by_key"):
            setattr(model, name, value)
        elif name == "dedup_window":
            model.change_window(value, self.clock.now_ms())
        self._keep(model)
        self._remove_what_is_too_old()

    @rule(1, topic=one_of("a", "b"))
    def stop_verifying(self, topic: str) -> None:
        """A topic is verified for good."""
        if topic in self.topics and self.journal.topic(topic).settings.verified:
            with pytest.raises(ConfigError, match="for good"):
                self.journal.topic(topic).configure(verified=False)

    @rule(2, topic=one_of("a", "a", "b"))
    def drop(self, topic: str) -> None:
        model = self.topics.pop(topic, None)
        if model is None:
            return
        report = self.journal.drop_topic(topic, force=True)
        same("drop_topic", report.events, len(model.events))
        if model.latest:
            self.ended[topic] = model
        self.lakes[topic] = self.lakes.get(topic, 0) + 1

    # ── rearranging: nothing of this changes an answer ───────────────────────────────────────────────────────────────
    @rule(
        9,
        topic=one_of("a", "a", "a", "b"),
        share=one_of(None, None, 1.0, 0.3, 0.6, 0.9),
        file_events=one_of(1000, 1000, 5, 20),
        compact=one_of(False, False, True),
        elsewhere=one_of(False, False, False, True),
        partition_by=one_of(None, None, None, "kind"),
    )
    def seal(
        self,
        topic: str,
        share: float | None,
        file_events: int,
        compact: bool,
        elsewhere: bool,
        partition_by: str | None,
    ) -> None:
        model = self._model(topic)
        if topic not in self.topics or self.journal.topic(topic).settings.by_key:
            return
        lake = f"{self.folder}/lake-{self.lakes.get(topic, 0)}{'-other' if elsewhere else ''}{partition_by or ''}"
        through = None if share is None else round(share * model.latest)
        if through is not None and through < 1:
            return
        report = seal_topic(
            self.core,
            topic,
            lake=lake,
            through=through,
            file_events=file_events,
            table=TableRequest(partition_by=partition_by),
            compact=compact,
        )
        before = max(model.sealed, model.trimmed)
        model.sealed = max(model.sealed, report.through)
        assert before <= model.sealed <= model.latest, report
        same(
            "seal",
            report.events,
            len([seq for seq in model.events if before < seq <= model.sealed and seq not in model.referred]),
        )
        self._keep(model)

    @rule(3)
    def maintain(self) -> None:
        self.journal.maintain()
        for model in self.topics.values():
            model.maintain(self.clock.now_ms())

    @rule(3)
    def passing(self) -> None:
        """What threads in the background do in passing: merging in tiers, retention, runs of the index."""
        for name, model in self.topics.items():
            self.core.housekeeper.maintain(name)
            model.maintain(self.clock.now_ms())
        self.core.indexer._take_up()
        self.core.indexer._do_due()
        self.core.housekeeper.clear_dropped()

    @rule(2, topic=one_of("a", "a", "b"))
    def merge_index(self, topic: str) -> None:
        self.core.indexer._merge_in_turn(topic)

    @rule(3, topic=one_of("a", "a", "a", "b"), steps=one_of(0, 1, 2, 3, 5, 8))
    def build_half_an_index(self, topic: str, steps: int) -> None:
        """An indexer that is stopped after some commits, as when its process ends."""
        left = steps

        def stopped(do: Any) -> Callable[..., Any]:
            def until(building: Any, apply: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise InterruptedError
                return do(building, apply)

            return until

        with suppress(InterruptedError), patch.object(indexer.Building, "_do", stopped(indexer.Building._do)):
            self.core.indexer.index(topic, thorough=True)

    @rule(2, topic=one_of("a", "a", "b"), through_other=one_of(False, True))
    def reindex(self, topic: str, through_other: bool) -> None:
        self.stores[-1 if through_other else 0].topic(topic).reindex()

    @rule(2, topic=one_of("a", "a", "b"), whole=one_of(False, True))
    def rebuild(self, topic: str, whole: bool) -> None:
        if topic in self.topics:
            self.journal.topic(topic).rebuild(Seen, whole=whole)

    @rule(2, topic=one_of("a", "a", "b"))
    def verify(self, topic: str) -> None:
        if topic in self.topics:
            report = self.journal.topic(topic).verify()
            same("verify", (report.ok, report.events + report.unhashed), (True, len(self.topics[topic].events)))

    # ── ending and moving ────────────────────────────────────────────────────────────────────────────────────────────
    @rule(7)
    def reopen(self) -> None:
        self._let_go()
        self._open()

    @rule(2)
    def end_without_closing(self) -> None:
        self._let_go(abandon=True)
        if self.engine != "memory":
            for store in self.abandoned:
                store.close()
            self.abandoned = []
        self._open()

    @rule(2)
    def go_on_with_the_files(self) -> None:
        """What a killed process leaves behind: a copy of the files as they are.

        Not of RocksDB, whose own threads exchange files while they are copied; the crash tests kill it for real.
        """
        if self.engine in ("sqlite", "file"):
            old, self.url = Path(self.url.partition(":")[2]), self._new_place()
            new = Path(self.url.partition(":")[2])
            if old.is_dir():
                copy_as_it_is(old, new)
            else:
                for suffix in ("", "-wal"):
                    if Path(f"{old}{suffix}").exists():
                        shutil.copy(f"{old}{suffix}", f"{new}{suffix}")
        self._let_go()
        self._open()

    @rule(2)
    def restore_a_backup(self) -> None:
        place = self._new_place()
        self.journal.backup(place.partition(":")[2] if self.engine != "memory" else place)
        self._let_go()
        self.url = place
        self._open()

    @rule(2, engine=one_of("memory", "sqlite", "file"))
    def move_to(self, engine: str) -> None:
        self.engine, before = engine, self.engine
        place = self._new_place()
        self.journal.copy_to(place)
        self.engine = before
        self._let_go()
        self.engine, self.url = engine, place
        self._open()

    @rule(2, format=one_of("jsonl", "parquet"), twice=one_of(False, True))
    def export_and_import(self, format: Any, twice: bool) -> None:
        """Events into a new journal; what lies in a lake comes along as events."""
        self.made += 1
        folder = self.folder / f"export-{self.made}"
        for _ in range(2 if twice else 1):
            self.journal.export(folder, format=format, topics=sorted(self.topics))
        place = self._new_place()
        self._let_go()
        self.url = place
        self._open()
        for _ in range(2 if twice else 1):
            self.journal.import_(folder)
        self.ended = {}
        for name, model in self.topics.items():
            model.sealed, model.filed, model.referred = 0, 0, frozenset()
            model.newest = {known.key: known.seq for known in model.stored() if known.key is not None}
            model.cursors, model.dedups = {}, {}
            self.lakes[name] = self.lakes.get(name, 0) + 1


def _rows(topic: str, drafts: list[Draft]) -> pa.RecordBatch:
    """Drafts as the columns that a bulk write takes."""
    payloads = [one.payload if isinstance(one.payload, bytes) else msgspec.json.encode(one.payload) for one in drafts]
    texts = {
        name: pa.array([getattr(one, name) for one in drafts], pa.string())
        for name in ("kind", "key", "scope", "correlation")
    }
    columns: dict[str, pa.Array] = {
        "topic": pa.array([topic] * len(drafts)),
        "payload": pa.array(payloads, pa.binary()),
        "binary": pa.array([isinstance(one.payload, bytes) for one in drafts]),
        "headers": pa.array([list((one.headers or {}).items()) for one in drafts], pa.map_(pa.string(), pa.string())),
        "tags": pa.array([pack_tags(check_tags(one.tags)) if one.tags else None for one in drafts], pa.string()),
        **texts,
    }
    if all(one.occurred_at for one in drafts):
        columns["occurred_at"] = pa.array([one.occurred_at for one in drafts], pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_pydict(columns)


RULES = rules_of(StoreWorld)
