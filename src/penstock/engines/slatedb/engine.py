"""The engine of a journal in an object store, for one writing process and readers anywhere.

A write transaction is an overlay that becomes one batch and one forced flush of SlateDB's log: one PUT. It is
acknowledged when the object store has it and the lease is known to be still held. Reads of the writing process see the
state after the last acknowledged commit, so no reader acts on data that is not durable. `durability="process"` means
`disk` here, because data outside the object store is only in this process's memory. A relaxed commit (`sync=False`) is
visible in this process at once, and goes into the object store with the next commit, or after a second. A relaxed
commit that others are told of (`keep`), such as a delivery, waits like any other commit.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import msgspec
import slatedb.uniffi as sl
from msgspec.structs import replace

from penstock.core.engine.base import (
    FORMAT_KEY,
    BatchEngine,
    HeldRead,
    OpenFiles,
    OverlayWrite,
    check_folder,
    copy_rows,
    is_made,
)
from penstock.core.engine.contract import Durability, EngineView, ObjectEngine, ObjectOptions
from penstock.core.names import split_url
from penstock.engines.slatedb.bridge import TimedOut, call, explain, explained, log_moved
from penstock.engines.slatedb.database import (
    ObjectLocation,
    check_store,
    collectable_age,
    count_requests,
    flush_log,
    flush_tables,
    make_batch,
    open_database,
)
from penstock.engines.slatedb.lease import WriterLease, read_lease
from penstock.engines.slatedb.reading import LOG_PATH, Follower, SlatedbView, warm_up
from penstock.errors import Closed, ConfigError, Corrupt, Fenced, OutcomeUnknown, PenstockError, StorageError
from penstock.limits import TABLE_COMMITS, TABLE_SECONDS
from penstock.objects.cloud import CloudStore
from penstock.objects.store import open_cloud

log = logging.getLogger("penstock.engine.slatedb")


class SlatedbEngine(BatchEngine, ObjectEngine):
    """A store in S3, Google Cloud Storage or Azure. A folder is for tests only, because nothing is fsynced there."""

    shared: ClassVar[bool] = False

    def __init__(
        self,
        path: str,
        *,
        read_only: bool = False,
        durability: Durability = "disk",
        options: ObjectOptions | None = None,
        scheme: str = "slatedb",
    ) -> None:
        self.scheme = scheme
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
        self._logged = max(0, TABLE_COMMITS - 16)  # opening replays up to as many objects, so a table is due soon
        self._relaxed_since, self._newest = 0.0, 0
        self._tabling: threading.Thread | None = None
        self._tabled = float("-inf")
        self._lease: WriterLease | None = None
        self._database: sl.Db | None = None
        self._follower: Follower | None = None
        self._location = ObjectLocation(url, self.options, reading=read_only)
        if self._location.folder is not None:
            check_folder(self._location.folder, "slatedb", "manifest", "penstock".__eq__, read_only=read_only)
        try:
            with explained(self._name, "opened"):
                if read_only:
                    self._open_to_read()
                else:
                    self._open_to_write()
            if not remote:
                self._files = OpenFiles(url)
        except BaseException:
            self._closed = True
            self._shut_down(patient=False)
            raise

    # opening

    def _open_to_read(self) -> None:
        check_store(self._location, writing=False, timeout=self._timeout)
        self._follower = Follower(self._location)
        self._follower.open()
        self._is_made(self._follower.view())

    def _open_to_write(self) -> None:
        standby = self.options.standby
        check_store(self._location, writing=True, timeout=self._timeout, patient=standby)
        lease = WriterLease(self._location.objects, self._name, self.options.lease)

        def fetch_in_advance() -> None:
            if standby:
                warm_up(self._location)

        lease.acquire(
            takeover=self.options.takeover, standby=standby, timeout=self._timeout, meanwhile=fetch_in_advance
        )
        self._lease = lease
        lease.renew_until_released()
        self._database = self._open_database(lease)
        self._take_snapshot()
        if not self._is_made(self._view):
            put_format(self._database, FORMAT, self._timeout)
            self._take_snapshot()
        if not lease.was_given_back:
            self._tabling = threading.Thread(target=self._make_table_of_long_log, name="penstock-table", daemon=True)
            self._tabling.start()

    def _open_database(self, lease: WriterLease) -> sl.Db:
        """Opens the database. Tries twice when another process that was opening it moved the log."""
        moved = False
        while True:
            try:
                return open_database(self._location)
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

    def read(self) -> HeldRead:
        self._check_usable()
        begun = time.monotonic()
        if self._follower is None:
            return HeldRead(self, begun, self._view)
        reading = HeldRead(self, begun, self._follower.view())  # this finds another store in the place of this store
        self._check_files()
        return reading

    def _begin(self) -> tuple[EngineView, bool]:
        self._take_turn()
        try:
            self._check_writer()
            self._resolve_doubt()
        except BaseException:
            self._end_turn()
            raise
        return self._view, self._foreign

    def _check_writer(self) -> None:
        """Raises the error that ended this writer, if there is one."""
        self._check_files()  # else a put would make a removed folder again
        if self._broken is None and self._lease is not None:
            try:
                self._lease.check()
            except Fenced as error:
                self._broken = error
        if self._broken is not None:
            raise self._broken

    def _resolve_doubt(self) -> None:
        """Waits, after a commit with an unknown outcome, until this commit and everything before it are in the
        object store.
        """
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
        self._in_doubt = True  # until every step has succeeded; an interrupt may arrive between any two steps
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
        except (sl.Error, Fenced) as error:
            # SlateDB may have put the batch into the log before the failure, and may put pending data at any time.
            self._broken = explain(error, self._name) if isinstance(error, sl.Error) else error
            raise OutcomeUnknown(
                f"whether this commit is kept is not known, because the writer ended meanwhile: {self._broken}"
            ) from error
        except TimedOut as error:
            raise OutcomeUnknown(
                f"{self._name} has not answered within {self._timeout:g} s: whether this commit is kept is not known "
                "yet, and it may be seen later. Doing it again is safe for events with a dedup key"
            ) from error
        self._in_doubt = self._foreign = False
        self._unflushed = relaxed
        self._version += 1

    def _put_log(self, deadline: float) -> None:
        """Writes everything pending with one PUT. Returns only while no other writer can have taken the lease."""
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
        """Makes a table of a long log.

        Otherwise, writers that are all killed before their first table would leave an ever longer log to replay.
        """
        try:
            if log_is_long(self._location):
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
            pass  # an empty transaction writes the pending relaxed commits

    def reclaim(self) -> None:
        """Merges everything into one sorted run; the replaced tables are collected once no snapshot needs them.

        Tables that only deleted backups needed are released too.
        """
        self._check_writable()
        assert self._database is not None
        self._check_writer()
        with explained(self._name, "compacted"):
            release_deleted(self._location)
            compact(self._location, self._database)

    def writer(self) -> str | None:
        """Returns who holds the lease, or who held it last without releasing it."""
        self._check_usable()
        holder = read_lease(self._location.objects, self._name)
        return None if holder is None or holder.released else holder.who()

    def requests(self) -> dict[str, dict[str, int]]:
        """Returns the requests to the object store since it was opened: cause → kind → number; empty for a folder.

        Causes are log (commits), database (tables, opening, reading), compaction, collection, lease, following.
        """
        if self._location.recorder is None:
            return {}
        found: dict[str, dict[str, int]] = {
            cause: dict(kinds) for cause, kinds in count_requests(self._location.recorder).items()
        }
        if self._lease is not None:
            found["lease"] = {"put": self._lease.renewals + 1}
        if self._follower is not None:
            # SlateDB asks for each object of the log before it fetches it.
            checks, reads = self._follower.log_checks, self._follower.log_reads
            found["following"] = {"head": checks + reads, "get": reads}
        return found

    def size(self) -> int:
        """Returns the bytes of all objects, including objects that wait for collection."""
        self._check_usable()
        return sum(size for _, size in self._location.objects.sizes())

    def objects(self) -> dict[str, int]:
        self._check_usable()
        found: Counter[str] = Counter()
        for path, _ in self._location.objects.sizes():
            folder = path.partition("/")[0]
            ours = path.rpartition("/")[0] if folder == "penstock" else folder
            found[_PURPOSES.get(ours.removesuffix("/blocks"), "other")] += 1
        return dict(found)

    def unstored_seconds(self) -> float:
        if self._database is None or self._closed or not self._unflushed:
            return 0.0
        if self._database.status().durable_seq >= self._newest:  # SlateDB has put the commit into the log by itself
            return 0.0
        return time.monotonic() - self._relaxed_since

    def usable(self) -> bool:
        if self._follower is not None and self._follower.replaced is not None:
            return False
        return self._broken is None and (self._lease is None or not self._lease.lost) and super().usable()

    def backup(self, destination: str | os.PathLike[str]) -> None:
        """Writes a copy into a folder; or, given a url in the same bucket, makes a store there.

        The writer makes the copy from the same tables, without copying them. A reader cannot make a table of the log,
        so it copies every row that was stored at the time of the call.
        """
        self.catch_up()
        if isinstance(destination, str) and "://" in destination:
            self._back_up_beside(destination)
        else:
            super().backup(destination)

    def _back_up_beside(self, destination: str) -> None:
        if self._location.folder is not None:
            raise ConfigError(f"a backup of {self._name} goes into a folder, not to {destination!r}: give a path")
        target = backup_location(self._location, destination)
        if self.read_only:
            options = replace(self.options, takeover=False, standby=False)
            with closing(SlatedbEngine(destination.partition(":")[2], options=options, scheme=self.scheme)) as copy:
                assert copy._database is not None
                making = unfinished(copy._database, self._timeout)
                with self.read() as snapshot, explained(self._name, "backed up"), making:
                    copy_rows(snapshot, copy)
            return
        with explained(self._name, "backed up"):
            with self.write():
                pass  # everything acknowledged is written, and the pending relaxed commits are in the log
            assert self._database is not None
            flush_tables(self._database, self._timeout)
            clone(self._location, target)
            release_deleted(self._location)

    def _is_made(self, view: EngineView) -> bool:
        """Returns True when the database holds a store. Raises ConfigError when it holds something else or an
        unfinished backup."""
        if view.get(FORMAT_KEY) == UNFINISHED:
            raise ConfigError(
                f"{self._name} is a backup that was interrupted, and holds part of its journal only: delete it and "
                "back up again"
            )
        return is_made(view, self._name, FORMAT, read_only=self.read_only)

    def _close(self) -> None:
        if not self._shut():
            return
        self._shut_down(patient=True)

    def _shut_down(self, *, patient: bool) -> None:
        """Closes the database and releases the lease.

        Acknowledged commits are safe even when the store does not answer.
        """
        failed: BaseException | None = None
        try:
            if self._follower is not None:
                self._follower.close()
            if self._database is not None:
                call(self._database.shutdown(), self._timeout if patient else 1.0)
        except sl.Error as error:
            # A replaced writer has nothing left to lose: the other writer has its acknowledged commits. SlateDB reports
            # that it was fenced, or, where it found this out earlier, that it is closed.
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
                f"{self._name} was closed without the store: {failed}. Acknowledged changes are safe; commits that "
                "no caller waited for may be lost"
            ) from failed


# ── Compaction on request, backups, and what deleted backups held ──


BACKUPS = "penstock/backups"
"""The key under which a journal records its backups."""


class _Backup(msgspec.Struct):
    """A backup of the same tables: its place, and the checkpoints that keep the tables, as paths and ids of
    databases.
    """

    url: str
    checkpoints: list[tuple[str, str]]
    """Empty while the backup is being made, and after a kill during that time."""
    begun_ms: int = 0


def compact(location: ObjectLocation, database: sl.Db) -> None:
    """Asks SlateDB's compactor to merge all tables into one run, without waiting for it."""
    timeout = location.options.timeout
    flush_tables(database, timeout)
    admin = location.admin()
    state = call(admin.read_compactor_state_view(), timeout)
    if state.compactions is not None and any(job.active for job in state.compactions.recent_compactions):
        return
    tables = state.manifest
    if not tables.l0 and not tables.compacted:
        return
    sources: list[sl.SourceId] = [sl.SourceId.SST_VIEW(view.id) for view in tables.l0]
    sources += [sl.SourceId.SORTED_RUN(run.id) for run in tables.compacted]
    target = min((run.id for run in tables.compacted), default=0)
    call(admin.submit_compaction(sl.CompactionSpec.TIERED(segment=b"", sources=sources, destination=target)), timeout)


def backup_location(source: ObjectLocation, destination: str) -> ObjectLocation:
    """Returns the place in a journal's bucket for a backup. Raises ConfigError when the backup cannot go there."""
    there, here = split_url(destination), split_url(source.url)
    if (there.scheme, there.netloc) != (here.scheme, here.netloc):
        raise ConfigError(
            f"a backup of {source.url} goes into the same bucket ({here.scheme}://{here.netloc}/…) or into a folder, "
            f"not to {destination!r}: copy the journal there with penstock copy"
        )
    target = ObjectLocation(destination.rstrip("/"), source.options)
    inside, outside = sorted((f"{target.path}/", f"{source.path}/"), key=len, reverse=True)
    if inside.startswith(outside):
        raise ConfigError(f"a backup has a path of its own, beside {source.url}, not {destination!r}")
    if next(iter(target.objects.sizes()), None) is not None:
        raise ConfigError(f"{destination} exists already; a backup never overwrites: give it a new name")
    return target


def clone(source: ObjectLocation, target: ObjectLocation) -> None:
    """Makes a store at `target` from the tables at `source`.

    The tables are not copied; a checkpoint at `source` keeps them.

    The log is not part of the clone, so the writer first makes a table of the log. The backup is noted before it is
    made: a process that is killed in between leaves a note from which `release_deleted` finds the checkpoint.
    """
    note = f"{BACKUPS}/{uuid.uuid4().hex}"
    record = _Backup(target.url, [], int(time.time() * 1000))
    source.objects.put_if(note, msgspec.json.encode(record), None)
    origin = sl.CloneSourceSpec(path=source.path, checkpoint=None, projection_range=None)
    builder = target.admin().create_clone_builder_from_source(origin)
    builder.with_object_store(source.store)
    call(builder.build(), source.options.timeout)
    _complete(source, note, record, target)


def _complete(source: ObjectLocation, note: str, record: _Backup, target: ObjectLocation) -> None:
    """Notes the checkpoints that keep a backup's tables; the backup's own first manifest names them."""
    made = call(target.admin().read_manifest(None), source.options.timeout)
    held = [] if made is None else [(one.path, one.final_checkpoint_id) for one in made.external_dbs]
    record.checkpoints = [(path, id) for path, id in held if id is not None]
    assert isinstance(source.objects, CloudStore), "only a bucket has backups beside a journal"
    source.objects.put(note, msgspec.json.encode(record))


def release_deleted(location: ObjectLocation) -> None:
    """Releases the tables of deleted backups, so that collection frees them."""
    if not isinstance(location.objects, CloudStore):
        return
    options = location.options
    for path in list(location.objects.list(BACKUPS)):
        found = location.objects.get(path)
        if found is None:
            continue
        record = msgspec.json.decode(bytes(found), type=_Backup)
        there = open_cloud(record.url, options.store)
        if next(there.list("manifest"), None) is not None:
            if not record.checkpoints:
                _complete(location, path, record, ObjectLocation(record.url, options))
            continue
        if not record.checkpoints and time.time() * 1000 - record.begun_ms < collectable_age(options.lease) * 1000:
            continue  # the backup may be about to be made
        for held, checkpoint in record.checkpoints:
            try:
                call(sl.AdminBuilder(held, location.store).build().delete_checkpoint(checkpoint), options.timeout)
            except sl.Error.Unavailable:
                raise  # the store failed: the note stays for the next attempt
            except sl.Error as error:
                log.info("the checkpoint of a deleted backup in %s is gone already: %s", held, error)
        location.objects.delete([path])


def log_is_long(location: ObjectLocation) -> bool:
    """Returns True when opening would replay more objects of the log than a writer leaves between two tables."""
    manifest = call(location.admin().read_manifest(None), location.options.timeout)
    after = 0 if manifest is None else manifest.replay_after_wal_id
    return location.objects.exists(LOG_PATH.format(after + TABLE_COMMITS))


# ── How a SlateDB database is recognised as a store ──


FORMAT = b"penstock slatedb 1"
UNFINISHED = b"penstock slatedb backup, unfinished"


def put_format(database: sl.Db, format: bytes, timeout: float) -> None:
    """Writes into a database, durably, the format of its contents."""
    call(database.put(FORMAT_KEY, format), timeout)
    flush_log(database, timeout)


@contextmanager
def unfinished(database: sl.Db, timeout: float) -> Iterator[None]:
    """Marks a database as unfinished until the block ends, so that an interrupted copy cannot be opened as a store."""
    put_format(database, UNFINISHED, timeout)
    yield
    put_format(database, FORMAT, timeout)


_PURPOSES = {
    "wal": "log",
    "compacted": "tables",
    "manifest": "manifests",
    "compactions": "compactions",
    "gc": "collection",
    "penstock/staging": "staging",
    "penstock/backups": "backups",
    "penstock": "lease",
}
"""The purpose of a store's objects, by their folder."""
