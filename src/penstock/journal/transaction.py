"""Transactions: everything inside happens together or not at all, and reads inside see it already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.clock import to_ms
from penstock.errors import Closed, ConfigError
from penstock.event import Draft, Event, Receipt
from penstock.journal import keys
from penstock.journal.commit import Commit
from penstock.journal.cursors import move_cursor
from penstock.journal.names import check_consumer, check_limit, check_name, check_position
from penstock.journal.reading import TopicView
from penstock.journal.topic import BaseTopic, _filter, read_view

if TYPE_CHECKING:
    from penstock.journal.journal import BaseJournal
    from penstock.journal.writer import Exclusive


class BaseTransaction:
    """All or nothing across topics: a clean exit of the `with` block commits, an exception rolls back.

    It holds the writer: keep it short, and do not append through topics inside it but through its own methods.
    """

    def __init__(self, journal: BaseJournal) -> None:
        self._journal = journal
        self._exclusive: Exclusive | None = None
        self._commit: Commit | None = None

    def __enter__(self) -> BaseTransaction:
        if self._exclusive is not None:
            raise ConfigError("a transaction is used once: ask the journal for another one")
        self._exclusive = self._journal._writer.exclusively()
        try:
            self._commit = self._exclusive.begin()
        except BaseException:
            self._exclusive.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        exclusive = self._exclusive
        if exclusive is None or self._commit is None:
            return
        self._commit = None
        try:
            if kind is None:
                exclusive.end()
            else:
                exclusive.roll_back(error)
        finally:
            exclusive.release()

    def append(self, topic: BaseTopic | str, kind: Any, payload: Any = None, **draft: Any) -> Receipt:
        """Appends an event; its position is final if the transaction commits."""
        handle = self._topic(topic)
        return self._open().append(handle.name, handle._prepare(kind, payload, draft))[0]

    def append_many(self, topic: BaseTopic | str, drafts: Iterable[Draft]) -> list[Receipt]:
        """Appends several events at consecutive positions."""
        handle = self._topic(topic)
        return self._open().append(handle.name, handle._prepare_many(drafts))

    def commit(self, topic: BaseTopic | str, consumer: str, seq: int) -> None:
        """Moves a consumer's cursor forward together with the rest."""
        check_consumer(consumer)
        check_position(seq, "seq")
        move_cursor(self._open(), self._topic(topic).name, consumer, seq, back=False)

    def cursor(self, topic: BaseTopic | str, consumer: str) -> int | None:
        """How far a consumer has come, as of this transaction."""
        from penstock.journal.cursors import read_cursor

        commit = self._open()
        head = commit.head(self._topic(topic).name)
        return read_cursor(commit.tx, head.number, check_consumer(consumer)) if head else None

    def read(self, topic: BaseTopic | str, **read: Any) -> Iterator[Event]:
        """Reads a topic with this transaction's own appends in it; the keyword arguments are those of `Topic.read`."""
        commit = self._open()
        commit.flush()
        name = self._topic(topic).name
        view = TopicView.open(commit.tx, name)
        if view is None:
            return iter(())
        return iter(list(_read_in(view, **read)))

    def get_mark(self, name: str) -> int | None:
        """A named number that commits with transactions: what an exactly-once writer keeps to know itself done."""
        return self._open().get_mark(check_consumer(name, "mark"))

    def set_mark(self, name: str, value: int) -> None:
        """Sets a mark; it is there if, and only if, the transaction commits."""
        self._open().set_mark(check_consumer(name, "mark"), value)

    def _topic(self, topic: BaseTopic | str) -> BaseTopic:
        if isinstance(topic, str):
            return self._journal.topic(check_name(topic))
        if topic.journal is not self._journal:
            raise ConfigError(f"topic {topic.name!r} belongs to another journal than this transaction")
        return topic

    def _open(self) -> Commit:
        if self._commit is None:
            raise Closed("the transaction is over (or never began): use it inside its `with` block")
        return self._commit


def _read_in(
    view: TopicView,
    after: int = 0,
    limit: int | None = None,
    *,
    through: int | None = None,
    key: str | None = None,
    kind: Any = None,
    scope: str | None = None,
    since: Any = None,
    reverse: bool = False,
) -> Iterator[Event]:
    check_position(after, "after")
    check_limit(limit)
    wanted = _filter(key, kind, scope)
    since_ms = None if since is None else to_ms(since, "since")
    last = keys.MAX_SEQ if through is None else check_position(through, "through")
    return read_view(view, after, limit, last, wanted, since_ms, reverse)
