"""Journals as Spark's processes open them: planners, tasks and commits each in a process of their own.

A worker process is used for many tasks, so that an open journal is kept per process, for reading only. Processes are
forked from one another and engines refuse to be used by a child, hence the process id in the key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock.api import LocalJournal, open_local
from penstock.engine.url import parse_url

_KEPT = 8
"""Journals a worker process keeps open."""


class _OpenJournal(NamedTuple):
    journal: LocalJournal
    identity: tuple[int, int] | None


_kept: dict[tuple[int, str], _OpenJournal] = {}


def reading(url: str) -> LocalJournal:
    """The journal, open for reading; it stays open for the next task of this process."""
    slot = (os.getpid(), url)
    kept = _kept.get(slot)
    if kept is not None:
        if not kept.journal.closed and kept.identity == _identity(kept.journal):
            return kept.journal
        del _kept[slot]
        kept.journal.close()
    for other in [other for other in _kept if other[0] != slot[0]]:
        del _kept[other]  # the parent's: not ours to close
    while len(_kept) >= _KEPT:
        _kept.pop(next(iter(_kept))).journal.close()
    journal = open_local(url, read_only=True)
    _kept[slot] = _OpenJournal(journal, _identity(journal))
    return journal


@contextmanager
def writing(url: str) -> Iterator[LocalJournal]:
    """The journal, open for one change; let go of at once, since other processes may want an engine that allows one.

    Of SQLite a reader stays open in this process: where nobody else has the file open, letting go of it completely
    makes SQLite put its log away, which costs a batch more than the change itself (26 ms instead of 10 ms).
    """
    with open_local(url) as journal:
        yield journal
        if parse_url(url)[0] == "sqlite":
            reading(url)


def _identity(journal: LocalJournal) -> tuple[int, int] | None:
    """Which file this is: a store that was deleted and made again has the same url and is another one."""
    location = journal._engine.location
    try:
        found = os.stat(location or "")  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino
