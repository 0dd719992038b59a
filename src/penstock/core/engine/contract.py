"""The contract of an engine: an ordered map of bytes to bytes with a single writer at a time and any number of readers.

All of penstock is written once, against this contract. Keys sort as bytes. An empty value is a value. Returned keys and
values are `bytes`, never views into memory that a later call may reuse.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, Literal, Protocol, Self

import msgspec

from penstock.core.names import check_seconds
from penstock.errors import ConfigError
from penstock.limits import LEASE_SECONDS, LEASE_SECONDS_LEAST, STORE_TIMEOUT, TIMEOUT_SECONDS_LEAST

Durability = Literal["disk", "process"]

MAX_KEY_BYTES = 500
"""The longest key an engine takes."""


SqlValue = None | int | float | str | bytes
SqlRow = tuple[SqlValue, ...]
SqlParameters = Sequence[SqlValue] | Mapping[str, SqlValue]
"""The values of a statement's `?`, or by name of its `:name`."""


class EngineView(Protocol):
    """Rows that can be read by key and in order."""

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a key, or None."""
        ...

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys with start ≤ key < stop and their values, ascending (descending with reverse), and reads them on
        the way.

        Inside a write transaction the caller may change keys that the scan has passed, but not keys ahead of it.
        """
        ...


class Snapshot(EngineView, Protocol):
    """A consistent state of the store, which later writes do not change."""

    begun: float
    """`time.monotonic()` before the snapshot was taken: it includes every earlier commit. Infinite in a transaction."""


class ReadTx(Snapshot, Protocol):
    """A snapshot held open; leaving the block (or `close`) releases it. Any one thread at a time may use it."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Held(ABC):
    """A resource that is held until `close`, until its block ends, or until the object is dropped."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Releases the resource; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # interrupted before the constructor ended
            self.close()


class WriteTx(Snapshot, Protocol):
    """A serialisable transaction that reads its own writes: a clean exit commits, an exception rolls back.

    `foreign` is True when another process (or another engine object) has committed since this engine's last commit or
    since it was opened. A caller that caches parts of the store then forgets them. `foreign` is True for the first
    transaction of every engine object. `writes` grows with every put and delete, also with a failed call: a caller with
    several steps in one transaction learns from it whether a failed step had changed anything.
    """

    foreign: bool
    writes: int

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None:
        """Removes a key; an absent key is no error."""
        ...

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Removes every key with start ≤ key < stop."""
        ...

    def sql(self, statement: str, parameters: SqlParameters) -> list[SqlRow]:
        """Runs SQL on tables beside the store's own and returns the rows; ConfigError in a store without SQL."""
        ...

    def keep(self) -> None:
        """Makes this commit survive the death of the process, also with `sync=False`.

        A caller outside the process relies on the commit. Only a store whose unsynced commits are in the process's own
        memory has to sync.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


class Engine(ABC):
    """An ordered key-value store. Thread-safe: any thread may read or write, writers take turns.

    With `durability="disk"`, the changes of a write block are on disk when the block has ended without an exception.
    With `"process"`, the changes survive the death of the process, but not of the machine. Neither death corrupts the
    store.
    """

    scheme: str
    """The word before the colon in a url."""
    shared: ClassVar[bool]
    """True when several processes may write a store at once. Otherwise a second writer gets `Locked`."""
    linger: float = 0.0
    """The seconds for which a commit waits for further callers, where each commit has a price."""

    location: str | None
    """The place of the store in messages; None for memory."""
    read_only: bool
    durability: Durability

    @abstractmethod
    def __init__(self, path: str, *, read_only: bool = False, durability: Durability = "disk") -> None:
        """Opens the store at `path`, and makes a missing store (with read_only, a missing store raises ConfigError)."""

    @abstractmethod
    def read(self) -> ReadTx:
        """Returns a snapshot of the newest committed state."""

    @abstractmethod
    def write(self, *, sync: bool = True) -> WriteTx:
        """Returns a write transaction after waiting for its turn; raises `ReadOnly` on a store opened for reading.

        With `sync=False`, this commit need not be on disk when the block ends: a crash of the machine may lose it, but
        never tears it. In an object store the death of the process may lose it too, unless `WriteTx.keep` was called.
        """

    @abstractmethod
    def changes(self) -> int:
        """Returns a number that changes with every commit of any process. The call takes a few microseconds."""

    def catch_up(self) -> None:
        """Makes the next read see everything that was durable at this call.

        Only readers that poll a store have to do anything.
        """
        return

    @abstractmethod
    def flush(self) -> None:
        """Puts every commit so far on disk, including commits with `sync=False` and "process"."""

    @abstractmethod
    def reclaim(self) -> None:
        """Returns space freed by deletions to the file system, as far as the engine can while in use.

        A kill at any moment loses nothing.
        """

    def purge(self) -> None:
        """Rewrites the store's files, so that no byte of what was deleted or overwritten before stays in them.

        StorageError when something keeps it from that, a reader for example: call it again.
        """
        self.reclaim()

    def garbage(self) -> int:
        """Returns about how many bytes `reclaim` would free; 0 where this is unknown, or where a thread frees space
        by itself.
        """
        return 0

    @abstractmethod
    def size(self) -> int:
        """Returns the bytes on disk; for a store in memory, the bytes of keys and values."""

    def writer(self) -> str | None:
        """Returns the process that writes the store, for people; None without a writer, or when the engine does not
        know.
        """
        return None

    def requests(self) -> dict[str, dict[str, int]]:
        """Returns the billed requests since the store was opened: cause → kind → number; empty for local files.

        The kind `bytes` counts the bytes that the requests stored.
        """
        return {}

    def objects(self) -> dict[str, int]:
        """Returns the number of objects in the object store, by purpose; empty for local files."""
        return {}

    def unstored_seconds(self) -> float:
        """Returns the age in seconds of the oldest relaxed commit that is only in this process's memory; 0 when there
        is none."""
        return 0.0

    def usable(self) -> bool:
        """Returns False once another writer has replaced this engine, or its files were deleted or replaced. Asks no
        object store."""
        return True

    @abstractmethod
    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes a consistent copy that the same engine can open; refuses to overwrite (ConfigError)."""

    @abstractmethod
    def close(self) -> None:
        """Closes the store; a second call does nothing. Later calls raise `Closed`.

        Raises StorageError when data may be lost; the store is closed nevertheless.
        """


# ── stores of objects ────────────────────────────────────────────────────────────────────────────────────────────────
class ObjectOptions(msgspec.Struct, frozen=True):
    """The options of an object store. `penstock.open` and the command line fill them."""

    linger: float = 0.0
    """The seconds for which a commit waits for further callers before its one PUT."""
    timeout: float = STORE_TIMEOUT
    """The seconds that an operation waits for the store before it raises an error."""
    lease: float = LEASE_SECONDS
    """The seconds after which a writer with an expired lease may be replaced."""
    takeover: bool = False
    """Takes the lease from a writer that still holds it."""
    standby: bool = False
    """Waits for as long as another writer holds the lease."""
    hold: float = 0.0
    """The seconds for which a checkpoint protects a reader's tables from collection; 0 for no checkpoint."""
    store: Mapping[str, object] = {}
    """The provider's settings (region, endpoint, access_key_id …), which take precedence over the environment."""

    def __post_init__(self) -> None:
        check_seconds(self.linger, "linger", 0.0)
        check_seconds(self.hold, "hold", 0.0)
        check_seconds(self.timeout, "timeout", TIMEOUT_SECONDS_LEAST)
        check_seconds(self.lease, "lease", LEASE_SECONDS_LEAST)
        if self.takeover and self.standby:
            raise ConfigError("takeover=True takes the lease at once, standby=True waits for it: say one of them")
        if not isinstance(self.store, Mapping):
            raise ConfigError(f"store_options is a mapping of names to values, not {type(self.store).__name__}")


class ObjectEngine(Engine):
    """An engine whose store is objects: one writer under a lease, and readers on any machine."""

    options: ObjectOptions

    @abstractmethod
    def __init__(
        self,
        path: str,
        *,
        read_only: bool = False,
        durability: Durability = "disk",
        options: ObjectOptions | None = None,
        scheme: str = "",
    ) -> None:
        """Opens the store at `path`; `scheme` is the word before the colon in its url."""
