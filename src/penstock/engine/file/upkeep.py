"""What a file store does beside its writes: saving the index, and compacting when there is much garbage.

Both run on a thread that lives as long as the work does. A compaction copies a snapshot while writers go on, then what
they wrote meanwhile, and makes them wait only for the last piece and for the exchange of the files.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.engine.file.copy import Cancelled, Copy
from penstock.engine.file.index import save_index
from penstock.engine.file.log import START, DataFile
from penstock.engine.file.recovery import LogPosition
from penstock.errors import Closed, Corrupt, PenstockError

if TYPE_CHECKING:
    from penstock.engine.file.engine import FileEngine

GARBAGE_BYTES = 16 << 20
"""Less garbage than this is not worth a compaction in passing."""
INDEX_BYTES, INDEX_COMMITS = 256 << 20, 50_000
"""After so much growth the index is saved again, so that opening after a crash reads at most as much."""
CATCH_UP_BYTES = 1 << 20
"""How far a copy may be behind when writers are made to wait for its last piece."""

log = logging.getLogger("penstock.engine.file.engine")


class Upkeep:
    """Looks after one engine's files; one piece of work at a time."""

    def __init__(self, engine: FileEngine) -> None:
        self._engine = engine
        self._working = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failed_at = 0
        self._saved_end = engine._position.end
        self._saved_seq = engine._position.seq

    def in_passing(self) -> None:
        """Starts what is due; called by the writer after each commit."""
        position = self._engine._position
        if (
            position.end - self._saved_end <= INDEX_BYTES
            and position.seq - self._saved_seq <= INDEX_COMMITS
            and not self._wants_compaction()
        ):
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=f"penstock {self._engine._name}", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Returns when nothing is under way; a closed engine's work ends early."""
        if self._thread is not None:
            self._thread.join()
        with self._working:
            pass

    def _garbage(self) -> int:
        return self._engine._position.end - START - self._engine._index.live

    def _wants_compaction(self) -> bool:
        garbage = self._garbage()
        return garbage > GARBAGE_BYTES and garbage > self._engine._index.live and garbage > 2 * self._failed_at

    def _run(self) -> None:
        engine = self._engine
        try:
            if self._wants_compaction():
                self.compact_if_over(GARBAGE_BYTES)
            else:
                self.save_index()
        except Cancelled:
            pass
        except (PenstockError, OSError) as error:
            self._failed_at = self._garbage()
            self._saved_end, self._saved_seq = engine._position.end, engine._position.seq
            log.warning("the upkeep of %s failed and will be tried again later: %s", engine._name, error)

    def save_index(self) -> None:
        """Puts the data on disk and saves the index that belongs to it."""
        with self._working:
            self._save_index()

    def _save_index(self) -> None:
        engine = self._engine
        with engine._lock:
            data, keys, live = engine._data, engine._index.map.snapshot(), engine._index.live
            end, seq = engine._position.end, engine._position.seq
        with keys:
            engine._sync(data)
            engine._check_files()  # what is beside the data is written by its name
            save_index(
                engine._disk,
                engine._folder,
                keys,
                salt=data.salt,
                generation=data.generation,
                end=end,
                seq=seq,
                live=live,
            )
        self._saved_end, self._saved_seq = end, seq

    def compact_if_over(self, garbage: int) -> None:
        """Compacts when there is more garbage than that."""
        with self._working:
            if self._garbage() <= garbage:
                return
            target = self._engine._folder / "data.new"
            try:
                self._compact(target)
            except BaseException as error:
                target.unlink(missing_ok=True)
                if isinstance(error, Closed):
                    raise Cancelled from error
                raise
            self._failed_at = 0
            try:
                self._save_index()
            except OSError as error:  # the compaction is done; the next opening makes the index from the data
                log.warning("the index of %s could not be saved: %s", self._engine._name, error)

    def _compact(self, target: Path) -> None:
        engine = self._engine
        with engine._lock:
            source, keys, position = engine._data, engine._index.map.snapshot(), engine._position
            done, seq = position.end, position.seq
        with keys:
            copy = Copy(engine._disk, target, generation=source.generation + 1, base=seq)
            copy.add_state(keys, source, lambda: engine._closed)
        while position.end - done > CATCH_UP_BYTES and not engine._closed:
            done = _catch_up(copy, source, done, position.end)
        copy.sync()
        engine._take_turn()
        try:
            if engine._broken is not None:
                raise engine._broken
            _catch_up(copy, source, done, position.end)
            copy.sync()
            self._exchange(copy, target)
        finally:
            engine._end_turn()

    def _exchange(self, copy: Copy, target: Path) -> None:
        engine, files = self._engine, self._engine._files
        assert files is not None  # it is open for writing
        engine._check_files()
        with files.replacing(str(engine._path), str(target)):
            engine._disk.rename(target, engine._path)
        try:
            engine._disk.sync_folder(engine._folder)
        except OSError as error:
            # The new file is in place but may be gone after a power cut, and the old one back: nothing may be added.
            engine._break(f"the folder could not be synced after a compaction ({error})")
            raise
        copy.data.path = engine._path
        with engine._lock:
            engine._data, engine._index = copy.data, copy.index
            engine._position = LogPosition(copy.end, copy.seq, copy.seq)
            engine._reserved = copy.end


def _catch_up(copy: Copy, source: DataFile, begin: int, end: int) -> int:
    """Copies the commits between two offsets, all of them or `Corrupt`."""
    for record in source.records(begin, copy.seq, end):
        copy.add_record(record, source)
        begin = record.end
    if begin != end:
        raise Corrupt("a record is damaged; restore a backup", file=str(source.path), offset=begin)
    return end
