"""Any interleaving of appends, fences, cancels, compaction, indexing and reopening shows exactly the committed events.

The model is a list. After every step each topic reads as the model says, whole and by key; generations, projections
(whatever was cached) and kept hashes agree; and nothing hidden has come out.
"""

from __future__ import annotations

import gc
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import penstock
from nightly import examples
from penstock import Draft, Event, Fence, Journal, ManualClock, Projection, Ticket
from penstock import on as handles
from penstock.errors import Conflict, FenceActive, FenceCancelled

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))

from small_index import small_index

KEYS = ["a", "b", "aa", None]
NAMES = ["plain", "verified"]
_stores = itertools.count()


class Sum(Projection):
    total: int = 0
    seen: list[int] = []

    @handles("e", "f")
    def add(self, payload: Any) -> None:
        self.total += payload

    @handles("f")
    def note(self, event: Event) -> None:
        self.seen.append(event.seq)


class Entities(RuleBasedStateMachine):
    """A journal and what should be in it."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.small = small_index()
        self.small.__enter__()
        self.clock = ManualClock()
        self.model: dict[str, list[tuple[int, str, Any, str | None] | None]] = {name: [] for name in NAMES}
        self.fence: Fence | None = None
        self.hidden: list[tuple[str, Ticket[Any], str, Any, str | None]] = []
        self.abandoned: list[Journal] = []
        self.numbers = itertools.count(1)

    @initialize()
    def begin(self) -> None:
        self.journal = self.opened()
        self.journal.topic("verified").configure(verified=True)

    def opened(self) -> Journal:
        return penstock.open(self.url, clock=self.clock, durability="process")

    def teardown(self) -> None:
        for journal in [*self.abandoned, self.journal]:
            journal.close()
        self.small.__exit__(None, None, None)

    def note(self, name: str, seq: int, kind: str, payload: Any, key: str | None) -> None:
        events = self.model[name]
        assert seq == len(events) + 1
        events.append((seq, kind, payload, key))

    def stored(self, name: str) -> list[tuple[int, str, Any, str | None]]:
        return [event for event in self.model[name] if event is not None]

    def newest(self, name: str, key: str) -> int:
        return max((seq for seq, _, _, at in self.stored(name) if at == key), default=0)

    # ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────
    names = st.sampled_from(NAMES)
    kinds = st.sampled_from(["e", "f", "other"])
    keys = st.sampled_from(KEYS)
    drafts = st.lists(st.tuples(kinds, keys), min_size=1, max_size=12)

    @rule(name=names, drafts=drafts)
    def append(self, name: str, drafts: list[tuple[str, str | None]]) -> None:
        made = [Draft(kind, next(self.numbers), key=key) for kind, key in drafts]
        if self.fence is not None and self.fence.exclusive:
            with pytest.raises(FenceActive):
                self.journal.topic(name).append_many(made)
            return
        for draft, receipt in zip(made, self.journal.topic(name).append_many(made), strict=True):
            self.note(name, receipt.seq, draft.kind, draft.payload, draft.key)

    @precondition(lambda self: self.fence is None)
    @rule(name=names, key=st.sampled_from(["a", "b", "aa"]), off=st.sampled_from([0, 0, 0, 1]))
    def append_expecting(self, name: str, key: str, off: int) -> None:
        actual, number = self.newest(name, key), next(self.numbers)
        if off:
            with pytest.raises(Conflict) as conflict:
                self.journal.topic(name).append("e", number, key=key, expect=actual + off)
            assert (conflict.value.expected, conflict.value.actual) == (actual + off, actual)
            return
        receipt = self.journal.topic(name).append("e", number, key=key, expect=actual)
        self.note(name, receipt.seq, "e", number, key)

    @precondition(lambda self: self.fence is None)
    @rule(drafts=st.lists(st.tuples(names, keys), min_size=1, max_size=6), fails=st.booleans())
    def flush_an_outbox(self, drafts: list[tuple[str, str | None]], fails: bool) -> None:
        outbox = self.journal.outbox()
        staged = [(name, next(self.numbers), key) for name, key in drafts]
        for place, (name, number, key) in enumerate(staged):
            outbox.stage(name, "f", number, key=key, cause=place - 1 if place else None)
        if fails:
            outbox.stage("plain", "e", 0, key="a", expect=self.newest("plain", "a") + 1)
            with pytest.raises(Conflict):
                outbox.flush()
            return
        for (name, number, key), receipt in zip(staged, outbox.flush(), strict=True):
            self.note(name, receipt.seq, "f", number, key)

    @precondition(lambda self: self.fence is None)
    @rule(name=names, keys=st.lists(keys, min_size=1, max_size=4), fails=st.booleans())
    def transact(self, name: str, keys: list[str | None], fails: bool) -> None:
        made: list[tuple[int, int, str | None]] = []
        try:
            with self.journal.transaction() as tx:
                for key in keys:
                    number = next(self.numbers)
                    made.append((tx.append(name, "e", number, key=key).seq, number, key))
                    if key is not None:
                        own = [seq for seq, _, at in made if at == key]
                        before = [seq for seq, _, _, at in self.stored(name) if at == key]
                        assert [event.seq for event in tx.read(name, key=key)] == before + own
                if fails:
                    raise KeyError
        except KeyError:
            return
        for seq, number, key in made:
            self.note(name, seq, "e", number, key)

    # ── fences ───────────────────────────────────────────────────────────────────────────────────────────────────────
    @precondition(lambda self: self.fence is None)
    @rule(exclusive=st.booleans())
    def open_a_fence(self, exclusive: bool) -> None:
        self.fence = self.journal.fence(exclusive=exclusive)

    @precondition(lambda self: self.fence is not None)
    @rule(name=names, kind=kinds, key=keys)
    def submit_through_the_fence(self, name: str, kind: str, key: str | None) -> None:
        assert self.fence is not None
        number = next(self.numbers)
        self.hidden.append((name, self.fence.submit(name, kind, number, key=key), kind, number, key))

    @precondition(lambda self: self.fence is not None)
    @rule()
    def commit_the_fence(self) -> None:
        assert self.fence is not None
        receipts = self.fence.commit()
        assert len(receipts) == len(self.hidden)
        for (name, ticket, kind, number, key), receipt in zip(self.hidden, receipts, strict=True):
            assert ticket.result(0) == receipt
            self.note(name, receipt.seq, kind, number, key)
        self.fence, self.hidden = None, []

    @precondition(lambda self: self.fence is not None)
    @rule(how=st.sampled_from(["cancel", "drop", "close", "abandon"]))
    def end_the_fence_without_committing(self, how: str) -> None:
        fence, self.fence = self.fence, None
        assert fence is not None
        if how == "cancel":
            fence.cancel()
        elif how == "close":
            self.journal.close()
            self.journal = self.opened()
        elif how == "abandon":  # as when the process dies: nobody closes anything
            self.abandoned.append(self.journal)
            self.journal = self.opened()
        del fence
        gc.collect()
        for _, ticket, *_ in self.hidden:
            assert isinstance(ticket.exception(60), FenceCancelled)
        self.hidden = []

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────
    @precondition(lambda self: self.fence is None)
    @rule(crash=st.booleans())
    def reopen(self, crash: bool) -> None:
        if crash:
            self.abandoned.append(self.journal)
        else:
            self.journal.close()
        self.journal = self.opened()

    @rule(name=names, share=st.floats(0, 0.6))
    def compact(self, name: str, share: float) -> None:
        through = int(len(self.model[name]) * share)
        self.journal.topic(name).compact(through)
        for place in range(through):
            self.model[name][place] = None

    @rule()
    def compact_by_key(self) -> None:
        self.journal.topic("plain").compact_keys()
        seen: set[str] = set()
        events = self.model["plain"]
        for place in range(len(events) - 1, -1, -1):
            event = events[place]
            if event is not None and event[3] is not None:
                if event[3] in seen:
                    events[place] = None
                seen.add(event[3])

    @rule(name=names)
    def index(self, name: str) -> None:
        self.journal._core.indexer.index(name)

    @rule()
    def maintain(self) -> None:
        self.journal.maintain()

    @rule(name=names, whole=st.booleans())
    def rebuild(self, name: str, whole: bool) -> None:
        self.journal.topic(name).rebuild(Sum, whole=whole)

    # ── what must hold ───────────────────────────────────────────────────────────────────────────────────────────────
    @invariant()
    def shows_exactly_what_was_committed(self) -> None:
        if not hasattr(self, "journal"):
            return
        for name in NAMES:
            topic = self.journal.topic(name)
            expected = self.stored(name)
            assert [(event.seq, event.kind, event.payload, event.key) for event in topic.read()] == expected
            assert len(topic) == len(expected) and topic.latest == len(self.model[name])
            for key in ("a", "b", "aa"):
                own = [(seq, payload) for seq, _, payload, at in expected if at == key]
                assert [(event.seq, event.payload) for event in topic.read(key=key)] == own
                assert topic.position_of(key) == (own[-1][0] if own else 0)
                state = topic.project(Sum, key)
                assert state == (Sum.fold(topic.read(key=key)) if own else None)
            assert topic.project(Sum) == (Sum.fold(topic.read()) if expected else None)
        assert not any(ticket.done() for _, ticket, *_ in self.hidden)

    @invariant()
    def hashes_match(self) -> None:
        if hasattr(self, "journal"):
            report = self.journal.topic("verified").verify()
            assert report and report.events == len(self.stored("verified"))


def test_in_memory() -> None:
    class InMemory(Entities):
        @property
        def url(self) -> str:  # type: ignore[override]
            if not hasattr(self, "_url"):
                self._url = f"memory:entity-model-{next(_stores)}"
            return self._url

    _run(InMemory, count=40)


def test_in_sqlite() -> None:
    with tempfile.TemporaryDirectory() as folder:

        class InSqlite(Entities):
            @property
            def url(self) -> str:  # type: ignore[override]
                if not hasattr(self, "_url"):
                    self._url = str(Path(folder) / f"{next(_stores)}.db")
                return self._url

        _run(InSqlite, count=12)


def _run(machine: type[Entities], *, count: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples(count), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
