"""Journals as Spark's processes open them: planners, tasks and commits each in a process of their own.

A worker process is used for many tasks, so that an open journal is kept per process, for reading only. Processes are
forked from one another and engines refuse to be used by a child, hence the process id in the key.

What is planned in one process is done in another, perhaps on another machine. So the journal's id travels with every
share of the work, and a process that finds another journal under the same name refuses.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from penstock.api import open_local
from penstock.engine.url import OBJECT_SCHEMES, parse_url
from penstock.entity.staging.declared import add_gates, load_gates
from penstock.errors import ConfigError, Locked, NoStore
from penstock.limits import SPARK_HOLD_SECONDS
from penstock.local.journal import LocalJournal
from penstock.spark.source.place import is_served
from penstock.spark.startup.settings import MASTER_VARIABLE

if TYPE_CHECKING:
    from penstock.engine.slatedb.options import ObjectOptions

REMOTE = tuple(scheme for scheme in OBJECT_SCHEMES if scheme != "slatedb")
"""Schemes of journals that every machine can reach."""
_KEPT = 8
"""Journals a worker process keeps open."""
TURN_SECONDS = 20.0
"""How long a commit waits until another one lets go of a journal in an object store: longer than opening takes."""
_TURN_PAUSE = 0.1


class _OpenJournal(NamedTuple):
    journal: LocalJournal
    identity: tuple[int, int] | None


_kept: dict[tuple[int, str], _OpenJournal] = {}


def reading(url: str, id: str | None = None, *, newest: bool = False) -> LocalJournal:
    """The journal, open for reading; it stays open for the next task of this process.

    `id` is the journal's own, where the work was planned; ConfigError when the one found here is another. Then, or when
    `newest` is wanted, everything is seen that was committed before: a kept reader of a bucket may be a moment behind.
    """
    journal = _opened(url)
    if id is not None or newest:
        try:
            journal._engine.catch_up()
        except ConfigError:
            if journal._engine.usable():
                raise
            journal = _opened(url)  # in a bucket, too, a store may have been deleted and made again
    _check_same(journal, url, id)
    return journal


def _opened(url: str) -> LocalJournal:
    slot = (os.getpid(), url)
    kept = _kept.get(slot)
    if kept is not None:
        usable = not kept.journal.closed and kept.journal._engine.usable()
        if usable and kept.identity == _identity(kept.journal):
            return kept.journal
        del _kept[slot]
        kept.journal.close()
    for other in [other for other in _kept if other[0] != slot[0]]:
        del _kept[other]  # the parent's: not ours to close
    while len(_kept) >= _KEPT:
        _kept.pop(next(iter(_kept))).journal.close()
    journal = open_local(url, read_only=True, options=_options(url))
    _kept[slot] = _OpenJournal(journal, _identity(journal))
    return journal


def _options(url: str) -> ObjectOptions | None:
    """In an object store a task's tables are kept for it by a checkpoint, however long compaction has replaced them."""
    if parse_url(url)[0] not in OBJECT_SCHEMES:
        return None
    from penstock.engine.slatedb.options import ObjectOptions

    return ObjectOptions(hold=SPARK_HOLD_SECONDS)


@contextmanager
def writing(url: str, id: str | None = None, gates: Sequence[str] = ()) -> Iterator[LocalJournal]:
    """The journal, open for one change; let go of at once, since other processes may want an engine that allows one.

    `id`: as for `reading`. `gates`: the names of those that see what is written.

    Of SQLite a reader stays open in this process: where no other process has the file open, letting go of it completely
    makes SQLite put its log away, which costs a batch more than the change itself (26 ms instead of 10 ms).
    """
    with _opened_to_write(url) as journal:
        _check_same(journal, url, id)
        if gates:
            add_gates(journal._entities.gates, load_gates(gates))
        yield journal
        if parse_url(url)[0] == "sqlite":
            reading(url)


def _opened_to_write(url: str) -> LocalJournal:
    """Waits for its turn in an object store, which commits of other queries, or of a killed driver, hold shortly."""
    deadline = time.monotonic() + TURN_SECONDS
    while True:
        try:
            return open_local(url)
        except Locked as error:
            if parse_url(url)[0] not in OBJECT_SCHEMES:
                raise
            if time.monotonic() > deadline:
                raise Locked(
                    f'{error}. From Spark, name a server that writes it: option("writer", "https://…")'
                ) from error
        time.sleep(_TURN_PAUSE)


def journal_id(url: str) -> str | None:
    """The id of the journal at a url; None when there is none yet."""
    scheme, path = parse_url(url)
    if scheme not in REMOTE and not os.path.exists(path):  # noqa: PTH110
        return None
    try:
        return reading(url).id or None
    except NoStore:  # a bucket, or a folder with nothing but what tasks have staged
        return None


def check_reach(url: str, master: str | None = None) -> None:
    """ConfigError when Spark's tasks run on other machines than the one whose file a journal is.

    `master` is Spark's; without it, what `session()` told the processes that it started.
    """
    if is_served(url):
        return
    master = master or os.environ.get(MASTER_VARIABLE, "local")
    scheme, path = parse_url(url)
    if scheme in REMOTE or master.startswith("local"):
        return
    raise ConfigError(
        f"the master {master} runs tasks on other machines, and the journal {path} is a file of this one: use a master "
        'like "local[4]", the url of a server (`penstock serve` on this machine, then url=http://…), a journal in '
        "object storage (s3://bucket/shop), or write to a buffer and read that"
    )


def _check_same(journal: LocalJournal, url: str, id: str | None) -> None:
    if id is not None and journal.id != id:
        raise ConfigError(
            f"on {socket.gethostname()} there is another journal at {url} than where this query was planned: it was "
            "replaced meanwhile, or this machine has a file of the same name; tasks on several machines need the url "
            "of a server (http://…), a journal in object storage, or a buffer"
        )


def _identity(journal: LocalJournal) -> tuple[int, int] | None:
    """Which file this is: a store that was deleted and made again has the same url and is another one."""
    location = journal._engine.location
    try:
        found = os.stat(location or "")  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino
