"""Whether the files of an open store still have the names they were opened under.

A file that is deleted, moved or replaced while it is open takes writes as before, and no reader finds them later. A
lock on a file that has lost its name keeps no process out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_NS = 3_000_000_000
"""How old a folder's last change must be to be told from the next one by its time: some file systems count seconds."""


class OpenFiles:
    """The files of an open store that must keep their names; those with one folder are looked at through it.

    A folder's ctime changes with every name in it, and no program can set it: while it stays, one look is enough.
    """

    def __init__(self, *paths: str) -> None:
        self._folder = os.path.dirname(paths[0])  # noqa: PTH120 - this is asked at every commit: no Path here
        self._known: dict[str, tuple[tuple[int, int] | None, ...]] = {
            path: (found,) for path in paths if (found := _identity(path)) is not None
        }
        self._folders: list[int] = []
        self._unchanged: tuple[int, int] | None = None
        """The folder and its ctime when all was well, if every later change will have another."""
        # What a link leads to may lose its name without a change of the link's folder.
        self._together = all(self._folder == os.path.dirname(path) and not os.path.islink(path) for path in paths)  # noqa: PTH114, PTH120
        for path in paths:
            if os.path.isdir(path):  # noqa: PTH112
                # Else the number of a folder that was removed would soon be another's. Files are held by the engine.
                self._folders.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def missing(self) -> str | None:
        """A name that is not that of the file that was opened under it; None as long as all are."""
        try:
            folder = os.stat(self._folder)  # noqa: PTH116
        except OSError:
            return self._folder
        seen = (folder.st_ino, folder.st_ctime_ns)
        if seen == self._unchanged:
            return None
        self._unchanged = None
        missing = self._look()
        if missing is None and self._together and time.time_ns() - folder.st_ctime_ns > QUIET_NS:
            self._unchanged = seen
        return missing

    def _look(self) -> str | None:
        return next((path for path, known in self._known.items() if _identity(path) not in known), None)

    @contextmanager
    def replacing(self, path: str, source: str) -> Iterator[None]:
        """While the block gives `source` the name of `path`, that may be either; afterwards, what is there."""
        before = self._known[path]
        self._known[path] = either = (*before, _identity(source))
        try:
            yield
        finally:
            here = _identity(path)
            self._known[path] = (here,) if here in either else before

    def close(self) -> None:
        while self._folders:
            os.close(self._folders.pop())


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino
