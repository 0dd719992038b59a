"""Keeps Ctrl-C out of the middle of a commit.

Python runs signal handlers in the main thread, between any two of its instructions. A handler that raises there
(KeyboardInterrupt, or the SystemExit of a service's SIGTERM handler) could leave a lock taken or a transaction open for
good. While the main thread is inside a commit, such signals wait until it is done; a second one does not.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the module `signal` wraps each call in several microseconds of enum conversion
import os
import signal
import threading
from collections.abc import Callable, Collection
from threading import get_ident
from types import CodeType, FrameType, TracebackType
from typing import Any

_SIGNALS = (int(signal.SIGINT), int(signal.SIGTERM))
main_thread = threading.main_thread().ident
"""The thread that signal handlers run in."""


def _note_main_thread() -> None:
    global main_thread
    main_thread = threading.main_thread().ident


os.register_at_fork(after_in_child=_note_main_thread)


def always(frame: FrameType | None) -> bool:
    """For a block that is never to be interrupted."""
    return True


class Shield:
    """A block in which the main thread's signal handlers wait as long as `busy` says; nothing for other threads.

    `busy` is given the frame that was interrupted.
    """

    __slots__ = ("_busy", "_late", "_saved")

    def __init__(self, busy: Callable[[FrameType | None], bool]) -> None:
        self._busy = busy
        self._saved: list[Any] | None = None
        self._late: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        if get_ident() != main_thread or self._saved is not None:
            return
        self._saved = [_signal.getsignal(number) for number in _SIGNALS]
        for number, handler in zip(_SIGNALS, self._saved, strict=True):
            if callable(handler):
                _signal.signal(number, self._receive)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        handlers = self._saved
        if handlers is None or get_ident() != main_thread:
            return
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            if callable(handler) and _signal.getsignal(number) == self._receive:  # else somebody set a newer one inside
                _signal.signal(number, handler)
        self._saved = None
        late, self._late = self._late, []
        for number, frame in late:
            handlers[_SIGNALS.index(number)](number, frame)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._late and self._busy(frame):
            self._late.append((number, frame))
        elif self._saved is not None:
            self._saved[_SIGNALS.index(number)](number, frame)


def is_inside(frame: FrameType | None, codes: Collection[CodeType]) -> bool:
    """Whether a frame is that of one of some functions, or of something it called."""
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False
