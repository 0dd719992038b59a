"""A place for one journal in object storage, opened as often as a test needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import slatedb.uniffi as sl

import penstock
from penstock.core.local.backend import LocalJournal
from penstock.engines.slatedb.bridge import call
from penstock.engines.slatedb.database import collectable_age
from penstock.engines.slatedb.engine import SlatedbEngine
from penstock.errors import OutcomeUnknown, StorageError
from waiting import DEADLINE, eventually

T = TypeVar("T")


def insist(act: Callable[[], T]) -> T:
    """What an act gives at last: with little patience for its store, it may fail now and then on a busy machine."""
    given: list[T] = []

    def given_something() -> bool:
        try:
            given.append(act())
        except StorageError as error:
            assert error.retryable or isinstance(error, OutcomeUnknown)
        return bool(given)

    eventually(given_something)
    return given[0]


def collect(engine: Any, age_ms: int | None = None) -> None:
    """Removes objects that no state refers to, as SlateDB does now and then: of a safe age, or of the age given."""
    safe = age_ms is None
    least = round(collectable_age(engine.options.lease) * 1000) if age_ms is None else age_ms
    age = sl.GarbageCollectorDirectoryOptions(min_age_ms=least, dry_run=False)
    options = sl.GarbageCollectorOptions(
        manifest_options=age,
        wal_options=age,
        wal_fence_options=None if safe else age,
        compacted_options=age,
        compactions_options=age,
        detach_options=None,
    )
    call(engine._location.admin().run_gc_once(options), DEADLINE)


@dataclass
class Home:
    """A place for one journal, and how to open it."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    opened: list[LocalJournal] = field(default_factory=list)

    def open(self, **options: Any) -> LocalJournal:
        if self.options:
            options["store_options"] = self.options
        journal = penstock.open(self.url, **options)
        assert isinstance(journal, LocalJournal)
        self.opened.append(journal)
        return journal

    def open_reader(self, timeout: float) -> LocalJournal:
        """A reader that waits so long for its store once it is open: a busy machine may take longer to open it."""
        journal = self.open(read_only=True)
        engine = journal._engine
        assert isinstance(engine, SlatedbEngine) and engine._follower is not None
        engine._timeout = engine._follower._timeout = engine._follower._base._timeout = timeout
        return journal

    def close(self) -> None:
        for journal in self.opened:
            journal.close()
