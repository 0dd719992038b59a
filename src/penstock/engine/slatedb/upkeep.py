"""Compaction on request, and backups."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import slatedb.uniffi as sl

from penstock.engine.base import check_backup_target
from penstock.engine.contract import Engine, Snapshot
from penstock.engine.overlay import END
from penstock.engine.slatedb.bridge import call
from penstock.engine.slatedb.database import collectable_age, flush_tables
from penstock.engine.slatedb.options import ObjectOptions
from penstock.engine.slatedb.place import Place
from penstock.errors import ConfigError

COPY_BYTES = 8 << 20
"""What one commit of a copy holds."""


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


def copy_rows(snapshot: Snapshot, target: Engine) -> None:
    """Writes every row of a snapshot into an empty store, in commits of a few megabytes."""
    rows: list[tuple[bytes, bytes]] = []
    waiting = 0
    for row in snapshot.scan(b"", END):
        rows.append(row)
        waiting += len(row[0]) + len(row[1])
        if waiting > COPY_BYTES:
            _put_all(target, rows)
            rows, waiting = [], 0
    _put_all(target, rows)
    target.flush()


def _put_all(target: Engine, rows: list[tuple[bytes, bytes]]) -> None:
    with target.write(sync=False) as tx:
        for key, value in rows:
            tx.put(key, value)


def backup_place(source: Place, destination: str, options: ObjectOptions) -> Place:
    """Where in the bucket of a journal a backup of it goes; ConfigError when it cannot go there."""
    there, here = urlsplit(destination), urlsplit(source.url)
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

    The log is not part of it, so the writer makes a table of it first.
    """
    admin = sl.AdminBuilder(target.path, target.store).build()
    origin = sl.CloneSourceSpec(path=source.path, checkpoint=None, projection_range=None)
    builder = admin.create_clone_builder_from_source(origin)
    builder.with_object_store(source.store)
    call(builder.build(), timeout)


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
