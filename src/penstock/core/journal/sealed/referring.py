"""Segments by reference: Parquet files that tasks wrote become events in one commit, which reads none of their bytes.

    lake/orders/_segments/<job>.<number>/<milliseconds>.<try>-<file>.parquet          and beside it .parquet.keys

A file is no event until a commit refers to it. Its name has all that sweeping must know: the job, the number of the
micro-batch (0 for a job that has only one), and the time when its task began. A file that no commit refers to is
removed

- when its job's batch of that number is over: another try of it cannot be committed any more;
- when it is old. A commit refuses files that are nearly as old, so that none can go while a commit refers to it.

Readers of folders skip names that begin with `_`: only the journal knows which files count.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.core.durable import as_storage_error
from penstock.core.journal.catalog import load_record, load_state, save_with_end
from penstock.core.journal.commit import Commit, next_id, topic_is_full
from penstock.core.journal.sealed.segments import (
    KEYS_SUFFIX,
    NewSegment,
    Seals,
    TableSettings,
    check_marker,
    load_seals,
    load_segments,
    save_new,
    save_seals,
    sealed_files,
)
from penstock.core.journal.summaries import Summary, pack_summaries, put_range_rows
from penstock.core.names import shown_url
from penstock.errors import ConfigError, StorageError
from penstock.limits import MAX_POSITION, STAGED_SECONDS, SUMMARY_RANGES

if TYPE_CHECKING:
    from penstock.core.journal.core import JournalCore
    from penstock.core.journal.sealed.segments import SealMarker
    from penstock.core.journal.sealed.writing import LakeFolder

FOLDER = "_segments"
"""The folder, within a topic's folder of a lake, with the files of bulk writes."""
_SWEPT_MS = int(STAGED_SECONDS * 1000)
"""The age at which a file without a reference from a commit is removed."""
_SIGNED = 16
"""The number of bulk-write tokens that are remembered.

Markers may be written in another order than tokens are given.
"""
_SIGN_MS = 3_600_000
"""The time for which a signed folder is not signed and swept again: a stream has many batches."""
_COMMITTED_MS = _SWEPT_MS - 3_600_000
"""The age above which a commit refuses files. The clocks of machines may differ by an hour."""


class FileName(NamedTuple):
    """The parts of a file's path within the topic's folder."""

    job: str
    number: int
    begun_ms: int
    rest: str

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.job}.{self.number}/{self.begun_ms}.{self.rest}"


def read_file_name(path: str) -> FileName | None:
    """Returns the parts of a path within the topic's folder; None when no task made the path."""
    parts = path.split("/")
    if len(parts) != 3 or parts[0] != FOLDER:
        return None
    job, _, number = parts[1].rpartition(".")
    begun, _, rest = parts[2].partition(".")
    if not (job and rest and number.isdecimal() and begun.isdecimal()):
        return None
    return FileName(job, int(number), int(begun), rest)


def append_segments(commit: Commit, name: str, added: Sequence[NewSegment]) -> range:
    """Makes files the newest events of a topic, in their order. Returns the positions of these events.

    The cost depends on the number of references, not on the number of events.
    """
    commit.check_barrier(name)
    commit.flush()
    head = commit.ensure(name)
    _check(commit, name, added)
    recorded = max(commit.now_ms, head.recorded_ms)
    first = seq = head.latest + 1
    base = next_id(head.last_id, recorded, head.id_bits)
    if first + sum(one.count for one in added) - 1 > MAX_POSITION:
        raise topic_is_full(name, head.latest, sum(one.count for one in added))
    summaries = []
    for one in added:
        last = save_new(commit.tx, head.topic_id, one, (seq, (base + seq - first).to_bytes(16), recorded))
        summaries.append(Summary(seq, last, one.kinds, one.scopes, one.occurred or (recorded, recorded)))
        seq += one.count
    for at in range(0, len(summaries), SUMMARY_RANGES):
        some = summaries[at : at + SUMMARY_RANGES]
        put_range_rows(commit.tx, head.topic_id, some[0].first, (pack_summaries(some), None))
    commit.move_end(head, seq - 1, recorded, base + seq - 1 - first, seq - first, causal=False)
    state = load_state(commit.tx, head.topic_id, name)
    state = replace(state, referred=seq - 1)
    if max(state.sealed, state.trimmed) == first - 1:
        state = replace(state, sealed=seq - 1)
    save_with_end(commit.tx, commit.ensure(name), state)
    return range(first, seq)


def _check(commit: Commit, name: str, added: Iterable[NewSegment]) -> None:
    """Raises ConfigError or StorageError when some files cannot become events of a topic."""
    settings = commit.ensure(name).settings
    if settings.verified or settings.by_key:
        raise ConfigError(f"the settings of topic {name!r} have changed since this write began: run it again")
    oldest = commit.now_ms - _COMMITTED_MS
    for one in added:
        named = read_file_name(one.path.removeprefix(f"{name}/"))
        if named is None or ".." in one.path:
            raise ConfigError(f"{one.path[:200]!r} is not the path of a file that a task wrote for topic {name!r}")
        if named.begun_ms < oldest:
            raise StorageError(
                f"what was written for topic {name!r} is too old to become its events, and will be removed: run the "
                "write again",
                retryable=False,
            )


# ── where the files of a topic's bulk writes go, and the removal of those that no commit refers to ──


class BulkTarget(msgspec.Struct, frozen=True):
    """The place of the files of a bulk write to a topic."""

    topic: str
    lake: str
    columns: str = ""
    """Typed columns beside the JSON text."""
    store: str | None = None
    """The journal's file, whose permissions the files get; None when the files are not in a local folder."""


def find_target(
    core: JournalCore, topic: str, lake: str | None, columns: str = "", own: str | None = None
) -> tuple[BulkTarget | None, bool]:
    """Returns the place for files that become events of a topic, and whether its folder is ready.

    The place is None when the topic takes only blocks.

    `lake` is the lake that the caller names. Without it, files go to the topic's lake, or to the journal's `own` lake
    if it has one. `columns` are the typed columns of files in a lake without columns of its own.
    """
    if topic in core.journal.queues():
        return None, False
    with core.engine.read() as snap:
        record = load_record(snap, topic)
        if record is not None and (record.settings.verified or record.settings.by_key):
            return None, False
        seals = Seals() if record is None else load_seals(snap, record.topic_id)
    lake = lake or next(reversed(seals.tables), own)
    if lake is None:
        return None, False
    settings = seals.tables.get(lake, TableSettings())
    if settings.format != "parquet" or settings.partition_by:
        return None, False
    signed = max((at for place, _, at in seals.signed if place == lake), default=0)
    target = BulkTarget(topic, lake, settings.columns or columns, core.engine.location)
    return target, core.clock.now_ms() - signed < _SIGN_MS


def plan_bulk(
    core: JournalCore, topic: str, lake: str | None, columns: str = "", own: str | None = None
) -> BulkTarget | None:
    """Does the same as `find_target`.

    From time to time it also signs the folder, and removes old files that no commit refers to.
    """
    target, ready = find_target(core, topic, lake, columns, own)
    if target is None or ready:
        return target
    from penstock.core.journal.sealed.writing import LakeFolder

    folder, token = LakeFolder(target.lake, topic), uuid.uuid4().hex[:12]
    with as_storage_error(f"write to {folder}"):
        # A folder is signed before it holds files. A folder with known files already has its marker.
        known = _holds_files(core, target)
        core.run(partial(_sign, target, token, folder.marker(core.id), str(folder), known))
        folder.sign(core.id, token)
        sweep_old(core, folder)
    return target


def _holds_files(core: JournalCore, target: BulkTarget) -> bool:
    """Returns True if the topic has files in the lake."""
    with core.engine.read() as snap:
        record = load_record(snap, target.topic)
        return record is not None and any(one.lake == target.lake for one in load_segments(snap, record.topic_id))


def _sign(target: BulkTarget, token: str, marker: SealMarker | None, folder: str, known: bool, commit: Commit) -> None:
    """Records the token of the folder's next marker. A copy of this journal does not know this token."""
    head, lake = commit.ensure(target.topic), target.lake
    seals = load_seals(commit.tx, head.topic_id)
    check_marker(seals, lake, marker, folder, known=known)
    signed = (*seals.signed, (lake, token, commit.now_ms))[-_SIGNED:]
    tables = seals.tables if lake in seals.tables else {**seals.tables, lake: TableSettings()}
    save_seals(commit.tx, head.topic_id, replace(seals, signed=signed, tables=tables))


def check_there(added: Sequence[NewSegment]) -> list[tuple[str, str]]:
    """Raises StorageError when a file, or a file that belongs to it, is not as its task has left it.

    Returns the lakes and paths of other files in the same folders: files of other attempts of the job's tasks.
    """
    from penstock.core.journal.sealed.writing import LakeFolder

    there: dict[tuple[str, str], dict[str, int]] = {}
    for one in added:
        place = one.lake, one.path.rpartition("/")[0]
        if place not in there:
            there[place] = dict(LakeFolder(one.lake, one.path.partition("/")[0]).files(place[1]))
        wanted = [(one.path, one.size)]
        if one.keys is not None:
            wanted.append((one.path + KEYS_SUFFIX, one.keys.size))
        for path, size in wanted:
            if there[place].pop(path, None) != size:
                raise StorageError(
                    f"{shown_url(one.lake)}/{path}, which a task has written with {size:,} bytes, is not there as it "
                    "was: it was swept, or is on the disk of another machine; run the query again"
                )
    return [(lake, path) for (lake, _), paths in there.items() for path in paths]


def sweep_job(core: JournalCore, target: BulkTarget, job: str, number: int) -> None:
    """Removes the files of a job's finished batch that did not become segments."""
    from penstock.core.journal.sealed.writing import LakeFolder

    folder = LakeFolder(target.lake, target.topic)
    below = f"{target.topic}/{FOLDER}/{job}.{number}"
    with as_storage_error(f"sweep {folder}"):
        _remove(core, folder, [path for path, _ in folder.files(below)], lambda named: True)


def remove_files(topic: str, files: Iterable[tuple[str, str]]) -> None:
    """Removes files of a topic that did not become segments and never will."""
    from penstock.core.journal.sealed.writing import LakeFolder

    for lake, path in files:
        with as_storage_error(f"remove {path}"):
            LakeFolder(lake, topic).remove(lake, path)


def sweep_old(core: JournalCore, folder: LakeFolder) -> None:
    """Removes old files of a topic that did not become segments, and files whose events were removed."""
    now_ms = core.clock.now_ms()
    _remove(
        core,
        folder,
        [path for path, _ in folder.files(f"{folder.topic}/{FOLDER}")],
        lambda named: named.begun_ms < now_ms - _SWEPT_MS,
    )
    with core.engine.read() as snap:
        record = load_record(snap, folder.topic)
        gone = () if record is None else load_seals(snap, record.topic_id).gone
    gone = tuple(one for one in gone if one[0] == folder.lake and folder.remove(*one))
    if gone:
        core.run(partial(_forget_gone, folder.topic, frozenset(gone)))


def _forget_gone(topic: str, gone: frozenset[tuple[str, str]], commit: Commit) -> None:
    head = commit.head(topic)
    if head is not None:
        seals = load_seals(commit.tx, head.topic_id)
        left = tuple(one for one in seals.gone if one not in gone)
        save_seals(commit.tx, head.topic_id, replace(seals, gone=left))


def _remove(core: JournalCore, folder: LakeFolder, paths: list[str], ended: Callable[[FileName], bool]) -> None:
    """Removes files that no commit refers to. The references are read after the files were listed."""
    named = [(path, read_file_name(path.removeprefix(f"{folder.topic}/"))) for path in paths]
    going = [path for path, name in named if name is not None and ended(name)]
    if not going:
        return
    with core.engine.read() as snap:
        record = load_record(snap, folder.topic)
        known = frozenset() if record is None else sealed_files(snap, record.topic_id)
    for path in going:
        if (folder.lake, path) not in known:
            folder.remove(folder.lake, path)
