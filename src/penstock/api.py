"""Opens journals, here or behind a URL, and sets the journal that a block of code uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, get_args

from penstock.core.clock import Clock
from penstock.core.engine.contract import Durability, ObjectOptions
from penstock.core.engine.url import open_engine, parse_url, shown_store
from penstock.core.journal.description import Description
from penstock.core.local.backend import LocalJournal
from penstock.core.names import check_whole, is_number, shown_url
from penstock.core.surface.journal import Journal
from penstock.errors import ConfigError, NoStore
from penstock.limits import DEFAULT_URL, WRITER_CAPACITY, WRITER_PRESSURE

if TYPE_CHECKING:
    from penstock.core.journal.moving import CopyReport


def describe(
    url: str | os.PathLike[str] | None = None,
    *,
    token: str | None = None,
    store_options: Mapping[str, object] | None = None,
) -> Description:
    """Returns a description of a journal (engine, place, size, topics, queues) without opening it for writing.

    A missing journal has size 0 and no topics, and is not made.
    """
    if url is None:
        url = _from_environment("PENSTOCK_URL") or DEFAULT_URL
    if isinstance(url, str) and is_served(url):
        with open(url, read_only=True, token=token) as served:
            return served.describe()
    try:
        with open_local(url, read_only=True, options=_object_options(store=store_options)) as journal:
            return journal.describe()
    except NoStore:
        scheme, path = parse_url(url)
        return Description(scheme, path or None, 0, "disk", True, [], [], 0)


def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    store_options: Mapping[str, object] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CopyReport:
    """Copies a journal to another place, from a file to a bucket or back; see `Journal.copy_to`.

    `store_options` are for the journal that is in an object store.
    """
    remote = _object_options(store=store_options) if parse_url(source).in_object_store else None
    with open_local(source, read_only=True, options=remote) as journal:
        return journal.copy_to(
            target, store_options=store_options if parse_url(target).in_object_store else None, progress=progress
        )


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    create: bool = True,
    durability: Durability | None = None,
    writer_capacity: int | None = None,
    pressure: float = WRITER_PRESSURE,
    clock: Clock | None = None,
    token: str | None = None,
    linger: float | None = None,
    timeout: float | None = None,
    lease: float | None = None,
    takeover: bool = False,
    standby: bool = False,
    store_options: Mapping[str, object] | None = None,
) -> Journal:
    """Opens a journal, and makes a missing journal; with `create=False`, a missing journal raises NoStore.

    The parent folder must exist.

    `url` is a path (SQLite) or names an engine: memory:, sqlite:shop.db, rocksdb:shop, file:shop. The default is
    PENSTOCK_URL, else ./penstock.db. PENSTOCK_DURABILITY and PENSTOCK_WRITER_CAPACITY are the defaults of their
    arguments. An http:// or https:// url is a journal that `penstock serve` serves. Such a journal uses `token` (or
    PENSTOCK_TOKEN), `read_only` and `timeout`; the server decides on the other arguments.

    s3://bucket/shop, gs://… and az://… keep the journal in an object store; slatedb:shop does the same in a folder.
    Such a journal has one writer, which holds a lease. A second writer gets `Locked`, unless it waits for the lease
    (`standby`) or ends the first writer (`takeover`). A writer without a sign of life for `lease` seconds may be
    replaced. A commit waits `linger` seconds for further callers. `store_options` are the provider's settings, which
    take precedence over the environment.

    An operation raises an error when the object store or the server does not answer for `timeout` seconds.
    """
    if url is None:
        url = _from_environment("PENSTOCK_URL") or DEFAULT_URL
    if isinstance(url, str) and is_served(url):
        from penstock.remote.backend import RemoteJournal

        return RemoteJournal(url, token=token, read_only=read_only, timeout=timeout)
    options = _object_options(
        linger=linger, timeout=timeout, lease=lease, takeover=takeover, standby=standby, store=store_options
    )
    if not create and not read_only:
        _check_made(url, _object_options(timeout=timeout, store=store_options))
    return open_local(
        url,
        read_only=read_only,
        durability=durability,
        writer_capacity=writer_capacity,
        pressure=pressure,
        clock=clock,
        options=options,
    )


def _check_made(url: str | os.PathLike[str], options: ObjectOptions | None) -> None:
    """Raises NoStore when the journal does not exist. A store in memory without a name is always new."""
    scheme, path = parse_url(url)
    if scheme == "memory" and not path:
        return
    try:
        open_local(url, read_only=True, options=options).close()
    except NoStore as error:
        raise NoStore(f"there is no journal at {shown_store(url)}; create=True makes one") from error


def open_local(
    url: str | os.PathLike[str],
    *,
    read_only: bool = False,
    durability: Durability | None = None,
    writer_capacity: int | None = None,
    pressure: float = WRITER_PRESSURE,
    clock: Clock | None = None,
    options: ObjectOptions | None = None,
) -> LocalJournal:
    """Opens a journal in this process, for callers that need the store itself."""
    if isinstance(url, str) and is_served(url):
        raise ConfigError(
            f"{shown_url(url)} is a served journal; this needs the store itself: run it where the store is"
        )
    durability = _checked_durability(durability or _from_environment("PENSTOCK_DURABILITY") or "disk")
    if writer_capacity is None:
        writer_capacity = _capacity_from_environment()
    check_whole(writer_capacity, "writer_capacity")
    if not is_number(pressure) or not 0 < pressure <= 1:
        raise ConfigError(f"pressure must be a share between 0 and 1, not {pressure!r}")
    engine = open_engine(url, read_only=read_only, durability=durability, options=options)
    try:
        journal = LocalJournal(engine, clock=clock, capacity=writer_capacity, pressure=pressure)
        if not read_only:
            journal.backend.core.begin()
        return journal
    except BaseException:
        engine.close()
        raise


def _object_options(**given: Any) -> ObjectOptions | None:
    """Returns the given options of an object store, or None when no option was given."""
    said = {name: value for name, value in given.items() if value is not None and value is not False}
    return ObjectOptions(**said) if said else None


def is_served(url: str) -> bool:
    """Returns True when a URL names a journal that a server serves."""
    return url.lower().startswith(("http://", "https://"))


def local(journal: Journal, what: str) -> LocalJournal:
    """Returns the journal if it is in this process; else raises ConfigError, which names the operation that needs
    this.
    """
    if isinstance(journal, LocalJournal):
        return journal
    raise ConfigError(f"{what} needs the store itself, and {journal!r} is served elsewhere: do it where the store is")


def _checked_durability(given: str) -> Durability:
    for known in get_args(Durability):
        if given == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f'durability is "disk" or "process", not {given!r}')


def _from_environment(name: str) -> str:
    """Returns the text of an environment variable; a blank variable counts as not set."""
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
    """Returns the journal that `use` installed for this context."""
    try:
        return _current.get()
    except LookupError:
        raise ConfigError("no journal is installed here: wrap the code in `with penstock.use(journal):`") from None


@contextmanager
def use(journal: Journal) -> Iterator[Journal]:
    """Installs a journal for `current()` within the block, for this thread or task and the tasks that it starts."""
    token = _current.set(journal)
    try:
        yield journal
    finally:
        _current.reset(token)
