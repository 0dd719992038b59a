"""The own files of an Iceberg table in a folder. They are on disk before the table's catalog names them.

pyiceberg leaves what it writes to the system's cache, and a SQL catalog is synced: after a power cut the catalog would
name files that are empty or not there, and the table could be read no more. Loaded by pyiceberg, by name.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from penstock.core.durable import make_folder, sync_file, sync_folder


class SyncedFileIO(PyArrowFileIO):
    """Reads files as pyiceberg does, and syncs every file that it writes in a local folder."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, host, path = self.parse_location(location, self.properties)
        make = _SyncedFile if scheme == "file" else PyArrowFile
        return make(location=location, path=path, fs=self.fs_by_scheme(scheme, host))


class _SyncedFile(PyArrowFile):
    """A file that is synced, with its name, when it is closed."""

    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        make_folder(path.parent)
        return _SyncedStream(path, "wb" if overwrite else "xb")


class _SyncedStream:
    def __init__(self, path: Path, mode: str) -> None:
        self._folder = path.parent
        self._file = path.open(mode)

    def write(self, b: bytes) -> int:
        return self._file.write(b)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if self._file.closed:
            return
        with self._file:
            self._file.flush()
            sync_file(self._file.fileno())
        sync_folder(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
