"""Noticing that a store's files were written to: the kernel says so (inotify, on Linux), elsewhere one has to look.

A sign from here means "look again soon", no more: files are written before a commit can be seen, and not every write is
a commit. So a waiting reader looks at the store at growing intervals after a sign, and now and then without one.
"""

from __future__ import annotations

import os
import select
import struct
import time
from contextlib import suppress
from pathlib import Path

from penstock.limits import POLL_BLIND, POLL_FIRST, POLL_IDLE

_IN_MODIFY = 0x2
_IN_CREATE = 0x100
_IN_MOVED_TO = 0x80
_event = struct.Struct("iIII")


class FileWatch:
    """The pauses of a reader that waits for a store to change: short after a sign of a write, long without one."""

    def __init__(self, location: str | None) -> None:
        self._prefix = b""
        self._signs = -1 if location is None else self._open_signs(Path(location))
        self._stop, self._stopper = os.pipe()
        self._longest = POLL_BLIND if self._signs < 0 else POLL_IDLE
        self._pause = POLL_FIRST
        self._poll = select.poll()
        for descriptor in (self._signs, self._stop):
            if descriptor >= 0:
                self._poll.register(descriptor, select.POLLIN)

    def _open_signs(self, path: Path) -> int:
        """A descriptor that becomes readable when something is written there; -1 where there is no such thing."""
        folder = path if path.is_dir() else path.parent
        self._prefix = b"" if path.is_dir() else os.fsencode(path.name)
        import ctypes  # only readers that wait need it

        try:
            libc = ctypes.CDLL(None, use_errno=True)
            signs = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            if signs < 0:
                return -1
            if libc.inotify_add_watch(signs, os.fsencode(folder), _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO) < 0:
                os.close(signs)
                return -1
        except (OSError, AttributeError):
            return -1
        return signs

    def changed(self) -> None:
        """The store has changed: more may follow at once."""
        self._pause = POLL_FIRST

    def pause(self) -> None:
        """Waits until it is time to look again."""
        for descriptor, _ in self._poll.poll(self._pause * 1000):
            if descriptor == self._signs and self._was_for_us():
                self._pause = POLL_FIRST
                time.sleep(POLL_FIRST)  # what follows at once is one look, not many
                return
        self._pause = min(self._pause * 1.5, self._longest)

    def _was_for_us(self) -> bool:
        found = False
        with suppress(BlockingIOError):
            while True:
                data, at = os.read(self._signs, 1 << 16), 0
                while at < len(data):
                    *_, length = _event.unpack_from(data, at)
                    at += _event.size
                    found = found or data[at : at + length].startswith(self._prefix)
                    at += length
        return found

    def interrupt(self) -> None:
        """Ends a pause under way, and all later ones at once."""
        with suppress(OSError):
            os.write(self._stopper, b"x")

    def close(self) -> None:
        for descriptor in (self._signs, self._stop, self._stopper):
            if descriptor >= 0:
                os.close(descriptor)
