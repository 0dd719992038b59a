"""Writing a run of the entity index: announced, filled in steps, then listed or thrown away; and deleting old ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from msgspec.structs import replace

from penstock.journal.commit.commit import Commit
from penstock.journal.commit.request import WriteRequest
from penstock.journal.commit.writer import Writer
from penstock.journal.index.directory import FILTER, Directory, Run, load_directory, run_key, save_directory
from penstock.journal.index.rows import STEP_ROWS, BloomFilter, Breathe, Chunk, prefix
from penstock.limits import INDEX_FAN_IN, INDEX_FILTER_TERMS, INDEX_RUN_BYTES, INDEX_STEP_BYTES

_ABANDONED_MS = 3_600_000
"""A run whose writing began this long ago was given up."""

Written = tuple[bytes, Chunk]
"""A section and a chunk of it."""


class Deletion:
    """Removes a part of a run, and its number from the list of rubbish when it was the last part."""

    def __init__(self, topic: str, number: int, run: int, start: bytes, stop: bytes, done: bool) -> None:
        self._topic, self._number, self._run = topic, number, run
        self._start, self._stop, self._done = start, stop, done

    def __call__(self, commit: Commit) -> None:
        if not commit.is_current(self._topic, self._number):
            return
        directory = load_directory(commit.tx, self._number, self._topic)
        if self._run not in directory.rubbish:
            return
        commit.tx.delete_range(self._start, self._stop)
        if self._done:
            left = tuple(run for run in directory.rubbish if run != self._run)
            save_directory(commit.tx, self._number, replace(directory, rubbish=left))


class Building:
    """A run being written: announced, filled in steps, then listed or thrown away."""

    def __init__(
        self,
        writer: Writer,
        topic: str,
        number: int,
        directory: Directory,
        positions: tuple[int, int],
        level: int,
    ) -> None:
        self._writer = writer
        self._topic = topic
        self._number = number
        self._epoch = directory.epoch
        self._positions = positions
        self._level = level
        self._id = 0
        self._size = 0
        self._entities = 0
        self._sections: set[str] = set()

    def begin(self) -> bool:
        """Takes a number; False when the index has changed too much since it was looked at."""
        return bool(self._do(self._announce))

    def _announce(self, commit: Commit) -> bool:
        if not commit.is_current(self._topic, self._number):
            return False
        directory = load_directory(commit.tx, self._number, self._topic)
        if directory.epoch != self._epoch:
            return False
        self._id = directory.next
        stale = [run for run, since in directory.building if commit.now_ms - since > _ABANDONED_MS]
        building = [one for one in directory.building if one[0] not in stale]
        building.append((self._id, commit.now_ms))
        save_directory(
            commit.tx,
            self._number,
            replace(directory, next=self._id + 1, building=tuple(building), rubbish=(*directory.rubbish, *stale)),
        )
        return True

    def skip(self, change: Callable[[Directory], Directory | None]) -> bool:
        """Changes the directory without a run: there was nothing to index."""

        def apply(commit: Commit) -> bool:
            if not commit.is_current(self._topic, self._number):
                return False
            directory = load_directory(commit.tx, self._number, self._topic)
            if directory.epoch != self._epoch:
                return False
            changed = change(directory)
            if changed is not None:
                save_directory(commit.tx, self._number, changed)
            return changed is not None

        return bool(self._do(apply))

    def write(self, written: Sequence[Written]) -> None:
        """Adds chunks."""
        start = size = 0
        for stop, (section, (_, value)) in enumerate(written, 1):
            size += len(value)
            self._sections.add(section.decode())
            if size >= INDEX_STEP_BYTES or stop == len(written):
                self._do(partial(self._put, written[start:stop]))
                self._size += size
                start, size = stop, 0

    def _put(self, part: Sequence[Written], commit: Commit) -> None:
        if not commit.is_current(self._topic, self._number):
            return  # no housekeeper would ever clear it away
        for section, (mark, value) in part:
            commit.tx.put(run_key(self._number, self._id, section, mark), value)

    def filter(self, entities: Collection[str], breathe: Breathe) -> None:
        """Adds the filter of the entities, unless there are too many or none."""
        if not 0 < len(entities) <= INDEX_FILTER_TERMS:
            return
        built = BloomFilter.sized(len(entities))
        for count, entity in enumerate(entities):
            built.add(prefix(entity))
            if count % STEP_ROWS == 0:
                breathe()
        value = bytes(built)
        self._entities = len(entities)

        def put(commit: Commit) -> None:
            if commit.is_current(self._topic, self._number):
                commit.tx.put(run_key(self._number, self._id, FILTER), value)

        self._do(put)

    def publish(self, change: Callable[[Directory], Directory | None]) -> bool:
        """Lists the run in the directory that `change` makes; throws it away when that is None."""
        return bool(self._do(lambda commit: self._list(commit, change)))

    def _list(self, commit: Commit, change: Callable[[Directory], Directory | None]) -> bool:
        if not commit.is_current(self._topic, self._number):
            return False
        directory = load_directory(commit.tx, self._number, self._topic)
        mine = any(run == self._id for run, _ in directory.building)
        rest = replace(directory, building=tuple(one for one in directory.building if one[0] != self._id))
        changed = change(rest) if mine and directory.epoch == self._epoch else None
        if changed is None:
            if self._id not in rest.rubbish:
                rest = replace(rest, rubbish=(*rest.rubbish, self._id))
            save_directory(commit.tx, self._number, rest)
            return False
        runs = changed.runs
        if self._sections:
            first, last = self._positions
            level = max(self._level, _level(self._size))
            run = Run(self._id, first, last, level, self._size, self._entities, "".join(sorted(self._sections)))
            runs = tuple(sorted([*runs, run], key=lambda one: one.first))
        save_directory(commit.tx, self._number, replace(changed, runs=runs))
        return True

    def _do(self, apply: Callable[[Commit], object]) -> object:
        return self._writer.run(WriteRequest(apply, relaxed=True))


def _level(size: int) -> int:
    """The level that a run of a size would have reached by merging runs of the usual size."""
    level, bound = 0, INDEX_FAN_IN * INDEX_RUN_BYTES
    while size >= bound:
        level, bound = level + 1, bound * INDEX_FAN_IN
    return level
