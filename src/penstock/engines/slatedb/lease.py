"""The lease that gives a journal one writer: an object that names its holder and is replaced by conditional puts.

The holder renews the lease after about half its term. A newcomer compares no clocks: by its own clock, it watches the
object for a whole term, and replaces it only when it has not changed. The holder counts its term from before the put
that renewed the lease, and stops acknowledging a tenth earlier. So it has stopped before another writer can have taken
over, however long the put took. A put whose answer was lost is recognised by its number (`nonce`). SlateDB's own fence
makes a takeover certain; the lease prevents an accidental takeover.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.core.engine.base import process_stat
from penstock.engines.slatedb.bridge import fenced
from penstock.errors import Corrupt, Fenced, Locked, StorageError
from penstock.objects.store import Stored, Version, VersionConflict

log = logging.getLogger("penstock.engine.slatedb")

LEASE_PATH = "penstock/lease"
SAFETY = 0.9
"""The part of its term after which a holder stops acknowledging; the rest is for clocks of different speeds."""
RENEW_AT = 0.6
"""The part of its term after which a lease is renewed, when all goes well."""
LATE_AT = 0.75
"""The part of a lease's term after which a newcomer expects to take the lease over."""
RETRIES = 12
"""The number of pauses in a term when renewing fails, or when a newcomer watches."""


def machine_seconds() -> float:
    """Returns the seconds of a clock that also runs while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The lease object: the writer, the time since which it writes, and the term after each renewal."""

    owner: str
    host: str
    system: str
    """Identifies the running system, by its boot and its process namespace, so that process numbers can be compared."""
    pid: int
    started: str
    epoch: int
    since_ms: int
    seconds: float
    released: bool = False
    beat: int = 0
    nonce: str = ""
    """A new number in every put. It is the last field, for stores that compare only the last bytes."""

    def who(self) -> str:
        try:
            since = datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        except (ValueError, OverflowError, OSError):
            return f"process {self.pid} on {self.host}"
        return f"process {self.pid} on {self.host} since {since} UTC"


class LeaseStore(Protocol):
    """The part of an object store that a lease needs."""

    def read(self, path: str, known: Stored | None = None) -> Stored | None: ...

    def put_if(self, path: str, data: bytes, version: Version | None) -> Version: ...


class WriterLease:
    """A writer's lease: `acquire` it, `confirm` it before every acknowledgement, `release` it."""

    def __init__(
        self,
        store: LeaseStore,
        name: str,
        seconds: float,
        *,
        clock: Callable[[], float] = machine_seconds,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._sleep = sleep
        self._record = LeaseRecord(
            owner=secrets.token_hex(8),
            host=socket.gethostname(),
            system=_system(),
            pid=os.getpid(),
            started="".join(process_stat(os.getpid())[19:20]),
            epoch=0,
            since_ms=int(time.time() * 1000),
            seconds=seconds,
        )
        self._version: Version | None = None
        self._good_until = float("-inf")
        self._lost: Fenced | None = None
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.renewals = 0
        self.was_given_back = True
        """True when there was no earlier writer, or when the earlier writer released the lease."""

    @property
    def epoch(self) -> int:
        """The number of writers so far, including this writer."""
        return self._record.epoch

    # taking

    def acquire(
        self,
        *,
        takeover: bool = False,
        standby: bool = False,
        timeout: float,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Takes the lease, or raises `Locked`. `standby` waits for the lease; `takeover` takes it from a living holder.

        `meanwhile` is called, and must return at once, when a wait begins and when its holder is late in renewing.
        """
        # Set before the first put: another waiting thread of this process would treat the lease as abandoned.
        _held_here.add(self._record.owner)
        try:
            self._wait_and_put(takeover, standby, timeout, meanwhile)
        except BaseException:
            _held_here.discard(self._record.owner)
            raise

    def _wait_and_put(self, takeover: bool, standby: bool, timeout: float, meanwhile: Callable[[], object]) -> None:
        deadline = self._clock() + timeout
        seen: Stored | None = None
        first_seen = 0.0
        late = waited = False
        while True:
            patience = 0.0
            try:
                found = self._store.read(LEASE_PATH, seen)
                holder = None if found is None else _decode(found, self._name)
                if found is None or holder is None or holder.owner == self._record.owner:
                    # No writer holds the lease, or this writer does: the answer to an earlier put was lost.
                    if self._put(found.version if found else None, holder.epoch if holder else 1):
                        break
                    continue
                if seen is None or found.version != seen.version:
                    renewed = seen is not None
                    seen, first_seen, late = found, self._clock(), False
                    if not standby and not takeover and not holder.released and (renewed or _works_here(holder)):
                        raise self._locked(holder)
                self.was_given_back = holder.released
                free = holder.released or takeover or _state_here(holder) == ""
                if free or self._clock() - first_seen >= holder.seconds:
                    patience = holder.seconds
                    if self._put(found.version, holder.epoch + 1):
                        break
                    if not standby and not takeover:
                        raise self._locked(read_lease(self._store, self._name) or holder)
                    continue
            except StorageError as error:
                if not error.retryable or (not standby and self._clock() > deadline + patience):
                    raise
                log.warning("the lease of %s cannot be taken yet: %s", self._name, error)
                self._sleep(self._record.seconds / RETRIES)
                continue
            left = first_seen + holder.seconds - self._clock()
            if not waited or (not late and left < holder.seconds * (1 - LATE_AT)):
                late = waited
                waited = True
                meanwhile()
            self._sleep(max(0.0, min(holder.seconds / RETRIES, left)))

    def renew_until_released(self) -> None:
        """Has a thread renew the lease until `release`."""
        self._thread = threading.Thread(target=self._renew_loop, name="penstock-lease", daemon=True)
        self._thread.start()

    def _put(self, version: Version | None, epoch: int) -> bool:
        """Replaces the lease object by this writer's object; returns False when another writer was faster."""
        self._record = msgspec.structs.replace(
            self._record, epoch=epoch, since_ms=int(time.time() * 1000), nonce=secrets.token_hex(8)
        )
        begun = self._clock()
        try:
            self._version = self._store.put_if(LEASE_PATH, msgspec.json.encode(self._record), version)
        except VersionConflict:
            found = self._reread()
            if found is None or found.nonce != self._record.nonce:
                return False
        self._good_until = begun + self._record.seconds * SAFETY
        return True

    def _reread(self) -> LeaseRecord | None:
        """Returns the current lease object if this writer put it; its version is then taken over too."""
        found = self._store.read(LEASE_PATH)
        record = None if found is None else _decode(found, self._name)
        if found is None or record is None or record.owner != self._record.owner:
            return None
        self._version = found.version
        return record

    def _locked(self, holder: LeaseRecord) -> Locked:
        return Locked(
            f"{self._name} is open for writing by {holder.who()}, and it has one writer at a time. Open it with "
            "read_only=True, wait for your turn with standby=True, or end that writer with takeover=True"
        )

    # holding

    def _renew_loop(self) -> None:
        pause: float | None = self._record.seconds * RENEW_AT
        while pause is not None and not self._ending.wait(pause):
            pause = self.beat()

    def beat(self) -> float | None:
        """Renews the lease once.

        Returns the seconds until the next renewal, or None when the lease belongs to another writer.
        """
        begun = self._clock()
        self._record = msgspec.structs.replace(self._record, beat=self._record.beat + 1, nonce=secrets.token_hex(8))
        try:
            renewed = self._renew_once()
        except StorageError as error:
            log.warning("the lease of %s could not be renewed: %s", self._name, error)
            renewed = False
        except Corrupt as error:
            log.error("%s", error)
            renewed = None
        if renewed is None:
            self._lose()
            return None
        if not renewed:
            return self._record.seconds / RETRIES
        self._hold(begun)
        return self._record.seconds * RENEW_AT

    def _renew_once(self) -> bool | None:
        """Returns True when the lease is renewed, False when another attempt is needed, None when it belongs to
        another writer.
        """
        try:
            self._version = self._store.put_if(LEASE_PATH, msgspec.json.encode(self._record), self._version)
        except VersionConflict:
            found = self._reread()
            # An earlier put whose answer was lost also makes a conflict; such a put proves nothing about the time
            # since.
            return None if found is None else found.nonce == self._record.nonce
        return True

    def _hold(self, begun: float) -> None:
        with self._changed:
            self._good_until = begun + self._record.seconds * SAFETY
            self.renewals += 1
            self._changed.notify_all()

    def _lose(self) -> None:
        try:
            now = read_lease(self._store, self._name)
        except (StorageError, Corrupt):
            now = None
        by = now.who() if now is not None else "its lease object is gone"
        with self._changed:
            self._lost = fenced(self._name, by, now.epoch if now is not None else 0)
            self._changed.notify_all()

    @property
    def lost(self) -> bool:
        """True when the lease is known to belong to another writer."""
        return self._lost is not None

    def check(self) -> None:
        """Raises `Fenced` when another writer has taken the lease."""
        if self._lost is not None:
            raise self._lost

    @property
    def holds(self) -> bool:
        """True while no other writer can have taken the lease."""
        return self._lost is None and self._clock() < self._good_until

    def confirm(self, timeout: float) -> bool:
        """Returns True once the lease is known to be still held, False when this cannot be known in time; raises
        `Fenced` when it is lost.
        """
        if self.holds:
            return True
        with self._changed:
            self._changed.wait_for(lambda: self.holds or self._lost is not None, timeout)
        self.check()
        return self.holds

    def release(self) -> None:
        """Stops renewing and notes in the lease that the writer is gone.

        If the store does not answer, the lease runs out by itself.
        """
        _held_here.discard(self._record.owner)
        self._ending.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._record.seconds)
        if self._lost is not None or self._version is None:
            return
        self._record = msgspec.structs.replace(self._record, released=True, nonce=secrets.token_hex(8))
        try:
            renewed = self._renew_once()
            if renewed is False:  # an earlier put arrived although its answer was lost: its version is known now
                renewed = self._renew_once()
            if renewed is None:
                log.info("the lease of %s is another writer's already", self._name)
        except (StorageError, Corrupt) as error:
            log.warning("the lease of %s could not be given back, it runs out by itself: %s", self._name, error)


def read_lease(store: LeaseStore, name: str) -> LeaseRecord | None:
    """Returns the holder of a journal's lease, or the last holder; None when there has been no writer."""
    found = store.read(LEASE_PATH)
    return None if found is None else _decode(found, name)


def _decode(found: Stored, name: str) -> LeaseRecord:
    try:
        return msgspec.json.decode(bytes(found.data), type=LeaseRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(
            f"the lease of {name} ({LEASE_PATH}) is damaged: {error}. When no writer runs, delete that object"
        ) from error


_held_here: set[str] = set()
"""The owners of this process's leases."""


# ── processes of this system ─────────────────────────────────────────────────────────────────────────────────────────


def _system() -> str:
    """Names the running system whose process numbers mean something here; empty where that cannot be found out."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - the link's text, not what it leads to
    except OSError:
        return ""


def _works_here(holder: LeaseRecord) -> bool:
    """Returns True when the holder is a running process of this system, neither ended nor stopped by a signal."""
    return _state_here(holder) not in (None, "", "T", "t")


def _state_here(holder: LeaseRecord) -> str | None:
    """Returns the state of the holder's process: R, S, T for stopped, "" for ended. Returns None when the holder is not
    on this system."""
    if not holder.system or holder.system != _system():
        return None
    if holder.pid == os.getpid():  # not held: opening failed half-way, or this process is the parent of a forked child
        return "R" if holder.owner in _held_here else ""
    now = process_stat(holder.pid)
    return now[0] if now and now[0] not in "ZX" and now[19] == holder.started else ""


# ── A lease in a folder: conditional puts without a lock, which a stopped process would keep ──
# Every version of an object is a file of its own, such as `lease.7`; the file with the highest number counts. A process
# replaces version 7 by linking `lease.8`, which the file system allows one process only. Old versions are removed
# later. A process that slept until its number was free again finds a higher number beside its file, and removes its own
# file.


KEPT = 8
"""The number of old versions that stay, so that readers seldom find their version removed."""


class FolderStore:
    """The objects of a journal in a folder that do not belong to SlateDB: the lease."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        """Returns the newest version of an object, or None; returns `known` itself when it is still the newest."""
        target = self._folder / path
        try:
            while (newest := _newest(target)) is not None:
                if known is not None and known.version == newest:
                    return known
                with suppress(FileNotFoundError):  # the file was replaced and removed since the listing
                    return Stored(_file(target, newest).read_bytes(), newest)
        except OSError as error:
            raise StorageError(f"{target} cannot be read: {error}", retryable=True) from error
        return None

    def put_if(self, path: str, data: bytes, version: Version | None) -> Version:
        """Replaces a version (None: makes the first), or raises `VersionConflict`."""
        target = self._folder / path
        number = 1 if version is None else version + 1
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            if (_newest(target) or 0) != number - 1:
                raise VersionConflict(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            try:
                _file(target, number).hardlink_to(temporary)
            except FileExistsError:
                raise VersionConflict(path) from None
            finally:
                temporary.unlink()
            if _newest(target) != number:
                _file(target, number).unlink(missing_ok=True)
                raise VersionConflict(path)
            for old in _numbers(target):
                if old < number - KEPT:
                    _file(target, old).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{target} cannot be written: {error}", retryable=True) from error
        return number

    def exists(self, path: str) -> bool:
        """Returns True when there is an object at `path`."""
        return (self._folder / path).exists()

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yields every file in the folder, at any depth, with its size."""
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with suppress(FileNotFoundError):  # removed meanwhile
                    path = Path(folder) / name
                    yield str(path.relative_to(self._folder)), path.stat().st_size


def _file(target: Path, number: int) -> Path:
    return target.with_name(f"{target.name}.{number}")


def _numbers(target: Path) -> list[int]:
    try:
        names = os.listdir(target.parent)  # noqa: PTH208 - names are all that is wanted
    except FileNotFoundError:
        return []
    begin = f"{target.name}."
    return [int(name[len(begin) :]) for name in names if name.startswith(begin) and name[len(begin) :].isdigit()]


def _newest(target: Path) -> int | None:
    return max(_numbers(target), default=None)
