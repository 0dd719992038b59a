"""The engine of a journal in an object store, for one writing process and readers anywhere.

A write transaction is an overlay that becomes one batch and one forced flush of SlateDB's log: one PUT. It is
acknowledged when the object store has it and the lease is known to be held still. Reads of the writing process see the
state after the last acknowledged commit, so no reader acts on what is not durable. `durability="process"` means `disk`
here, because what is not in the object store is in this process's memory. A relaxed commit (`sync=False`) is seen here
at once, and goes into the object store with the next commit, or after a second; one that others are told of (`keep`),
as a delivery is, waits like any other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

import slatedb.uniffi as sl

from penstock.engine.base import BaseEngine, copy_rows
from penstock.engine.contract import Durability, Snapshot
from penstock.engine.open_files import OpenFiles
from penstock.engine.overlay import OverlayWrite
from penstock.engine.slatedb.bridge import TimedOut, call
from penstock.engine.slatedb.database import flush_log, flush_tables, make_batch, make_cache, open_database
from penstock.engine.slatedb.errors import explain, explained, log_moved
from penstock.engine.slatedb.format import FORMAT, check_folder, is_made, put_format, unfinished
from penstock.engine.slatedb.lease import LEASE_PATH, WriterLease, read_lease
from penstock.engine.slatedb.options import ObjectOptions
from penstock.engine.slatedb.place import Place, check_store
from penstock.engine.slatedb.reading.follower import Follower
from penstock.engine.slatedb.reading.view import SlatedbRead, SlatedbView
from penstock.engine.slatedb.reading.warming import warm_up
from penstock.engine.slatedb.upkeep import back_up, backup_place, clone, collect, compact, log_is_long, release_deleted
from penstock.engine.slatedb.usage import objects_by_purpose, requests_by_cause
from penstock.errors import Closed, ConfigError, Corrupt, Fenced, OutcomeUnknown, PenstockError, StorageError
from penstock.limits import TABLE_COMMITS, TABLE_SECONDS

log = logging.getLogger("penstock.engine.slatedb")


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
        self._place = Place(url, self.options, reading=read_only)
        # Registering its hundred counters takes as long as opening a folder, where requests cost nothing.
        self._recorder = sl.DefaultMetricsRecorder() if remote else None
        check_folder(self._place, self.read_only)
        try:
            if read_only:
                self._open_to_read()
            else:
                self._open_to_write()
            if not remote:
                self._files = OpenFiles(url)
        except BaseException as error:
            self._closed = True
            self._let_go(patient=False)
            if isinstance(error, sl.Error):
                raise explain(error, self._name) from error
            if isinstance(error, TimedOut):
                raise StorageError(f"{self._name} could not be opened: {error}", retryable=True) from error
            raise

    # opening

    def _open_to_read(self) -> None:
        check_store(self._place, LEASE_PATH, writing=False, timeout=self._timeout)
        self._follower = Follower(self._place, self._name, make_cache(), self._recorder, self.options)
        self._follower.open()
        is_made(self._follower.view(), self._name, self.read_only)

    def _open_to_write(self) -> None:
        standby = self.options.standby
        check_store(self._place, LEASE_PATH, writing=True, timeout=self._timeout, patient=standby)
        lease = WriterLease(self._place.objects, self._name, self.options.lease)
        cache = make_cache()

        def fetch_in_advance() -> None:
            if standby:
                warm_up(self._place, cache, self._name, self._timeout)

        lease.acquire(
            takeover=self.options.takeover,
            standby=standby,
            timeout=self._timeout,
            meanwhile=fetch_in_advance,
        )
        self._lease = lease
        lease.renew_until_released()
        self._database = self._open_database(lease, cache)
        self._take_snapshot()
        if not is_made(self._view, self._name, self.read_only):
            put_format(self._database, FORMAT, self._timeout)
            self._take_snapshot()
        if not lease.was_given_back:
            self._tabling = threading.Thread(target=self._make_table_of_long_log, name="penstock-table", daemon=True)
            self._tabling.start()

    def _open_database(self, lease: WriterLease, cache: sl.DbCache) -> sl.Db:
        """Opens it; twice where one that was opening it too moved the log on meanwhile."""
        moved = False
        while True:
            try:
                return open_database(
                    self._place, cache, self._recorder, lease=self.options.lease, timeout=self._timeout
                )
            except sl.Error as error:
                if not log_moved(error) or not lease.confirm(self._timeout):
                    raise
                if moved:
                    raise Corrupt(f"{self._name} lacks a part of its log ({error}): restore a backup") from error
                moved = True

    def _take_snapshot(self) -> None:
        assert self._database is not None
        self._view = SlatedbView(call(self._database.snapshot(), self._timeout), self._name, self._timeout)

    # transactions

    def read(self) -> SlatedbRead:
        self._check_usable()
        if self._follower is None:
            return SlatedbRead(self, self._view)
        reading = SlatedbRead(self, self._follower.view())  # which finds another store in the place of this one
        self._check_files()
        return reading

    def write(self, *, sync: bool = True) -> OverlayWrite:
        self._check_writable()
        return OverlayWrite(self, sync)

    def _begin(self) -> tuple[Snapshot, bool]:
        self._take_turn()
        try:
            self._check_writer()
            self._resolve_doubt()
        except BaseException:
            self._end_turn()
            raise
        return self._view, self._foreign

    def _check_writer(self) -> None:
        """Raises what ended this writer, if anything has."""
        self._check_files()  # else what is put into a folder that was removed would make it again
        if self._broken is None and self._lease is not None:
            try:
                self._lease.check()
            except Fenced as error:
                self._broken = error
        if self._broken is not None:
            raise self._broken

    def _resolve_doubt(self) -> None:
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
        relaxed = changes.relaxed and not changes.kept
        batch = make_batch(self._view, changes)
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

    def _put_log(self, deadline: float) -> None:
        """One PUT with everything written so far; returns only while no other writer can have taken the lease."""
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

    def _make_table_of_long_log(self) -> None:
        """Writers that are all killed before their first table must not leave an ever longer log to replay."""
        try:
            if log_is_long(self._place, self._timeout):
                self._make_table()
        except (sl.Error, TimedOut, StorageError) as error:
            log.info("%s: the log could not be made a table yet: %s", self._name, error)

    def _make_table(self) -> None:
        assert self._database is not None
        with suppress(sl.Error):  # the next commit meets it too
            flush_tables(self._database)

    # the rest

    def changes(self) -> int:
        self._check_usable()
        if self._follower is not None:
            self._follower.refresh()
            self._check_files()
            return self._follower.version
        return self._version

    def catch_up(self) -> None:
        self._check_usable()
        if self._follower is not None:
            self._follower.refresh(at_once=True)

    def _flush(self) -> None:
        with self.write():
            pass  # an empty transaction takes along what relaxed ones left behind

    def reclaim(self) -> None:
        """Has everything merged into one sorted run; what that replaces is collected when no snapshot can need it.

        Tables that only backups needed which were deleted since are let go of, too.
        """
        self._check_writable()
        assert self._database is not None
        self._check_writer()
        with explained(self._name, "compacted"):
            release_deleted(self._place, self.options, self._timeout)
            compact(self._place, self._database, self._timeout)

    def writer(self) -> str | None:
        """Who holds the lease, or held it last without giving it back."""
        self._check_usable()
        holder = read_lease(self._place.objects, self._name)
        return None if holder is None or holder.released else holder.who()

    def requests(self) -> dict[str, dict[str, int]]:
        """Requests to the object store since it was opened: cause → kind → number; nothing for a folder.

        Causes are log (commits), database (tables, opening, reading), compaction, collection, lease, following.
        """
        return {} if self._recorder is None else requests_by_cause(self._recorder, self._lease, self._follower)

    def collect(self) -> None:
        """Removes objects that no state refers to, except young ones; it also happens every ten minutes."""
        self._check_writable()
        with explained(self._name, "collected"):
            collect(self._place, self.options.lease, self._timeout)

    def size(self) -> int:
        """Bytes of all objects, also of those that wait for collection."""
        self._check_usable()
        return sum(size for _, size in self._place.objects.sizes())

    def objects(self) -> dict[str, int]:
        self._check_usable()
        return objects_by_purpose(self._place)

    def unstored_seconds(self) -> float:
        if self._database is None or self._closed or not self._unflushed:
            return 0.0
        if self._database.status().durable_seq >= self._newest:  # SlateDB has put it into the log by itself
            return 0.0
        return time.monotonic() - self._relaxed_since

    def usable(self) -> bool:
        if self._follower is not None and self._follower.replaced is not None:
            return False
        return self._broken is None and (self._lease is None or not self._lease.lost) and super().usable()

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes a copy into a folder; or, given a url in the same bucket, makes a store there.

        The writer makes it of the same tables, without copying them; a reader, which cannot have the log made into a
        table, copies every row, of everything that was stored when it was asked to.
        """
        self.catch_up()
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
                assert copy._database is not None
                making = unfinished(copy._database, self._timeout)
                with self.read() as snapshot, explained(self._name, "backed up"), making:
                    copy_rows(snapshot, copy)
            finally:
                copy.close()
            return
        with explained(self._name, "backed up"):
            with self.write():
                pass  # everything acknowledged so far is written, and what relaxed commits left behind is in the log
            assert self._database is not None
            flush_tables(self._database, self._timeout)
            clone(self._place, target, self._timeout)
            release_deleted(self._place, self.options, self._timeout)

    def _close(self) -> None:
        if not self._shut():
            return
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
            # A writer that was replaced has nothing left to lose: what it acknowledged is the other one's now. SlateDB
            # says that it was fenced, or, where it found out by itself before, that it is closed.
            replaced = isinstance(explain(error, self._name), Fenced | Closed)
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
                "no caller waited for may be lost"
            ) from failed
