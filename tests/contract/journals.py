"""A place for a journal on one engine, and the few helpers the journal's contract tests share."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock
from engines import KINDS, Kind
from penstock import Event, Journal
from waiting import DEADLINE, eventually, eventually_async  # noqa: F401 - what contract tests wait with

_names = itertools.count()


class Place:
    """Where a journal on one kind of engine lies; what was opened here is closed when the test ends."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.url = f"{kind.scheme}:{folder / 'store'}" if kind.on_disk else f"memory:journal-{next(_names)}"
        self._open: list[Journal] = []

    def open(self, **options: Any) -> Journal:
        journal = penstock.open(self.url, **options)
        self._open.append(journal)
        return journal

    def reopen(self, journal: Journal, **options: Any) -> Journal:
        journal.close()
        return self.open(**options)

    def backup_urls(self) -> tuple[str, str]:
        """Where a backup goes, as `backup` and as `open` want it."""
        if self.kind.on_disk:
            path = str(self.folder / f"backup-{next(_names)}")
            return path, f"{self.kind.scheme}:{path}"
        return (name := f"memory:journal-{next(_names)}-copy"), name

    def close(self) -> None:
        for journal in self._open:
            journal.close()


def only(**wanted: bool) -> pytest.MarkDecorator:
    """Runs a test only on the engines that do this by design."""
    fitting = [kind for kind in KINDS if all(getattr(kind, name) == value for name, value in wanted.items())]
    return pytest.mark.parametrize("place", fitting, ids=lambda kind: kind.scheme, indirect=True)


def on(*schemes: str) -> pytest.MarkDecorator:
    """Runs a test on some engines: for behaviour that does not depend on which, but must be seen on a real one."""
    fitting = [kind for kind in KINDS if kind.scheme in schemes]
    return pytest.mark.parametrize("place", fitting, ids=lambda kind: kind.scheme, indirect=True)


def seqs(events: Iterable[Event]) -> list[int]:
    return [event.seq for event in events]


def payloads(events: Iterable[Event]) -> list[Any]:
    return [event.payload for event in events]


def seen(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Every field of every event."""
    return [event.as_dict() for event in events]


def contiguous(numbers: Sequence[int]) -> bool:
    return list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
