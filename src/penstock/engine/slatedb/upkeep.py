"""Compaction on request, backups, and what deleted backups held."""

from __future__ import annotations

import logging
import os
import time
import uuid

import msgspec
import slatedb.uniffi as sl

from penstock.buffer.cloud import CloudStore
from penstock.buffer.store import open_cloud
from penstock.engine.base import check_backup_target, copy_rows
from penstock.engine.contract import Snapshot
from penstock.engine.slatedb.bridge import call
from penstock.engine.slatedb.database import collectable_age, flush_tables
from penstock.engine.slatedb.options import ObjectOptions
from penstock.engine.slatedb.place import Place
from penstock.engine.slatedb.reading.follower import LOG_PATH
from penstock.errors import ConfigError
from penstock.limits import TABLE_COMMITS
from penstock.names import split_url

log = logging.getLogger("penstock.engine.slatedb")

BACKUPS = "penstock/backups"
"""Where a journal notes the backups that hold its tables."""


class _Backup(msgspec.Struct):
    """A backup of the same tables: where it is, and the checkpoints that keep them: the databases' paths and ids."""

    url: str
    checkpoints: list[tuple[str, str]]
    """Empty while the backup is being made, and after a kill amid that."""
    begun_ms: int = 0


def compact(place: Place, database: sl.Db, timeout: float) -> None:
    """Asks SlateDB's compactor to merge all tables into one run, without waiting for it."""
    flush_tables(database, timeout)
    admin = sl.AdminBuilder(place.path, place.store).build()
    state = call(admin.read_compactor_state_view(), timeout)
    if state.compactions is not None and any(job.active for job in state.compactions.recent_compactions):
        return
    tables = state.manifest
    if len(tables.l0) + len(tables.compacted) < 1:
        return
    sources: list[sl.SourceId] = [sl.SourceId.SST_VIEW(view.id) for view in tables.l0]
    sources += [sl.SourceId.SORTED_RUN(run.id) for run in tables.compacted]
    target = min((run.id for run in tables.compacted), default=0)
    call(admin.submit_compaction(sl.CompactionSpec.TIERED(segment=b"", sources=sources, destination=target)), timeout)


def collect(place: Place, lease: float, timeout: float) -> None:
    """Removes what no state refers to and is older than many leases; SlateDB does the same every ten minutes."""
    admin = sl.AdminBuilder(place.path, place.store).build()
    age = sl.GarbageCollectorDirectoryOptions(min_age_ms=round(collectable_age(lease) * 1000), dry_run=False)
    call(
        admin.run_gc_once(
            sl.GarbageCollectorOptions(
                manifest_options=age,
                wal_options=age,
                wal_fence_options=None,
                compacted_options=age,
                compactions_options=age,
                detach_options=None,
            )
        ),
        timeout,
    )


def backup_place(source: Place, destination: str, options: ObjectOptions) -> Place:
    """Where in the bucket of a journal a backup of it goes; ConfigError when it cannot go there."""
    there, here = split_url(destination), split_url(source.url)
    if (there.scheme, there.netloc) != (here.scheme, here.netloc):
        raise ConfigError(
            f"a backup of {source.url} goes into the same bucket ({here.scheme}://{here.netloc}/…) or into a folder, "
            f"not to {destination!r}: copy the journal there with penstock copy"
        )
    target = Place(destination.rstrip("/"), options)
    inside, outside = sorted((f"{target.path}/", f"{source.path}/"), key=len, reverse=True)
    if inside.startswith(outside):
        raise ConfigError(f"a backup has a place of its own, beside {source.url}, not {destination!r}")
    if next(iter(target.objects.sizes()), None) is not None:
        raise ConfigError(f"{destination} exists already; a backup never overwrites: give it a new name")
    return target


def clone(source: Place, target: Place, timeout: float) -> None:
    """Makes a store at `target` of the tables at `source`, which are not copied: a checkpoint there keeps them.

    The log is not part of it, so the writer makes a table of it first. It is noted before it is made: a process that
    is killed in between leaves a note from which `release_deleted` finds the checkpoint.
    """
    note = f"{BACKUPS}/{uuid.uuid4().hex}"
    record = _Backup(target.url, [], int(time.time() * 1000))
    source.objects.put_if(note, msgspec.json.encode(record), None)
    admin = sl.AdminBuilder(target.path, target.store).build()
    origin = sl.CloneSourceSpec(path=source.path, checkpoint=None, projection_range=None)
    builder = admin.create_clone_builder_from_source(origin)
    builder.with_object_store(source.store)
    call(builder.build(), timeout)
    _complete(source, note, record, target, timeout)


def _complete(source: Place, note: str, record: _Backup, target: Place, timeout: float) -> None:
    """Notes the checkpoints that keep a backup's tables; its own first manifest names them."""
    made = call(sl.AdminBuilder(target.path, target.store).build().read_manifest(None), timeout)
    held = [] if made is None else [(one.path, one.final_checkpoint_id) for one in made.external_dbs]
    record.checkpoints = [(path, id) for path, id in held if id is not None]
    _store(source).put(note, msgspec.json.encode(record))


def _store(place: Place) -> CloudStore:
    assert isinstance(place.objects, CloudStore), "only a bucket has backups beside a journal"
    return place.objects


def release_deleted(place: Place, options: ObjectOptions, timeout: float) -> int:
    """Lets go of the tables of backups that were deleted, so that collection frees them; how many backups those are."""
    if not isinstance(place.objects, CloudStore):
        return 0
    released = 0
    for path in list(place.objects.list(BACKUPS)):
        found = place.objects.get(path)
        if found is None:
            continue
        record = msgspec.json.decode(bytes(found), type=_Backup)
        there = open_cloud(record.url, options.store)
        if next(there.list("manifest"), None) is not None:
            if not record.checkpoints:
                _complete(place, path, record, Place(record.url, options), timeout)
            continue
        if not record.checkpoints and time.time() * 1000 - record.begun_ms < collectable_age(options.lease) * 1000:
            continue  # it may be about to be made
        for held, checkpoint in record.checkpoints:
            try:
                call(sl.AdminBuilder(held, place.store).build().delete_checkpoint(checkpoint), timeout)
            except sl.Error.Unavailable:
                raise  # the store's bad day: the note stays for the next time
            except sl.Error as error:
                log.info("the checkpoint of a deleted backup in %s is gone already: %s", held, error)
        place.objects.delete([path])
        released += 1
    return released


def back_up(snapshot: Snapshot, destination: str | os.PathLike[str]) -> None:
    """Copies a snapshot into a folder that this engine opens; half a copy never has the folder's name."""
    import shutil

    from penstock.engine.slatedb.engine import SlatedbEngine

    target = check_backup_target(destination)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        copy = SlatedbEngine(str(partial))
        try:
            copy_rows(snapshot, copy)
        finally:
            copy.close()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def log_is_long(place: Place, timeout: float) -> bool:
    """Whether opening would replay more objects of the log than a writer leaves between two tables."""
    manifest = call(sl.AdminBuilder(place.path, place.store).build().read_manifest(None), timeout)
    after = 0 if manifest is None else manifest.replay_after_wal_id
    return place.objects.exists(LOG_PATH.format(after + TABLE_COMMITS))
