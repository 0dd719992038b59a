"""A place for one journal in object storage, opened as often as a test needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import penstock
from penstock.engine.slatedb.engine import SlatedbEngine
from penstock.errors import OutcomeUnknown, StorageError
from penstock.local.journal import LocalJournal
from waiting import eventually

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
