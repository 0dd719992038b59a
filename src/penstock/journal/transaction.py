"""Transactions: everything inside happens together or not at all, and reads inside see it already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from penstock.clock import to_ms
from penstock.errors import Closed, ConfigError, StorageError
from penstock.events import Draft, Event, Receipt
from penstock.journal import interrupts
from penstock.journal.commit.commit import Commit
from penstock.journal.cursors import move_cursor, read_cursor
from penstock.journal.following.selection import event_filter
from penstock.journal.index.lookup import Lookup
from penstock.journal.interrupts import Shield, is_inside
from penstock.journal.reading import TopicView, find_event
from penstock.journal.storage import keys
from penstock.journal.topic import BaseTopic, read_view
from penstock.names import check_consumer, check_limit, check_name, check_position, is_whole

if TYPE_CHECKING:
    from penstock.journal.commit.exclusive import Exclusive
    from penstock.journal.journal import BaseJournal
    from penstock.surface.arguments import DraftArguments
    from penstock.surface.topic import Topic

T = TypeVar("T")


class BaseTransaction:
    """All or nothing across topics: a clean exit of the `with` block commits, an exception rolls back.

    It holds the writer: keep it short, and do not append through topics inside it but through its own methods.
    """

    def __init__(self, journal: BaseJournal) -> None:
        self._journal = journal
        self._exclusive: Exclusive | None = None
        self._commit: Commit | None = None
        self._spoiled: BaseException | None = None
        self._committed = False
        # The body may be interrupted, and then ends here; what must not be interrupted is the ending, and the beginning
        # from the moment on that others wait for this transaction: its `with` would not call `__exit__`.
        endings, beginnings = _codes(type(self), "__exit__"), _codes(type(self), "__enter__")
        self._until_ended = Shield(
            lambda frame: is_inside(frame, endings) or (self._exclusive is not None and is_inside(frame, beginnings))
        )

    def __enter__(self) -> BaseTransaction:
        if self._exclusive is not None:
            raise ConfigError("a transaction is used once: ask the journal for another one")
        writer = self._journal._writer
        writer.check_idle_here()
        try:
            self._until_ended.__enter__()
            with writer.shield:
                self._exclusive = writer.exclusively()
                self._commit = self._exclusive.begin()
        except BaseException as error:
            if self._exclusive is not None and self._commit is not None:
                self._commit = None
                with writer.shield:
                    self._exclusive.roll_back(error)
            writer.let_go()
            self._until_ended.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        exclusive = self._exclusive
        if exclusive is None or self._commit is None:
            return
        self._check_thread(exclusive)
        try:
            with self._journal._writer.shield:
                self._end(exclusive, kind, error)
        finally:
            self._until_ended.__exit__(None, None, None)

    def _end(self, exclusive: Exclusive, kind: type[BaseException] | None, error: BaseException | None) -> None:
        self._commit = None
        try:
            if kind is not None:
                exclusive.roll_back(error)
            elif self._spoiled is not None:
                exclusive.roll_back(self._spoiled)
                raise StorageError(
                    f"nothing of this transaction was kept: one of its steps failed half-way ({self._spoiled})"
                ) from self._spoiled
            else:
                exclusive.end()
                self._committed = True
        finally:
            exclusive.release()

    def append(
        self, topic: BaseTopic | Topic | str, kind: Any, payload: Any = None, **draft: Unpack[DraftArguments]
    ) -> Receipt:
        """Appends an event; its position is final if the transaction commits."""
        self._open()
        handle = self._topic(topic)
        batch = handle._prepare(kind, payload, draft, self._find_cause)
        return self._change(lambda commit: commit.append(handle.name, batch)[0])

    def append_many(self, topic: BaseTopic | Topic | str, drafts: Iterable[Draft]) -> list[Receipt]:
        """Appends several events at consecutive positions."""
        self._open()
        handle = self._topic(topic)
        batch = handle._prepare_many(drafts, self._find_cause)
        return self._change(lambda commit: commit.append(handle.name, batch))

    def commit(self, topic: BaseTopic | Topic | str, consumer: str, seq: int) -> None:
        """Moves a consumer's cursor forward together with the rest."""
        check_consumer(consumer)
        check_position(seq, "seq")
        name = self._topic(topic).name
        self._change(lambda commit: move_cursor(commit, name, consumer, seq, back=False))

    def cursor(self, topic: BaseTopic | Topic | str, consumer: str) -> int | None:
        """How far a consumer has come, as of this transaction."""
        check_consumer(consumer)
        commit = self._open()
        head = commit.head(self._topic(topic).name)
        return read_cursor(commit.tx, head.number, consumer) if head else None

    def read(self, topic: BaseTopic | Topic | str, **read: Any) -> Iterator[Event]:
        """Reads a topic with this transaction's own appends in it; the keyword arguments are those of `Topic.read`."""
        commit = self._open()
        commit.flush()
        name = self._topic(topic).name
        view = TopicView.open(commit.tx, name, commit.now_ms)
        key = read.get("key")
        return iter(list(_read_in(view, None if key is None else self._journal._index.look_within(name), **read)))

    def get_mark(self, name: str) -> int | None:
        """A named number that commits with transactions: what an exactly-once writer keeps to know itself done."""
        return self._open().get_mark(check_consumer(name, "mark"))

    def set_mark(self, name: str, value: int) -> None:
        """Sets a mark; it is there if, and only if, the transaction commits."""
        check_consumer(name, "mark")
        if not is_whole(value) or not -(1 << 63) <= value < 1 << 63:
            raise ConfigError(f"a mark is a whole number of 64 bits, not {value!r:.80}")
        self._open().set_mark(name, value)

    def _topic(self, topic: BaseTopic | Topic | str) -> BaseTopic:
        if isinstance(topic, str):
            return self._journal.topic(check_name(topic))
        if not isinstance(topic, BaseTopic) or topic.journal is not self._journal:
            raise ConfigError(f"topic {topic.name!r} belongs to another journal than this transaction")
        return topic

    def _open(self) -> Commit:
        if self._commit is None or self._exclusive is None:
            raise Closed("the transaction is over (or never began): use it inside its `with` block")
        self._check_thread(self._exclusive)
        if interrupts.is_waiting():  # it came while the transaction began
            interrupts.let_through()
        return self._commit

    def _check_thread(self, exclusive: Exclusive) -> None:
        if exclusive.thread != threading.get_ident():
            raise ConfigError("a transaction belongs to the thread that began it; begin another one in this thread")

    def _change(self, apply: Callable[[Commit], T]) -> T:
        """Does a step; one that fails half-way spoils the transaction, even if the caller goes on."""
        commit = self._open()
        before = commit.changes
        try:
            return apply(commit)
        except BaseException as error:
            if commit.changes != before:
                self._spoiled = error
            raise

    def _find_cause(self, id: str) -> Event | None:
        """The event with an id, this transaction's own included."""
        commit = self._open()
        commit.flush()
        return find_event(commit.tx, id)


def _codes(kind: type, name: str) -> list[CodeType]:
    """A method's code in a class and in those it inherits from."""
    return [base.__dict__[name].__code__ for base in kind.__mro__ if name in base.__dict__]


def _read_in(
    view: TopicView | None,
    lookup: Lookup | None,
    after: int = 0,
    limit: int | None = None,
    *,
    through: int | None = None,
    key: str | None = None,
    key_prefix: str | None = None,
    kind: Any = None,
    scope: str | None = None,
    since: Any = None,
    reverse: bool = False,
) -> Iterator[Event]:
    check_position(after, "after")
    check_limit(limit)
    wanted = event_filter(key, kind, scope, key_prefix)
    since_ms = None if since is None else to_ms(since, "since")
    last = keys.MAX_SEQ if through is None else check_position(through, "through")
    if view is None or limit == 0:
        return iter(())
    return read_view(view, after, limit, last, wanted, since_ms, reverse, lookup)
