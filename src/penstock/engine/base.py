"""What every engine does the same way: refusing use after close, after a fork, for writing when read-only, or when its
files have lost their names."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

from penstock.engine.contract import MAX_KEY_BYTES, Durability, Engine, Snapshot
from penstock.engine.open_files import OpenFiles
from penstock.errors import Closed, ConfigError, OutcomeUnknown, PenstockError, ReadOnly, StorageError
from penstock.units import in_parts

END = b"\xff" * 600
"""Above every key an engine takes."""
COPY_BYTES = 8 << 20
"""What one commit of a copy holds."""


class BaseEngine(Engine):
    """The part of an engine that has nothing to do with how it stores: its state, its turn-taking, its refusals."""

    def __init__(self, location: str | None, *, read_only: bool, durability: Durability) -> None:
        if durability not in ("disk", "process"):
            raise ConfigError(f'durability is "disk" or "process", not {durability!r}')
        self.location = location
        self.read_only = read_only
        self.durability = durability
        self._closed = False
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._turn_owner = 0
        self._foreign = True
        self._files: OpenFiles | None = None
        """What must keep its name while the store is open, for what is acknowledged to be found again."""
        self._lost = False
        """Whether, at the last look, something of that had lost its name."""

    @property
    def _name(self) -> str:
        return f"{self.scheme}:{self.location or ''}"

    def is_foreign_process(self) -> bool:
        """Whether this process was forked from the one that opened the store."""
        return os.getpid() != self._pid

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed(f"{self._name} is closed")
        if self.is_foreign_process():
            raise Closed(
                f"{self._name} was opened by process {self._pid} and this one was forked from it; "
                "open the store again in the child"
            )
        if self._lost:
            self._check_files()

    def _check_files(self) -> None:
        """StorageError when the store is not where it was opened any more."""
        lost = self._lost_files()
        if lost is None:
            return
        if self._closed:  # by another thread: its last connection may remove what it needs no more
            raise Closed(f"{self._name} is closed")
        raise StorageError(f"{lost}; close it and open it again")

    def _acknowledge(self) -> None:
        """The last step of every commit: OutcomeUnknown when the store is not where it was opened any more."""
        if self._files is None or self._files.missing() is None:
            return
        self._foreign = True  # the caller forgets the commit, and has to read it should the files come back
        raise OutcomeUnknown(
            f"{self._lost_files()}: this commit is in what had the name before, if that is anywhere; close it and open "
            "it again"
        )

    def _lost_files(self) -> str | None:
        missing = self._files.missing() if self._files is not None else None
        self._lost = missing is not None
        if missing is None:
            return None
        return f"{self._name} was deleted, moved or replaced while it was open ({missing} is not what was opened)"

    def usable(self) -> bool:
        return self._files is None or self._closed or self._files.missing() is None

    def flush(self) -> None:
        self._check_usable()
        if not self.read_only:
            self._flush()
            self._check_files()

    @abstractmethod
    def _flush(self) -> None:
        """Puts everything committed so far on disk."""

    def close(self) -> None:
        """Lets go of the store; StorageError when it has lost its name and no caller was told yet."""
        told = self._closed or self._lost or self.read_only or self.is_foreign_process()
        lost = None if told else self._lost_files()
        try:
            self._close()
        finally:
            if self._files is not None:
                self._files.close()
        if lost is not None:
            raise StorageError(f"{lost}; what it acknowledged may be gone with it: open it again and look")

    @abstractmethod
    def _close(self) -> None:
        """Lets go of the store; a second call does nothing. Writes nothing beside the store's files when `_lost`."""

    def _check_writable(self) -> None:
        self._check_usable()
        if self.read_only:
            raise ReadOnly(f"{self._name} was opened with read_only=True")

    def _take_turn(self) -> None:
        """Waits until no other thread of this process writes, and makes this thread the writer."""
        me = threading.get_ident()
        if not self._turn.acquire(blocking=False):
            if self._turn_owner == me:
                raise PenstockError(
                    f"a write block on {self._name} was opened inside another one of the same thread; "
                    "it would wait for itself: pass the open transaction on instead"
                )
            self._turn.acquire()
        self._turn_owner = me
        if self._closed:
            self._end_turn()
            raise Closed(f"{self._name} is closed")

    def _end_turn(self) -> None:
        self._turn_owner = 0
        self._turn.release()

    def _shut(self) -> bool:
        """Lets no further transaction begin; False when there is nothing to close: done already, or the parent's."""
        if self._closed or self.is_foreign_process():
            self._closed = True
            return False
        self._take_turn()
        self._closed = True
        self._end_turn()
        return True


def check_key(key: bytes) -> None:
    """Refuses keys that some engine could not store, so that a store can move between engines."""
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ConfigError(f"a key has 1 to {MAX_KEY_BYTES} bytes, not {len(key)}: {bytes(key[:40])!r}")


def other_format(where: object, found: bytes, wanted: bytes) -> ConfigError:
    """What is said of a store that another version of penstock has written."""
    return ConfigError(
        f"{where} has the format {found.decode(errors='replace')!r}, this version of penstock reads "
        f"{wanted.decode()!r}; use the version that made it, or copy its events over"
    )


def check_folder_name(folder: Path, store: str) -> None:
    """ConfigError when a store's folder cannot be made or used because something else has its name."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; a {store} store is a folder: give it a name of its own")
    if folder.is_symlink() and not folder.exists():
        raise ConfigError(f"{folder} is a link to {folder.readlink()}, which is not there: make that, or name another")


def check_only_own(folder: Path, store: str, is_own: Callable[[str], bool]) -> None:
    """ConfigError for a folder that holds something but no store: a store shares its folder with no other files."""
    others = sorted(entry.name for entry in folder.iterdir() if not is_own(entry.name)) if folder.is_dir() else []
    if others:
        raise ConfigError(
            f"{folder} holds other things ({', '.join(others[:3])}) and no {store} store; "
            "give the store a folder of its own"
        )


def check_backup_target(destination: str | os.PathLike[str]) -> Path:
    """The absolute path of a backup that may be written there; makes its parent folder."""
    target = Path(destination).absolute()
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} exists already; a backup never overwrites: give it a new name")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the folder of {target} cannot be made: {error}") from error
    return target


def transaction_is_over() -> Closed:
    """The error of a transaction that is used outside its block."""
    return Closed("this transaction is over (or never began): use it inside its `with` block, while its store is open")


def copy_rows(snapshot: Snapshot, target: Engine) -> None:
    """Writes every row of a snapshot into an empty store, in commits of a few megabytes."""
    for rows in in_parts(snapshot.scan(b"", END), lambda row: len(row[0]) + len(row[1]), COPY_BYTES):
        with target.write(sync=False) as tx:
            for key, value in rows:
                tx.put(key, value)
    target.flush()
