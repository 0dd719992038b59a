"""What a disk may hold after a power cut, given a record of what a program did.

A file's pages written since its last sync are each on disk or not, in any of their versions since, or torn at a sector;
its size is any it had since. A name made, moved or removed since its folder's last sync is in place or not. What was
synced is there. A sync that failed leaves its pages on the way to being forgotten: the system takes them for written
(Linux does), so no later sync writes them again unless they are written to again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torture.recorder import (
    ALLOCATE,
    CLOSE,
    FAILED_SYNC,
    LINK,
    MAP,
    MKDIR,
    OPEN,
    RENAME,
    RMDIR,
    SYNC,
    TRUNCATE,
    UNLINK,
    WRITE,
    Call,
)

PAGE, SECTOR = 4096, 512
EMPTY = bytes(PAGE)


@dataclass(eq=False)
class File:
    """One file: what is on disk for certain, and the versions of what is not."""

    cached: dict[int, bytes] = field(default_factory=dict)
    stored: dict[int, bytes] = field(default_factory=dict)
    dirty: dict[int, list[bytes]] = field(default_factory=dict)
    size: int = 0
    stored_size: int = 0
    sizes: list[int] = field(default_factory=list)
    mapped: bool = False

    def write(self, offset: int, data: bytes, *, synced: bool) -> None:
        at = 0
        touched = []
        while at < len(data):
            page, inside = divmod(offset + at, PAGE)
            piece = data[at : at + PAGE - inside]
            old = self.cached.get(page, EMPTY)
            new = old[:inside] + piece + old[inside + len(piece) :]
            self.cached[page] = new
            self.dirty.setdefault(page, []).append(new)
            touched.append(page)
            at += len(piece)
        if offset + len(data) > self.size:
            self.resize(offset + len(data))
        if synced:
            for page in touched:
                self.stored[page] = self.cached[page]
                del self.dirty[page]
            self._store_size()

    def resize(self, size: int) -> None:
        if size < self.size:
            first, inside = divmod(size, PAGE)
            for page in [page for page in self.cached if page >= first]:
                kept = self.cached[page][:inside] + EMPTY[inside:] if page == first else EMPTY
                if kept != self.cached[page]:
                    self.cached[page] = kept
                    self.dirty.setdefault(page, []).append(kept)
        self.size = size
        self.sizes.append(size)

    def sync(self) -> None:
        for page in self.dirty:
            self.stored[page] = self.cached[page]
        self.dirty.clear()
        self._store_size()

    def _store_size(self) -> None:
        self.stored_size = self.size
        self.sizes.clear()

    def fail_sync(self) -> None:
        self.dirty.clear()
        self.sizes.clear()

    def after_power_cut(self, rng: random.Random) -> bytes:
        how = rng.random()
        pages = dict(self.stored)
        size = self.stored_size
        if how < 0.15:  # nothing of it came through
            pass
        elif how < 0.3:  # all of it did
            pages.update((page, versions[-1]) for page, versions in self.dirty.items())
            size = self.sizes[-1] if self.sizes else size
        else:
            size = rng.choice([self.stored_size, *self.sizes, *self.sizes[-1:] * 3])
            keep = rng.choice([0.1, 0.5, 0.9])
            for page, versions in self.dirty.items():
                if rng.random() < keep:
                    pages[page] = rng.choice(versions) if rng.random() < 0.3 else versions[-1]
                    if rng.random() < 0.1:  # torn
                        cut = SECTOR * rng.randrange(1, PAGE // SECTOR)
                        pages[page] = pages[page][:cut] + self.stored.get(page, EMPTY)[cut:]
        return _bytes(pages, size)


def _bytes(pages: dict[int, bytes], size: int) -> bytes:
    data = bytearray(size)
    for page, content in pages.items():
        begin = page * PAGE
        if begin < size:
            data[begin : min(begin + PAGE, size)] = content[: max(0, size - begin)]
    return bytes(data)


@dataclass(eq=False)
class Folder:
    """A folder: names now, and names on disk for certain."""

    names: dict[str, File | Folder] = field(default_factory=dict)
    stored: dict[str, File | Folder] = field(default_factory=dict)


Step = list[tuple[Folder, str, "File | Folder | None"]]
"""Names changed at once."""


class Disk:
    """Follows a record, call by call; `image` writes what a power cut now might leave."""

    def __init__(self, root: Path) -> None:
        self._base = str(root.resolve())
        self.root = Folder()
        self._open: dict[int, File | Folder] = {}
        self._pending: list[Step] = []

    def follow(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self._apply(call)

    def _apply(self, call: Call) -> None:
        match call.op:
            case _ if call.op == OPEN:
                found = self._find(call.one)
                if found is None:
                    if not call.a & os.O_CREAT:
                        return  # a file the recorder did not see made, such as a socket
                    found = File()
                    self._name(call.one, found)
                elif call.a & os.O_TRUNC and isinstance(found, File):
                    found.resize(0)
                self._open[call.fd] = found
            case _ if call.op == CLOSE:
                self._open.pop(call.fd, None)
            case _ if call.op in (RENAME, LINK):
                moved = self._find(call.one)
                if moved is None:
                    return
                to_folder, to_name = self._parent(call.two)
                step: Step = [(to_folder, to_name, moved)]
                if call.op == RENAME:
                    from_folder, from_name = self._parent(call.one)
                    step.append((from_folder, from_name, None))
                self._take(step)
            case _ if call.op in (UNLINK, RMDIR):
                folder, name = self._parent(call.one)
                if name in folder.names:
                    self._take([(folder, name, None)])
            case _ if call.op == MKDIR:
                self._name(call.one, Folder())
            case _:
                self._apply_to_file(call)

    def _apply_to_file(self, call: Call) -> None:
        target = self._open.get(call.fd)
        if isinstance(target, Folder):
            if call.op == SYNC:
                self._sync_folder(target)
            return
        if target is None:
            return
        match call.op:
            case _ if call.op == WRITE:
                target.write(call.a, call.one, synced=bool(call.flag))
            case _ if call.op == SYNC:
                target.sync()
            case _ if call.op == FAILED_SYNC:
                target.fail_sync()
            case _ if call.op == TRUNCATE:
                target.resize(call.a)
            case _ if call.op == ALLOCATE:
                if not call.flag and call.a + call.b > target.size:
                    target.resize(call.a + call.b)
            case _ if call.op == MAP:
                target.mapped = True

    def _sync_folder(self, folder: Folder) -> None:
        left = []
        for step in self._pending:
            if any(place is folder for place, _, _ in step):
                _store(step)
            else:
                left.append(step)
        self._pending = left

    def _name(self, path: bytes, found: File | Folder) -> None:
        folder, name = self._parent(path)
        self._take([(folder, name, found)])

    def _take(self, step: Step) -> None:
        for folder, name, found in step:
            if found is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = found
        self._pending.append(step)

    def _parts(self, path: bytes) -> list[str]:
        text = os.path.normpath(os.fsdecode(path))
        assert text.startswith(self._base), text
        return [part for part in text[len(self._base) :].split("/") if part]

    def _find(self, path: bytes) -> File | Folder | None:
        found: File | Folder | None = self.root
        for part in self._parts(path):
            if not isinstance(found, Folder):
                return None
            found = found.names.get(part)
        return found

    def _parent(self, path: bytes) -> tuple[Folder, str]:
        *above, name = self._parts(path)
        folder = self.root
        for part in above:
            inside = folder.names[part]
            assert isinstance(inside, Folder)
            folder = inside
        return folder, name

    def image(self, folder: str, target: Path, rng: random.Random | None) -> None:
        """Writes one of the states a folder may be in after a power cut now; without chance, as a kill leaves it."""
        found = self.root.names[folder]
        assert isinstance(found, Folder)
        if rng is None:
            _materialise(found, None, target, None)
        else:
            _materialise(found, _kept(self._pending, rng), target, rng)


def _store(step: Step) -> None:
    for folder, name, found in step:
        if found is None:
            folder.stored.pop(name, None)
        else:
            folder.stored[name] = found


Names = dict[int, dict[str, File | Folder]]


def _kept(pending: Sequence[Step], rng: random.Random) -> Names:
    """The names in each folder that has unsynced ones, with some of those in place: mostly the oldest, in order."""
    how = rng.random()
    if how < 0.15:
        chosen: Sequence[Step] = ()
    elif how < 0.3:
        chosen = pending
    elif how < 0.7:
        chosen = pending[: rng.randrange(len(pending) + 1)]
    else:
        chosen = [step for step in pending if rng.random() < 0.5]
    changed: Names = {}
    for step in chosen:
        for folder, name, found in step:
            names = changed.setdefault(id(folder), dict(folder.stored))
            if found is None:
                names.pop(name, None)
            else:
                names[name] = found
    return changed


def _materialise(folder: Folder, changed: Names | None, target: Path, rng: random.Random | None) -> None:
    target.mkdir(exist_ok=True)
    names = folder.names if changed is None else changed.get(id(folder), folder.stored)
    for name, found in sorted(names.items()):
        if isinstance(found, Folder):
            _materialise(found, changed, target / name, rng)
        elif found.mapped:
            (target / name).write_bytes(bytes(found.size))
        elif rng is None:
            (target / name).write_bytes(_bytes(found.cached, found.size))
        else:
            (target / name).write_bytes(found.after_power_cut(rng))
