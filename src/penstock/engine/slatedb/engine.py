"""The engine of a journal in an object store, for one writing process and readers anywhere.

A write transaction is an overlay that becomes one batch and one forced flush of SlateDB's log: one PUT. It is
acknowledged when the object store has it and the lease is known to be held still. Reads of the writing process see the
state after the last acknowledged commit, so nobody acts on what is not durable. `durability="process"` means `disk`
here, because what is not in the object store is in this process's memory; a relaxed commit (`sync=False`) is seen here
at once, and goes into the object store with the next commit, or after a second.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

import slatedb.uniffi as sl

from penstock.engine.base import BaseEngine
from penstock.engine.contract import Durability, Snapshot
from penstock.engine.overlay import END, OverlayWrite
from penstock.engine.slatedb.bridge import TimedOut, call
from penstock.engine.slatedb.database import count_requests, flush_log, flush_tables, make_cache, open_database
from penstock.engine.slatedb.errors import explain
from penstock.engine.slatedb.follower import Follower
from penstock.engine.slatedb.lease import LEASE_PATH, WriterLease, read_lease
from penstock.engine.slatedb.options import ObjectOptions
from penstock.engine.slatedb.place import Place, check_store
from penstock.engine.slatedb.upkeep import back_up, backup_place, clone, collect, compact, copy_rows
from penstock.engine.slatedb.view import SlatedbRead, SlatedbView
from penstock.errors import ConfigError, Fenced, NoStore, OutcomeUnknown, PenstockError, StorageError
from penstock.limits import TABLE_COMMITS, TABLE_SECONDS

FORMAT = b"penstock slatedb 1"
FORMAT_KEY = b"\xff" * 505
"""Longer than a key may be, so no scan reaches it: its bounds are cut to 501 bytes."""


_PURPOSES = {
    "wal": "log",
    "compacted": "tables",
    "manifest": "manifests",
    "compactions": "compactions",
    "gc": "collection",
    "penstock": "lease",
}
"""What the objects of a store are for, by the folder they lie in."""


class SlatedbEngine(BaseEngine):
    """A store in a folder, as an object store would hold it; for tests and development, since nothing is fsynced."""

    scheme: ClassVar[str] = "slatedb"
    shared: ClassVar[bool] = False

    @classmethod
    def open(
        cls,
        path: str,
        *,
        read_only: bool = False,
        durability: Durability = "disk",
        options: ObjectOptions | None = None,
    ) -> Self:
        return cls(path, read_only=read_only, durability=durability, options=options)

    def __init__(
        self,
        path: str,
        *,
        read_only: bool = False,
        durability: Durability = "disk",
        options: ObjectOptions | None = None,
    ) -> None:
        self.options = options or ObjectOptions()
        remote = self.scheme != "slatedb"
        url = f"{self.scheme}:{path.rstrip('/')}" if remote else str(Path(path).absolute())
        super().__init__(path.rstrip("/") if remote else url, read_only=read_only, durability=durability)
        self.durability = "disk"
        self.linger = self.options.linger
        self._timeout = self.options.timeout
        self._foreign = True
        self._unflushed = False
        self._in_doubt = False
        self._broken: PenstockError | None = None
        self._version = 0
        self._logged = max(0, TABLE_COMMITS - 16)  # opening replays up to as many objects: a table soon
        self._relaxed_since, self._newest = 0.0, 0
        self._tabling: threading.Thread | None = None
        self._tabled = float("-inf")
        self._lease: WriterLease | None = None
        self._database: sl.Db | None = None
        self._follower: Follower | None = None
        self._place = Place(url, self.options)
        # Registering its hundred counters takes as long as opening a folder, where requests cost nothing.
        self._recorder = sl.DefaultMetricsRecorder() if remote else None
        self._check_folder()
        try:
            if read_only:
                self._open_to_read()
            else:
                self._open_to_write()
        except BaseException as error:
            self._closed = True
            self._let_go(patient=False)
            if isinstance(error, sl.Error):
                raise explain(error, self._name) from error
            if isinstance(error, TimedOut):
                raise StorageError(f"{self._name} could not be opened: {error}", retryable=True) from error
            raise

    # opening

    def _check_folder(self) -> None:
        folder = self._place.folder
        if folder is None:
            return
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file; a slatedb store is a folder: give it a name of its own")
        if (folder / "manifest").is_dir():
            return
        others = sorted(entry.name for entry in folder.iterdir() if entry.name != "penstock") if folder.is_dir() else []
        if others:
            raise ConfigError(
                f"{folder} holds other things ({', '.join(others[:3])}) and no slatedb store; "
                "give the store a folder of its own"
            )
        if self.read_only:
            raise NoStore(f"there is no store at {folder}; open it for writing once to make it")

    def _open_to_read(self) -> None:
        check_store(self._place, LEASE_PATH, writing=False)
        self._follower = Follower(self._place, self._name, make_cache(), self._recorder, self.options)
        self._follower.open()
        self._check_format(self._follower.view())

    def _open_to_write(self) -> None:
        check_store(self._place, LEASE_PATH, writing=True)
        lease = WriterLease(self._place.objects, self._name, self.options.lease)
        lease.take(takeover=self.options.takeover, standby=self.options.standby, timeout=self._timeout)
        self._lease = lease
        lease.keep()
        self._database = open_database(
            self._place, make_cache(), self._recorder, lease=self.options.lease, timeout=self._timeout
        )
        self._take_snapshot()
        if not self._check_format(self._view):
            call(self._database.put(FORMAT_KEY, FORMAT), self._timeout)
            flush_log(self._database, self._timeout)
            self._take_snapshot()

    def _check_format(self, view: Snapshot) -> bool:
        found = view.get(FORMAT_KEY)
        if found == FORMAT:
            return True
        if found is not None:
            raise ConfigError(
                f"{self._name} has the format {found.decode(errors='replace')!r}, this version of penstock reads "
                f"{FORMAT.decode()!r}; use the version that made it, or copy its events over"
            )
        if next(view.scan(b"", END), None) is not None:
            raise ConfigError(f"{self._name} is a SlateDB database of another program; give the journal its own place")
        if self.read_only:
            raise ConfigError(f"{self._name} is empty, not a store; open it for writing once to make it one")
        return False

    def _take_snapshot(self) -> None:
        assert self._database is not None
        self._view = SlatedbView(call(self._database.snapshot(), self._timeout), self._name, self._timeout)

    # transactions

    def read(self) -> SlatedbRead:
        self._check_usable()
        return SlatedbRead(self, self._view if self._follower is None else self._follower.view())

    def write(self, *, sync: bool = True) -> OverlayWrite:
        self._check_writable()
        return OverlayWrite(self, sync)

    def _begin(self) -> tuple[Snapshot, bool]:
        self._take_turn()
        try:
            self._check_writer()
            self._settle()
        except BaseException:
            self._end_turn()
            raise
        return self._view, self._foreign

    def _check_writer(self) -> None:
        """Raises what ended this writer, if anything has."""
        if self._broken is None and self._lease is not None:
            try:
                self._lease.check()
            except Fenced as error:
                self._broken = error
        if self._broken is not None:
            raise self._broken

    def _settle(self) -> None:
        """After a commit whose outcome is not known: waits until it is in the object store, like everything before."""
        if not self._in_doubt:
            return
        try:
            self._put_log(time.monotonic() + self._timeout)
            self._take_snapshot()
        except TimedOut as error:
            raise StorageError(
                f"{self._name} takes nothing new: an earlier commit still waits for the store ({error}). Nothing of "
                "this one was written: try again",
                retryable=True,
            ) from error
        except sl.Error as error:
            self._broken = explain(error, self._name)
            raise self._broken from error
        self._in_doubt = False
        self._version += 1

    def _commit(self, changes: OverlayWrite) -> None:
        deadline = time.monotonic() + self._timeout
        relaxed = changes.relaxed
        batch = self._make_batch(changes)
        if batch is None and not (self._unflushed and not relaxed):
            self._foreign = False
            return
        assert self._database is not None
        self._in_doubt = True  # until every step has ended well; an interrupt may come between any two
        self._foreign = True
        try:
            if batch is not None:
                written = call(self._database.write(batch), max(0.0, deadline - time.monotonic()))
                if relaxed and self._database.status().durable_seq >= self._newest:
                    self._relaxed_since = time.monotonic()
                self._newest = written.seqnum()
            if not relaxed:
                self._put_log(deadline)
            self._take_snapshot()
        except sl.Error as error:
            self._broken = explain(error, self._name)
            raise self._broken from error
        except TimedOut as error:
            raise OutcomeUnknown(
                f"{self._name} has not answered within {self._timeout:g} s: whether this commit is kept is not known "
                "yet, and it may be seen later. Doing it again is safe for events with a dedup key"
            ) from error
        self._in_doubt = self._foreign = False
        self._unflushed = relaxed
        self._version += 1

    def _make_batch(self, changes: OverlayWrite) -> sl.WriteBatch | None:
        batch, count = sl.WriteBatch(), 0
        for start, stop in changes.ranges:  # SlateDB deletes no ranges: every key in them is looked up
            for key, _ in self._view.scan(start, stop):
                if key not in changes.changes:
                    batch.delete(key)
                    count += 1
        for key, value in changes.changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
            count += 1
        return batch if count else None

    def _put_log(self, deadline: float) -> None:
        """One PUT with everything written so far; returns only while nobody can have taken the lease."""
        assert self._database is not None and self._lease is not None
        self._logged += 1
        idle = self._tabling is None or not self._tabling.is_alive()
        if self._logged >= TABLE_COMMITS and idle and time.monotonic() - self._tabled >= TABLE_SECONDS:
            self._logged, self._tabled = 0, time.monotonic()
            self._tabling = threading.Thread(target=self._make_table, name="penstock-table", daemon=True)
            self._tabling.start()
        flush_log(self._database, max(0.0, deadline - time.monotonic()))
        if not self._lease.confirm(max(0.0, deadline - time.monotonic())):
            raise TimedOut(f"the lease could not be renewed within {self._timeout:g} s")

    def _make_table(self) -> None:
        assert self._database is not None
        with suppress(sl.Error):  # the next commit meets it too
            flush_tables(self._database)

    # the rest

    def changes(self) -> int:
        self._check_usable()
        if self._follower is not None:
            self._follower.look()
            return self._follower.version
        return self._version

    def flush(self) -> None:
        self._check_usable()
        if self.read_only:
            return
        with self.write():
            pass  # an empty transaction takes along what relaxed ones left behind

    def reclaim(self) -> None:
        """Has everything merged into one sorted run; what that replaces is collected when no snapshot can need it."""
        self._check_writable()
        assert self._database is not None
        self._check_writer()
        try:
            compact(self._place, self._database, self._timeout)
        except sl.Error as error:
            raise explain(error, self._name) from error
        except TimedOut as error:
            raise StorageError(f"{self._name} could not be compacted now: {error}", retryable=True) from error

    def writer(self) -> str | None:
        """Who holds the lease, or held it last without giving it back."""
        self._check_usable()
        holder = read_lease(self._place.objects, self._name)
        return None if holder is None or holder.released else holder.who()

    def requests(self) -> dict[str, dict[str, int]]:
        """Requests to the object store since it was opened: cause → kind → number; nothing for a folder.

        Causes are log (commits), database (tables, opening, reading), compaction, collection, lease, following.
        """
        if self._recorder is None:
            return {}
        found: dict[str, dict[str, int]] = {
            cause: dict(kinds) for cause, kinds in count_requests(self._recorder).items()
        }
        if self._lease is not None:
            found["lease"] = {"put": self._lease.renewals + 1}
        if self._follower is not None:
            found["following"] = {"head": self._follower.looks}
        return found

    def collect(self) -> None:
        """Removes objects that no state refers to, except young ones; it also happens every ten minutes."""
        self._check_writable()
        try:
            collect(self._place, self.options.lease, self._timeout)
        except sl.Error as error:
            raise explain(error, self._name) from error
        except TimedOut as error:
            raise StorageError(f"{self._name} could not be collected now: {error}", retryable=True) from error

    def size(self) -> int:
        """Bytes of all objects, also of those that wait for collection."""
        self._check_usable()
        return sum(size for _, size in self._place.objects.sizes())

    def objects(self) -> dict[str, int]:
        self._check_usable()
        found: Counter[str] = Counter()
        for path, _ in self._place.objects.sizes():
            found[_PURPOSES.get(path.partition("/")[0], "other")] += 1
        return dict(found)

    def unstored_seconds(self) -> float:
        if self._database is None or self._closed or not self._unflushed:
            return 0.0
        if self._database.status().durable_seq >= self._newest:  # SlateDB has put it into the log by itself
            return 0.0
        return time.monotonic() - self._relaxed_since

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes a copy into a folder; or, given a url in the same bucket, makes a store there.

        The writer makes it of the same tables, without copying them; a reader, which cannot have the log made into a
        table, copies every row.
        """
        self._check_usable()
        if isinstance(destination, str) and "://" in destination:
            self._back_up_beside(destination)
            return
        with self.read() as snapshot:
            back_up(snapshot, destination)

    def _back_up_beside(self, destination: str) -> None:
        if self._place.folder is not None:
            raise ConfigError(f"a backup of {self._name} goes into a folder, not to {destination!r}: give a path")
        target = backup_place(self._place, destination, self.options)
        if self.read_only:
            options = replace(self.options, takeover=False, standby=False)
            copy = type(self)(destination.partition(":")[2], options=options)
            try:
                with self.read() as snapshot:
                    copy_rows(snapshot, copy)
            finally:
                copy.close()
            return
        try:
            with self.write():
                pass  # everything acknowledged so far is settled, and what relaxed commits left behind is in the log
            assert self._database is not None
            flush_tables(self._database, self._timeout)
            clone(self._place, target, self._timeout)
        except sl.Error as error:
            raise explain(error, self._name) from error
        except TimedOut as error:
            raise StorageError(f"{self._name} could not be backed up now: {error}", retryable=True) from error

    def close(self) -> None:
        if self._closed:
            return
        if os.getpid() != self._pid:
            self._closed = True
            return
        self._take_turn()
        self._closed = True
        self._end_turn()
        self._let_go(patient=True)

    def _let_go(self, *, patient: bool) -> None:
        """Closes the database and gives the lease back; what was acknowledged is safe without the store too."""
        failed: BaseException | None = None
        try:
            if self._follower is not None:
                self._follower.close()
            if self._database is not None:
                call(self._database.shutdown(), self._timeout if patient else 1.0)
        except sl.Error as error:
            # A writer that was replaced has nothing left to lose: what it acknowledged is the other one's now.
            replaced = isinstance(explain(error, self._name), Fenced)
            failed = error if self._broken is None and patient and not replaced else None
        except TimedOut as error:
            failed = error if self._unflushed and patient else None
        finally:
            if self._lease is not None:
                self._lease.release()
        if isinstance(failed, sl.Error):
            raise explain(failed, self._name) from failed
        if failed is not None:
            raise StorageError(
                f"{self._name} was closed without the store: {failed}. What was acknowledged is safe; commits that "
                "nobody waited for may be lost"
            ) from failed


class S3Engine(SlatedbEngine):
    """A store in Amazon S3, or in what speaks its language."""

    scheme: ClassVar[str] = "s3"


class GoogleEngine(SlatedbEngine):
    """A store in Google Cloud Storage."""

    scheme: ClassVar[str] = "gs"


class AzureEngine(SlatedbEngine):
    """A store in Azure Blob Storage."""

    scheme: ClassVar[str] = "az"
