"""The assembled product: Journal, Topic and Transaction with what every layer adds, and how to open one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

from penstock.clock import Clock
from penstock.engine.contract import Durability
from penstock.engine.url import open_engine
from penstock.entity.journal import EntityJournal
from penstock.entity.topic import EntityTopic
from penstock.errors import ConfigError
from penstock.limits import DEFAULT_URL, WRITER_CAPACITY, WRITER_PRESSURE
from penstock.queue.journal import QueueJournal, QueueTransaction


class Topic(EntityTopic):
    """A log of events, in order, from position 1."""


class Transaction(QueueTransaction):
    """All or nothing across topics and queues; a clean exit commits, an exception rolls back."""

    def __enter__(self) -> Transaction:
        super().__enter__()
        return self


class Journal(EntityJournal, QueueJournal):
    """A set of topics and queues in one store, with one commit order."""

    topic_type = Topic
    transaction_type = Transaction

    def topic(self, name: str) -> Topic:
        return cast(Topic, super().topic(name))

    def transaction(self) -> Transaction:
        return cast(Transaction, super().transaction())

    def __enter__(self) -> Journal:
        return self


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    durability: Durability | None = None,
    writer_capacity: int | None = None,
    pressure: float = WRITER_PRESSURE,
    clock: Clock | None = None,
    token: str | None = None,
) -> Journal:
    """Opens a journal, making it when it is not there.

    `url` is a path (SQLite) or names an engine: memory:, sqlite:shop.db, lmdb:shop, rocksdb:shop, file:shop. Without
    it, PENSTOCK_URL is used, else ./penstock.db. PENSTOCK_DURABILITY and PENSTOCK_WRITER_CAPACITY stand in for
    arguments not given. An http:// or https:// url is a journal that `penstock serve` serves; `token` (or
    PENSTOCK_TOKEN) is what it asks for, and what the other arguments say is the server's to decide.
    """
    if url is None:
        url = _from_environment("PENSTOCK_URL") or DEFAULT_URL
    if isinstance(url, str) and url.lower().startswith(("http://", "https://")):
        from penstock.remote import connect

        return cast(Journal, connect(url, token=token, read_only=read_only))
    if durability is None:
        durability = cast(Durability, _from_environment("PENSTOCK_DURABILITY") or "disk")
    if durability not in ("disk", "process"):
        raise ConfigError(f'durability is "disk" or "process", not {durability!r}')
    if writer_capacity is None:
        writer_capacity = _capacity_from_environment()
    if not isinstance(writer_capacity, int) or isinstance(writer_capacity, bool) or writer_capacity < 1:
        raise ConfigError(f"writer_capacity must be a whole number of at least 1, not {writer_capacity!r}")
    if not isinstance(pressure, int | float) or not 0 < pressure <= 1:
        raise ConfigError(f"pressure must be a share between 0 and 1, not {pressure!r}")
    engine = open_engine(url, read_only=read_only, durability=durability)
    try:
        return Journal(engine, clock=clock, capacity=writer_capacity, pressure=pressure)
    except BaseException:
        engine.close()
        raise


def _from_environment(name: str) -> str:
    """A variable's text; a blank one counts as not set."""
    return os.environ.get(name, "").strip()


def _capacity_from_environment() -> int:
    text = _from_environment("PENSTOCK_WRITER_CAPACITY")
    if not text:
        return WRITER_CAPACITY
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"PENSTOCK_WRITER_CAPACITY must be a whole number, not {text!r}") from None


_current: ContextVar[Journal] = ContextVar("penstock_journal")


def current() -> Journal:
    """The journal installed for this context with `use`."""
    try:
        return _current.get()
    except LookupError:
        raise ConfigError("no journal is installed here: wrap the code in `with penstock.use(journal):`") from None


@contextmanager
def use(journal: Journal) -> Iterator[Journal]:
    """Installs a journal for `current()` within the block, for this thread or task and the tasks it starts."""
    token = _current.set(journal)
    try:
        yield journal
    finally:
        _current.reset(token)
