"""Transactions: one caller holds the writer, and its changes are all committed or all rolled back.

A transaction belongs to the thread that began it, and ends with the thread. The writer is released however the block
ends, in whichever thread; it is also released when the block never ends because the thread has ended or the transaction
was dropped.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from types import CodeType
from typing import TYPE_CHECKING, TypeVar

from penstock.core.engine.contract import WriteTx
from penstock.core.events import Event
from penstock.core.journal.commit import Commit
from penstock.core.journal.index.index import read_view
from penstock.core.journal.locating import find_event
from penstock.core.journal.reading import TopicView
from penstock.core.journal.writer import Shield, always_busy, is_inside, late_signals, let_signal_through
from penstock.core.model.query import EventQuery
from penstock.core.observe.logs import Log
from penstock.errors import Closed, ConfigError, PenstockError, StorageError

if TYPE_CHECKING:
    from penstock.core.journal.core import JournalCore

T = TypeVar("T")


log = Log("penstock.writer")


class _ThreadLife:
    """An object that lives as long as its thread, and ends the transactions that the thread has left open."""

    __slots__ = ("open", "owner")

    def __init__(self) -> None:
        self.owner = object()
        """An object that stands for the thread; unlike a thread's id, it is never reused."""
        self.open: list[HeldWriter] = []

    def __del__(self) -> None:
        for held in self.open[:]:
            held.drop("the thread that began it has ended, and its block had not")


class _CallingThread(threading.local):
    """The life of the calling thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.life = _ThreadLife()


_here = _CallingThread()
os.register_at_fork(after_in_child=_here.begin)  # transactions of the forking thread belong to the parent


class HeldWriter:
    """A journal's writer during one caller's transaction, and the commit of its changes.

    `beginning` and `ending` are the code of the methods in which the transaction begins and ends: these methods are not
    interrupted half-way.
    """

    def __init__(self, core: JournalCore, beginning: CodeType, ending: CodeType) -> None:
        self.core = core
        self.committed = False
        self.is_open = False
        """True if it holds the writer."""
        self._owner: object = None
        """An object that stands for the thread that began the transaction."""
        self._among: list[HeldWriter] = []
        """The transactions that the thread has open."""
        self._steps = core.writer.steps
        self._tx: WriteTx | None = None
        self._commit: Commit | None = None
        self._spoiled: BaseException | None = None
        self._lost: PenstockError | None = None
        """The reason why nothing was kept, when the transaction was not ended by its block."""
        # The body may be interrupted, and then ends here. The ending must not be interrupted, nor the beginning once
        # others wait for this transaction: its `with` would not call `__exit__`.
        self._until_ended = Shield(
            lambda frame: is_inside(frame, [ending]) or (self._owner is not None and is_inside(frame, [beginning]))
        )

    def begin(self) -> None:
        if self._owner is not None:
            raise ConfigError("a transaction is used once: ask the journal for another one")
        writer = self.core.writer
        writer.check_idle_here()
        try:
            self._until_ended.__enter__()
            with writer.shield:
                writer.hold_lead()
                life = _here.life
                self._owner = life.owner
                tx = writer.engine.write()
                tx.__enter__()
                self._tx = tx
                self._commit = writer.begin(tx)
                self._among = life.open
                self._among.append(self)
                self.is_open = True
        except BaseException as error:
            with writer.shield:
                self._roll_back(error)
            if self in self._among:
                self._among.remove(self)
            writer.release_lead()
            self._until_ended.__exit__(None, None, None)
            raise

    def end(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Commits the transaction.

        Rolls it back when the caller's block raised, when a step failed half-way, or when it ends in another thread or
        process than it began in.
        """
        if self._owner is None:
            return
        try:
            if self._owner is not _here.life.owner:
                self._end_elsewhere()
            else:
                with self._steps:  # uninterrupted: this is inside `ending`
                    if self._commit is not None:
                        self._finish(self._commit, kind, error)
        finally:
            self._until_ended.__exit__(None, None, None)
        # An error that leaves the block is reported anyway; a closed generator would end as if it had succeeded.
        if self._lost is not None and (kind is None or kind is GeneratorExit):
            raise self._lost

    def _end_elsewhere(self) -> None:
        if not self.is_open:
            return
        if self._is_inherited():
            # the engine's transaction belongs to the parent and stays untouched
            self.is_open, self._tx, self._commit = False, None, None
            self._lost = Closed(
                f"nothing of this transaction was kept: it belongs to process {self.core.writer.pid}, and this one was "
                "forked from it; open the store again in the child"
            )
        else:
            self._lose(
                "its block ended in another thread than it began in (as when a generator is closed by another thread); "
                "begin and end it in one thread"
            )

    def drop(self, why: str) -> None:
        """Ends a transaction whose block will not end; a failure is logged."""
        if not self.is_open or self._is_inherited() or sys.is_finalizing():
            return
        try:
            self._lose(why)
        except Exception:
            log.exception("a transaction could not be rolled back: %s", why)
        else:
            log.warning("a transaction was rolled back: %s", why)

    def _lose(self, why: str) -> None:
        """Rolls back and releases the writer, in any thread."""
        with Shield(always_busy), self._steps:
            if not self.is_open:
                return
            self._lost = ConfigError(f"nothing of this transaction was kept: {why}")
            try:
                self._roll_back(None)
            finally:
                self._release()
                self._until_ended.lower()

    def _release(self) -> None:
        self.is_open = False
        self._among.remove(self)
        self.core.writer.let_go()

    def _is_inherited(self) -> bool:
        """Returns True if this process was forked from the process of the transaction."""
        return os.getpid() != self.core.writer.pid

    def _finish(self, commit: Commit, kind: type[BaseException] | None, error: BaseException | None) -> None:
        try:
            if kind is not None:
                self._roll_back(error)
            elif self._spoiled is not None:
                self._roll_back(self._spoiled)
                raise StorageError(
                    f"nothing of this transaction was kept: one of its steps failed half-way ({self._spoiled})"
                ) from self._spoiled
            else:
                self._keep(commit)
        finally:
            self._release()

    def _keep(self, commit: Commit) -> None:
        """Commits; when the commit fails, nothing is kept."""
        begun = perf_counter()  # the user's own time inside the transaction does not count as the writer's
        writer, tx = self.core.writer, self._tx
        assert tx is not None
        try:
            commit.flush()
        except BaseException as error:
            self._roll_back(error)
            raise
        self._tx = self._commit = None
        try:
            tx.__exit__(None, None, None)
        except BaseException:
            writer.catalog.forget()
            raise
        commit.publish()
        writer.measures.committed(1, perf_counter() - begun, writer.engine.durability == "disk", commit.touched)
        if commit.touched:
            writer.announce(commit.touched)
        self.committed = True

    def _roll_back(self, error: BaseException | None) -> None:
        """Undoes what was changed, if the transaction has begun."""
        tx, self._tx, self._commit = self._tx, None, None
        if tx is not None:
            self.core.writer.catalog.forget()
            reason = error or RuntimeError("rolled back")
            tx.__exit__(type(reason), reason, reason.__traceback__)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def check_open(self) -> None:
        """Raises Closed when the transaction is over."""
        if not self.is_open:
            why = "(or never began): use it inside its `with` block" if self._lost is None else f"({self._lost})"
            raise Closed(f"the transaction is over {why}")

    def _under_way(self) -> Commit:
        """Returns the commit under way; ConfigError in another thread than the transaction's own."""
        commit = self._commit
        if commit is None:
            self.check_open()
        assert commit is not None
        if self._owner is not _here.life.owner:
            self.core.writer.check_process()
            raise ConfigError("a transaction belongs to the thread that began it; begin another one in this thread")
        if late_signals:  # the interrupt came while the transaction began
            let_signal_through()
        return commit

    def look(self, apply: Callable[[Commit], T]) -> T:
        """Runs a function that changes nothing."""
        with self._steps:
            return apply(self._under_way())

    def change(self, apply: Callable[[Commit], T]) -> T:
        """Runs a step. A step that fails half-way spoils the transaction, even if the caller goes on."""
        with self._steps:
            commit = self._under_way()
            before = commit.changes
            try:
                return apply(commit)
            except BaseException as error:
                if commit.changes != before:
                    self._spoiled = error
                raise

    def flush(self) -> None:
        """Writes everything appended so far, for reading."""
        self.look(self._flushed)

    def find_cause(self, id: str) -> Event | None:
        """Returns the event with an id, this transaction's own included."""
        return self.look(lambda commit: find_event(self._flushed(commit).tx, id))

    def read(self, topic: str, query: EventQuery) -> Iterator[Event]:
        """Reads a topic with this transaction's own appends in it."""

        def found(commit: Commit) -> list[Event]:
            view = TopicView.open(self._flushed(commit).tx, topic, commit.now_ms)
            if view is None or query.nothing:
                return []
            return list(read_view(view, query, self.core.index.open_within))

        return iter(self.look(found))

    def _flushed(self, commit: Commit) -> Commit:
        try:
            commit.flush()
        except BaseException as error:  # the written and the unwritten part can no longer be distinguished
            self._spoiled = error
            raise
        return commit
