"""Transactions: the writer held by one caller, whose changes are all committed or all rolled back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.engine.contract import WriteTx
from penstock.errors import Closed, ConfigError, StorageError
from penstock.events import Event
from penstock.journal import interrupts
from penstock.journal.commit import Commit
from penstock.journal.following import event_query
from penstock.journal.interrupts import Shield, is_inside
from penstock.journal.locating import find_event
from penstock.journal.log import read_view
from penstock.journal.reading import TopicView

if TYPE_CHECKING:
    from penstock.journal.core import JournalCore

T = TypeVar("T")


class HeldWriter:
    """A journal's writer over the time of one caller's transaction, and the commit that its changes go into.

    `beginning` and `ending` are the code of the methods in which the transaction begins and ends: they are not
    interrupted half-way.
    """

    def __init__(self, core: JournalCore, beginning: CodeType, ending: CodeType) -> None:
        self.core = core
        self.committed = False
        self._thread: int | None = None
        """The thread that holds the writer, or has held it."""
        self._tx: WriteTx | None = None
        self._commit: Commit | None = None
        self._spoiled: BaseException | None = None
        # The body may be interrupted, and then ends here; what must not be interrupted is the ending, and the beginning
        # from the moment on that others wait for this transaction: its `with` would not call `__exit__`.
        self._until_ended = Shield(
            lambda frame: is_inside(frame, [ending]) or (self._thread is not None and is_inside(frame, [beginning]))
        )

    def begin(self) -> None:
        if self._thread is not None:
            raise ConfigError("a transaction is used once: ask the journal for another one")
        writer = self.core.writer
        writer.check_idle_here()
        try:
            self._until_ended.__enter__()
            with writer.shield:
                writer.hold_lead()
                self._thread = threading.get_ident()
                tx = writer.engine.write()
                tx.__enter__()
                self._tx = tx
                self._commit = writer.begin(tx)
        except BaseException as error:
            with writer.shield:
                self._roll_back(error)
            writer.release_lead()
            self._until_ended.__exit__(None, None, None)
            raise

    def end(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Commits; rolls back when the caller's block raised, or one of its steps failed half-way."""
        if self._commit is None:
            return
        self._check_thread()
        try:
            with self.core.writer.shield:
                self._finish(self._commit, kind, error)
        finally:
            self._until_ended.__exit__(None, None, None)

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
            self.core.writer.release_lead()

    def _keep(self, commit: Commit) -> None:
        """Commits; when that fails, nothing was kept."""
        begun = perf_counter()  # the user's own time inside the transaction is none of the writer's
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

    def commit(self) -> Commit:
        """The commit under way; Closed when the transaction is over."""
        if self._commit is None:
            raise Closed("the transaction is over (or never began): use it inside its `with` block")
        self._check_thread()
        if interrupts.is_waiting():  # it came while the transaction began
            interrupts.let_through()
        return self._commit

    def flushed(self) -> Commit:
        """The same with everything appended so far written, for reading."""
        commit = self.commit()
        try:
            commit.flush()
        except BaseException as error:  # what is written of it, and what is not, cannot be told apart any more
            self._spoiled = error
            raise
        return commit

    def change(self, apply: Callable[[Commit], T]) -> T:
        """Does a step; one that fails half-way spoils the transaction, even if the caller goes on."""
        commit = self.commit()
        before = commit.changes
        try:
            return apply(commit)
        except BaseException as error:
            if commit.changes != before:
                self._spoiled = error
            raise

    def find_cause(self, id: str) -> Event | None:
        """The event with an id, this transaction's own included."""
        return find_event(self.flushed().tx, id)

    def read(self, topic: str, **read: Any) -> Iterator[Event]:
        """Reads a topic with this transaction's own appends in it."""
        commit, query = self.flushed(), event_query(**read)
        view = TopicView.open(commit.tx, topic, commit.now_ms)
        if view is None or query.nothing:
            return iter(())
        return iter(list(read_view(view, query, self.core.index.open_within)))

    def _check_thread(self) -> None:
        if self._thread != threading.get_ident():
            raise ConfigError("a transaction belongs to the thread that began it; begin another one in this thread")
