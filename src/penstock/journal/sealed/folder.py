"""A topic's folder in a lake: its marker says whose history it holds, and files that became no segment are removed."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pyarrow.fs

from penstock.durable import make_folder, move_into_place
from penstock.errors import ConfigError, StorageError
from penstock.journal.sealed.files import open_lake
from penstock.names import shown_url

MARKER = "_penstock.json"


class SealMarker(msgspec.Struct, frozen=True):
    """Whose history a folder holds, and which seal was the last to work on it."""

    journal: str
    topic: str
    seal: str


class LakeFolder:
    """The folder that one seal of a topic writes to."""

    def __init__(self, lake: str, topic: str) -> None:
        self.lake = lake
        self.topic = topic
        self._filesystem, self._root = open_lake(lake)

    def __str__(self) -> str:
        return f"{shown_url(self.lake)}/{self.topic}"

    def size(self, path: str) -> int | None:
        """Bytes of a file of this lake; None when it is not there."""
        size: int | None = self._filesystem.get_file_info(f"{self._root}/{path}").size
        return size

    def marker(self, journal: str) -> SealMarker | None:
        """The folder's marker, which has to be this journal's; None when no seal has signed the folder yet."""
        try:
            with self._filesystem.open_input_file(f"{self._root}/{self.topic}/{MARKER}") as file:
                found = msgspec.json.decode(file.read(), type=SealMarker)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StorageError(f"{self}/{MARKER} cannot be read: {error}") from error
        if (found.journal, found.topic) != (journal, self.topic):
            raise ConfigError(f"{self} holds the sealed history of another journal: use another lake")
        return found

    def sign(self, journal: str, seal: str) -> None:
        """Writes the marker: from now on this seal was the last to work on the folder."""
        text = msgspec.json.encode(SealMarker(journal, self.topic, seal))
        folder = f"{self._root}/{self.topic}"
        target = f"{folder}/{MARKER}"
        if not isinstance(self._filesystem, pyarrow.fs.LocalFileSystem):
            with self._filesystem.open_output_stream(target) as out:
                out.write(text)
            return
        make_folder(folder)
        path = f"{target}.{seal}"
        with self._filesystem.open_output_stream(path) as out:
            out.write(text)
        move_into_place(path, target)

    def remove(self, lake: str, path: str) -> bool:
        """Removes a file whose events are gone; False when it is in another lake that cannot be reached now.

        A lake that was given up must not stand in the way of the one that is used.
        """
        try:
            filesystem, root = open_lake(lake)
            with suppress(FileNotFoundError):
                filesystem.delete_file(f"{root}/{path}")
        except (OSError, ConfigError):
            if lake == self.lake:
                raise
            return False
        return True

    def remove_orphans(self, seal: str, known: frozenset[tuple[str, str]]) -> None:
        """Deletes the files of a seal that is over which did not become segments."""
        selector = pyarrow.fs.FileSelector(f"{self._root}/{self.topic}", allow_not_found=True, recursive=True)
        for info in self._filesystem.get_file_info(selector):
            path = info.path.removeprefix(f"{self._root}/")
            if info.type == pyarrow.fs.FileType.File and seal in info.base_name and (self.lake, path) not in known:
                self._filesystem.delete_file(info.path)
