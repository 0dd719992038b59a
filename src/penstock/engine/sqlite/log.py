"""What to do about SQLite's write-ahead log after a sync of it failed.

After a failed sync the system takes pages for written that are not, and the next sync says yes: commits would be
acknowledged behind a hole, which a power cut shows. So before anything more is written the log is written once more,
byte for byte, synced, and its checksums are followed to its end. Until that succeeds nothing is written. A file beside
the store tells the next process, should this one die first; it need not be on disk itself, because after a power cut
memory and disk are one again.
"""

from __future__ import annotations

import os
import struct
from array import array
from contextlib import suppress
from pathlib import Path

from penstock.durable import sync_file
from penstock.errors import StorageError

HEADER = struct.Struct(">IIIIIIII")
FRAME = struct.Struct(">IIIIII")
PIECE_BYTES = 1 << 20
LITTLE_ENDIAN, BIG_ENDIAN = 0x377F0682, 0x377F0683
"""The first number of a log says how the words that are summed up are stored."""


class LogDoubt:
    """Whether the log of a store may have a hole on disk, and the way to make it whole."""

    def __init__(self, store: str) -> None:
        self._log = Path(store + "-wal")
        self._mark = Path(store + "-suspect")
        self.raised = self._mark.exists()

    def raise_(self) -> None:
        """Notes that a sync failed."""
        self.raised = True
        with suppress(OSError):  # a disk that takes no file either: this process still knows
            self._mark.touch(0o600)

    def repair(self, frames: int) -> None:
        """Makes the log whole, of which the first `frames` are in use; StorageError when that fails."""
        try:
            self._write_again()
            whole = sound_frames(self._log) >= frames
        except OSError as error:
            raise StorageError(
                f"{self._log} could not be synced before and still cannot be ({error}); nothing more is written to it",
                retryable=True,
            ) from error
        if not whole:
            raise StorageError(
                f"{self._log} lost commits that were not yet on disk when a sync of it failed; close the store in "
                "every process and open it again: it comes back with everything that was acknowledged"
            )
        self._mark.unlink(missing_ok=True)
        self.raised = False

    def _write_again(self) -> None:
        try:
            descriptor = os.open(self._log, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            at = 0
            while piece := os.pread(descriptor, PIECE_BYTES, at):
                if piece.strip(b"\0"):
                    os.pwrite(descriptor, piece, at)
                at += len(piece)
            sync_file(descriptor)
        finally:
            os.close(descriptor)


def sound_frames(path: Path) -> int:
    """How many frames of a log have the checksums that follow from those before them."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return 0
    with file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size:
            return 0
        magic, _, page_bytes, _, *salts, first, second = HEADER.unpack(header)
        if magic not in (LITTLE_ENDIAN, BIG_ENDIAN):
            return 0
        sums = _add(header[:24], magic, (0, 0))
        if sums != (first, second):
            return 0
        frames = 0
        while len(frame := file.read(FRAME.size + page_bytes)) == FRAME.size + page_bytes:
            _, _, *its_salts, first, second = FRAME.unpack_from(frame)
            if its_salts != salts:
                break
            sums = _add(frame[FRAME.size :], magic, _add(frame[:8], magic, sums))
            if sums != (first, second):
                break
            frames += 1
        return frames


def _add(data: bytes, magic: int, sums: tuple[int, int]) -> tuple[int, int]:
    words = array("I", data)
    if (magic == BIG_ENDIAN) == (array("I", b"\1\0\0\0")[0] == 1):
        words.byteswap()
    first, second = sums
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return first, second
