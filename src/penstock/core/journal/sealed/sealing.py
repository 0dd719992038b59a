"""`seal_topic`: settled history becomes verified Parquet in a lake before the journal removes it.

    lake/orders/_penstock.json                                    whose history this is
    lake/orders/date=2026-03-01/<first>-<last>-<seal>.parquet
    lake/orders/date=2026-03-01/region=eu/<first>-<last>-<seal>.parquet       where a column parts them

For each file, or for all files of a range that a column parts, a seal takes these steps. It writes the file under a
name that readers skip. It reads the file back, compares it with the journal, and gives it its final name. Then one
commit of the journal records the file as a segment and drops its hot blocks. If the process is killed before the
commit, the file is an orphan, which the next `seal` removes. If the process is killed after the commit, the file is the
history. A read finds the blocks or the file, never neither.

A seal begins with a commit that makes its token the topic's token. After that, an older seal that is still running
cannot record anything. The names of files contain the token. A process removes a file only if the journal says that the
file's seal has ended and that the file is no segment. So neither a copy of the journal nor a second seal can remove
files that another one needs.

A lake may also be a Delta or Iceberg table (`tables`). The table is updated before the seal ends, and before a file
that the table lists is deleted.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from penstock.core.clock import from_ms, to_ms
from penstock.core.durable import as_storage_error
from penstock.core.engine.contract import Snapshot
from penstock.core.journal.blocks import Block
from penstock.core.journal.catalog import Head, load_state, save_with_end
from penstock.core.journal.commit import Commit
from penstock.core.journal.core import JournalCore
from penstock.core.journal.reading import TopicView
from penstock.core.journal.sealed.segments import (
    FILE_EVENTS,
    SealMarker,
    SealReport,
    Seals,
    Segment,
    TableSettings,
    check_marker,
    load_seals,
    load_segments,
    replace_segments,
    save_seals,
    save_segment,
    sealed_files,
    sealed_through,
)
from penstock.core.journal.sealed.tables import Owner, TableRequest, bring_up_to_date
from penstock.core.journal.sealed.writing import (
    LakeFolder,
    SealTarget,
    compacted,
    day_of,
    dropped,
    topic_to_seal,
    write_segment,
)
from penstock.core.journal.upkeep.erasing import is_under_way
from penstock.core.journal.upkeep.retention import held_back, remove_blocks
from penstock.core.names import check_name, check_position, check_whole, shown_url
from penstock.core.units import Progress
from penstock.errors import ConfigError, StorageError
from penstock.limits import MAX_PARTITION_VALUES

WriteSegments: TypeAlias = "Callable[[SealTarget, list[Range]], Iterator[Segment]]"
"""Writes the files of a topic's ranges, and returns them in order."""


def seal_topic(
    core: JournalCore,
    topic: str,
    *,
    lake: str,
    through: int | None = None,
    file_events: int = FILE_EVENTS,
    table: TableRequest | None = None,
    compact: bool = False,
    most: int | None = None,
    progress: Progress | None = None,
    write: WriteSegments | None = None,
) -> SealReport:
    """Moves a topic's settled history into Parquet under `lake` (a folder, s3://bucket/prefix, …).

    Without `through`, everything but the newest block is settled. `table` says which table the files also belong to;
    its missing settings stay as the last seal to this lake left them. With `compact`, small files of one day become one
    file. With `most`, a call seals at most that many events, and reports how many are left. `write` makes the files;
    without it, threads of this process make them.
    """
    check_name(topic)
    if through is not None:
        check_position(through, "through")
    check_whole(file_events, "file_events")
    if most is not None:
        check_whole(most, "most")
    if not lake:
        raise ConfigError("lake is empty: name a folder, or a url like s3://bucket/prefix")
    lake = lake.rstrip("/") if "://" in lake else os.path.abspath(lake)  # noqa: PTH100
    with as_storage_error(f"seal {topic!r} to {shown_url(lake)}"):
        sealing = _Sealing(core, topic, lake, file_events, table or TableRequest(), write)
        return sealing.run(through, most, progress, compact)


def rewrite_segments(
    core: JournalCore,
    topic: str,
    touched: Iterable[Segment],
    change: Callable[[Block], Block],
    changed: Callable[[], bool],
    adopt: Callable[[Commit], None],
) -> None:
    """Writes segments anew when `change` changes their events. `adopt` is called in the commit that replaces a segment.

    `changed` says whether the call has changed anything since. Afterwards tables list the new files; `clean_lakes`
    removes the old files.
    """
    lakes: dict[str, list[Segment]] = {}
    for one in touched:
        lakes.setdefault(one.lake, []).append(one)
    for lake, segments in lakes.items():
        with as_storage_error(f"rewrite files of {topic!r} in {shown_url(lake)}"):
            sealing = _Sealing(core, topic, lake, FILE_EVENTS, TableRequest(), None, erasing=True)
            sealing.rewrite(segments, change, changed, adopt)


def clean_lakes(core: JournalCore, topic: str) -> None:
    """Removes replaced files from a topic's lakes, and files that no seal has recorded."""
    with core.engine.read() as snap:
        seals = load_seals(snap, topic_to_seal(snap, topic).topic_id)
    for lake in dict.fromkeys(lake for lake, _ in (*seals.gone, *seals.unfinished)):
        with as_storage_error(f"remove replaced files of {topic!r} in {shown_url(lake)}"):
            _Sealing(core, topic, lake, FILE_EVENTS, TableRequest(), None, erasing=True).rewrite(())


class _Sealing:
    def __init__(
        self,
        core: JournalCore,
        topic: str,
        lake: str,
        file_events: int,
        request: TableRequest,
        write: WriteSegments | None,
        *,
        erasing: bool = False,
    ) -> None:
        self.core = core
        self.write = write or self._write
        self.topic = topic
        self.lake = lake
        self.file_events = file_events
        self.request = request
        self.erasing = erasing
        """True if events of its files are being erased. Other seals wait for that."""
        self.token = uuid.uuid4().hex[:12]
        self.folder = LakeFolder(lake, topic)
        self._recorded: set[tuple[str, str]] = set()
        """Lakes and paths of the files that this seal has made segments."""

    def run(self, through: int | None, most: int | None, progress: Progress | None, compact: bool) -> SealReport:
        if self.topic in self.core.journal.queues():
            raise ConfigError(f"{self.topic!r} is a queue: its messages go when they are settled, and are not sealed")
        with self.core.engine.read() as snap:
            view = TopicView.open(snap, self.topic)
            if view is None:
                raise ConfigError(f"there is no topic {self.topic!r} to seal")
            if view.record.settings.by_key:
                raise ConfigError(
                    f"topic {self.topic!r} keeps only the newest event of every key, so its history is never settled"
                )
            state = view.state()
            seals = load_seals(snap, view.topic_id)
            ranges = plan_ranges(view, max(state.sealed, state.trimmed), through, self.file_events)
            left = 0
            if most is not None and ranges:
                ranges, left = first_step(ranges, most)
            merges: list[list[Segment]] = []
            if compact and not left:
                merges = plan_merges(snap, view.topic_id, state.trimmed, self.lake, self.file_events)
        before = TableSettings() if self.lake in seals.markers else None
        self.settings = self.request.applied(seals.tables.get(self.lake, before), self.lake)
        changed = self.settings != seals.tables.get(self.lake, TableSettings())
        done = 0
        total = sum(stop - after for after, stop in ranges)
        written: list[Segment] = []
        if ranges or merges or changed or seals.gone or any(lake == self.lake for lake, _ in seals.unfinished):
            self._begin()
            with self._in_turn():
                with closing(self._segments(ranges)) as segments:
                    for segment in segments:
                        self._record(segment)
                        written.append(segment)
                        if progress is not None:
                            done += segment.last - segment.first + 1
                            progress(done, total)
                for old in merges:
                    self._merge(old)
                self._register()
            self.core.run(self._finish)
        if written:
            self.core.writer.reclaim()
        with self.core.engine.read() as snap:
            view = topic_to_seal(snap, self.topic)
            sealed = sealed_through(snap, view.topic_id, view.state())
        return SealReport(
            self.topic,
            shown_url(self.lake),
            sum(segment.count for segment in written),
            sum(len(segment.files) for segment in written),
            sum(segment.size for segment in written),
            sealed,
            self.settings.format,
            sum(segment.unfit for segment in written),
            left,
        )

    def rewrite(
        self,
        segments: Iterable[Segment],
        change: Callable[[Block], Block] = lambda block: block,
        changed: Callable[[], bool] = lambda: False,
        adopt: Callable[[Commit], None] = lambda commit: None,
    ) -> None:
        """Writes segments of the lake anew; see `rewrite_segments`."""
        with self.core.engine.read() as snap:
            view = topic_to_seal(snap, self.topic)
            trimmed = view.state().trimmed
            self.settings = load_seals(snap, view.topic_id).tables.get(self.lake, TableSettings())
        self._begin()
        with self._in_turn():
            for old in segments:
                if trimmed >= old.last:
                    continue
                new = write_segment(self.core.engine, self._target(old), max(old.first - 1, trimmed), old.last, change)
                if changed():
                    self.core.run(partial(self._swap, [old], new, adopt=adopt))
                else:  # an interrupted erasure already wrote it anew
                    for path in new.paths:
                        self.folder.remove(self.lake, path)
            self._register()
        self.core.run(self._finish)

    def _head(self, commit: Commit) -> Head:
        head = commit.head(self.topic)
        if head is None:
            raise dropped(self.topic)
        return head

    # ── whose turn it is ─────────────────────────────────────────────────────────────────────────────────────────────
    def _begin(self) -> None:
        """Makes this seal the topic's seal, signs the folder, and removes files that earlier seals and compaction
        have left.
        """
        marker = self.folder.marker(self.core.id)
        before, known = self.core.run(partial(self._take_turn, marker))
        unfinished = [one for one in before.unfinished if one[0] == self.lake]
        try:
            self.folder.sign(self.core.id, self.token)
            for _, token in unfinished:
                self.folder.remove_orphans(token, known)
            if any(lake == self.lake for lake, _ in before.gone):
                self._register()  # a table must not list a missing file
            gone = [one for one in before.gone if self.folder.remove(*one)]
        except OSError as error:
            raise StorageError(f"sealing to {shown_url(self.lake)} failed: {error}", retryable=True) from error
        self._cleaned = replace(before, unfinished=tuple(unfinished), gone=tuple(gone))

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Removes the files that a failed seal has written in vain. Says so when a newer seal has taken over.

        This applies to every error: a Spark task raises other errors than this process, and no later seal removes files
        of a dropped topic.
        """
        try:
            yield
        except Exception as error:
            with self.core.engine.read() as snap:
                view = TopicView.open(snap, self.topic)
                known = frozenset() if view is None else sealed_files(snap, view.topic_id)
                newest = "" if view is None else load_seals(snap, view.topic_id).token
            with suppress(OSError):
                self.folder.remove_orphans(self.token, known | self._recorded)
            if newest not in ("", self.token):
                raise ConfigError(
                    f"another process has begun to seal topic {self.topic!r}: what this call had recorded is sealed, "
                    "the rest is theirs"
                ) from error
            if isinstance(error, OSError):
                raise StorageError(f"sealing to {shown_url(self.lake)} failed: {error}", retryable=True) from error
            raise

    def _take_turn(self, marker: SealMarker | None, commit: Commit) -> tuple[Seals, frozenset[tuple[str, str]]]:
        head = self._head(commit)
        if not self.erasing and is_under_way(commit.tx, head.topic_id):
            raise ConfigError(
                f"events of topic {self.topic!r} are being erased: seal again when maintain() has ended it"
            )
        seals = load_seals(commit.tx, head.topic_id)
        known = sealed_files(commit.tx, head.topic_id)
        held = any(lake == self.lake for lake, _ in known)
        check_marker(seals, self.lake, marker, str(self.folder), known=held)
        markers = seals.markers if marker is None else {**seals.markers, self.lake: marker.seal}
        unfinished = (*seals.unfinished, (self.lake, self.token))
        tables = {**seals.tables, self.lake: self.settings}
        save_seals(
            commit.tx,
            head.topic_id,
            replace(seals, token=self.token, markers=markers, unfinished=unfinished, tables=tables),
        )
        return seals, known

    def _finish(self, commit: Commit) -> None:
        """Ends the seal: every file of it is a segment now, and the files that earlier seals left in this lake are
        removed.
        """
        head = self._head(commit)
        seals = load_seals(commit.tx, head.topic_id)
        if seals.token != self.token:
            return  # a newer seal has taken over, or the topic was made anew
        done = {*self._cleaned.unfinished, (self.lake, self.token)}
        gone = set(self._cleaned.gone)
        seals = replace(
            seals,
            markers={**seals.markers, self.lake: self.token},
            unfinished=tuple(one for one in seals.unfinished if one not in done),
            gone=tuple(one for one in seals.gone if one not in gone),
        )
        save_seals(commit.tx, head.topic_id, seals)

    # ── the work ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _segments(self, ranges: list[Range]) -> Generator[Segment]:
        yield from self.write(self._target(), ranges)

    def _target(self, of: Segment | None = None) -> SealTarget:
        """Returns the place and the form of new files. `of` is a segment whose events the files hold again."""
        columns = of.columns if of is not None and of.filtered else self.settings.columns
        return SealTarget(self.topic, self.lake, self.token, columns, self.settings.partition_by)

    def _write(self, target: SealTarget, ranges: list[Range]) -> Iterator[Segment]:
        """Writes the files, several at once, and yields them in order."""
        engine = self.core.engine
        workers = min(os.cpu_count() or 1, 4)
        with ThreadPoolExecutor(workers, thread_name_prefix="penstock-seal") as pool:
            waiting: deque[Future[Segment]] = deque()
            try:
                for after, stop in ranges:
                    waiting.append(pool.submit(write_segment, engine, target, after, stop))
                    if len(waiting) > workers:  # more files would only fill the disk before blocks are dropped
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for one in waiting:
                    one.cancel()

    def _record(self, segment: Segment) -> None:
        """Records a file as a segment. From now on the file is the history."""
        for file in segment.files:
            if self.folder.size(file.path) != file.size:
                raise StorageError(
                    f"{segment.shown(file.path)} was there a moment ago, and is not any more: seal again"
                )
        self.core.run(partial(self._adopt, segment))
        self._recorded.update((segment.lake, file.path) for file in segment.files)

    def _adopt(self, segment: Segment, commit: Commit) -> None:
        head = self._head(commit)
        state = load_state(commit.tx, head.topic_id, self.topic)
        mine = load_seals(commit.tx, head.topic_id).token == self.token
        if not mine or segment.first != sealed_through(commit.tx, head.topic_id, state) + 1:
            raise compacted(self.topic)
        if segment.count != topic_to_seal(commit.tx, self.topic).count_between(segment.first - 1, segment.last):
            raise compacted(self.topic)  # by key, after the file was written: the removed events would return
        if held_back(commit, self.topic, segment.last, self.core.housekeeper.holds)[0] < segment.last:
            raise ConfigError(f"{self.topic!r} became a queue meanwhile: its messages are not sealed")
        remove_blocks(commit, self.topic, head.topic_id, state, segment.last)
        save_segment(commit.tx, head.topic_id, segment)
        state = replace(state, sealed=segment.last)
        save_with_end(commit.tx, head, replace(state, sealed=sealed_through(commit.tx, head.topic_id, state)))

    # ── small files, and the table ───────────────────────────────────────────────────────────────────────────────────
    def _merge(self, old: list[Segment]) -> None:
        """Replaces several files by one file.

        The next seal removes the old files, so that readers can finish with them.
        """
        with self.core.engine.read() as snap:
            view = topic_to_seal(snap, self.topic)
            trimmed = view.state().trimmed
        if trimmed >= old[0].last:
            return  # compacted meanwhile: the rest waits for the next seal
        begin, filtered = max(old[0].first - 1, trimmed), old[0].filtered
        new = write_segment(self.core.engine, self._target(old[0]), begin, old[-1].last, filtered=filtered)
        self.core.run(partial(self._swap, old, new))

    def _swap(
        self, old: list[Segment], new: Segment, commit: Commit, adopt: Callable[[Commit], None] = lambda commit: None
    ) -> None:
        head = self._head(commit)
        there = [one for one in load_segments(commit.tx, head.topic_id, 0, new.last) if one.last >= old[0].last]
        if load_seals(commit.tx, head.topic_id).token != self.token or there != old:
            raise compacted(self.topic)
        replace_segments(commit.tx, head.topic_id, old, new)
        adopt(commit)

    def _register(self) -> None:
        """Updates the table, if there is one, to list the segments that the journal knows."""
        if self.settings.format == "parquet":
            return
        with self.core.engine.read() as snap:
            view = topic_to_seal(snap, self.topic)
            if load_seals(snap, view.topic_id).token != self.token:
                raise compacted(self.topic)
            state = view.state()
            segments = list(load_segments(snap, view.topic_id, state.trimmed))
        owner = Owner(self.core.id, self.topic, self.lake)
        bring_up_to_date(owner, self.settings, segments, max(state.sealed, state.trimmed))


# ── Which positions a seal puts into which file, and which small files it makes one ──


Range = tuple[int, int]
"""Positions after the first number, through the second number."""


def plan_ranges(view: TopicView, after: int, through: int | None, file_events: int) -> list[Range]:
    """Returns ranges of positions, one per file. A range has at most the given number of events, all of one day.

    Each range has events. Positions that compaction by key has emptied belong to the range of the next event.
    """
    latest = view.latest()
    if through is None:
        block = view.block_holding(latest) if latest > max(after, view.state().in_files) else None
        through = block.first - 1 if block else latest
    through = min(through, latest)
    ranges: list[Range] = []
    for part in view.stretches(after, through):
        begin = after = part.after
        while after < part.through and not part.in_files:
            stop = min(after + file_events, part.through)
            for end in _ends_of_days(view, after, stop):
                ranges.append((begin, end))
                begin = end
            after = stop
    return ranges


def _ends_of_days(view: TopicView, after: int, through: int) -> Iterator[int]:
    while after < through and (day := day_of(view, after + 1, through)) is not None:
        stop = min(through, max(view.position_before(to_ms(day + timedelta(days=1), "date")), after))
        if stop == after:
            stop = through
        yield stop
        after = stop


def first_step(ranges: list[Range], most: int) -> tuple[list[Range], int]:
    """Returns the first ranges, which together hold at most the given number of events, but at least one range.

    Also returns the number of positions that are left.
    """
    start, end = ranges[0][0], ranges[-1][1]
    taken = [one for one in ranges if one[1] - start <= most] or ranges[:1]
    return taken, end - taken[-1][1]


def plan_merges(snap: Snapshot, topic_id: int, trimmed: int, lake: str, file_events: int) -> list[list[Segment]]:
    """Returns groups of neighbouring files of one day that fit into one file together.

    Files of bulk writes are joined only with each other, and only if none has more than half of the events. So each
    time that an event is written again, its file has at least doubled.
    """
    found: list[list[Segment]] = []
    run: list[Segment] = []
    for segment in load_segments(snap, topic_id, trimmed):
        fits = run and run[-1].last + 1 == segment.first and _kind_of(run[-1]) == _kind_of(segment)
        values = {part.folder for one in [*run, segment] for part in one.parts}
        many = sum(one.count for one in run) + segment.count > file_events
        if not fits or many or len(values) > MAX_PARTITION_VALUES:
            found.append(run)
            run = []
        if segment.lake == lake:
            run.append(segment)
    return [run for run in [*found, run] if len(run) > 1 and (not run[0].filtered or _doubles(run))]


def _kind_of(segment: Segment) -> tuple[str, str, bool, str]:
    """Returns the values in which segments must agree to be joined: the lake, the day, filters of the keys, and the
    columns.
    """
    day = segment.day.rpartition("/")[2]
    if segment.by_reference:
        day = f"date={from_ms(segment.recorded_ms):%Y-%m-%d}"
    return segment.lake, day, segment.filtered, segment.columns


def _doubles(run: list[Segment]) -> bool:
    return 2 * max(one.count for one in run) <= sum(one.count for one in run)
