"""Keeps Ctrl-C out of the middle of a commit.

Python runs signal handlers in the main thread, between any two of its instructions. A handler that raises there
(KeyboardInterrupt, or the SystemExit of a service's SIGTERM handler) could leave a lock taken or a transaction open for
good. While the main thread is inside a commit, such signals wait until it is done; a second one does not.
"""

from __future__ import annotations

import os
import signal
import threading

# The module `signal` wraps each call in several microseconds of enum conversion.
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable, Collection
from threading import get_ident
from types import CodeType, FrameType, TracebackType
from typing import Any

SIGINT, SIGTERM = int(signal.SIGINT), int(signal.SIGTERM)
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

    __slots__ = ("_busy", "_handler", "_interrupt", "_late", "_on", "_terminate")

    def __init__(self, busy: Callable[[FrameType | None], bool]) -> None:
        self._busy = busy
        self._on = False
        self._interrupt: Any = None
        self._terminate: Any = None
        self._late: list[tuple[int, FrameType | None]] = []
        self._handler = self._receive

    # Every commit of the main thread passes through here: written out for both signals, no loop, nothing made.
    def __enter__(self) -> None:
        if get_ident() != main_thread or self._on:
            return
        self._interrupt, self._terminate = getsignal(SIGINT), getsignal(SIGTERM)
        self._on = True
        if callable(self._interrupt):
            set_handler(SIGINT, self._handler)
        if callable(self._terminate):
            set_handler(SIGTERM, self._handler)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._on or get_ident() != main_thread:
            return
        interrupt, terminate = self._interrupt, self._terminate
        # One that is not ours any more was set inside the block: it stays.
        if callable(interrupt) and getsignal(SIGINT) is self._handler:
            set_handler(SIGINT, interrupt)
        if callable(terminate) and getsignal(SIGTERM) is self._handler:
            set_handler(SIGTERM, terminate)
        self._on = False
        if self._late:
            late, self._late = self._late, []
            for number, frame in late:
                (interrupt if number == SIGINT else terminate)(number, frame)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._late and self._busy(frame):
            self._late.append((number, frame))
        elif self._on:
            (self._interrupt if number == SIGINT else self._terminate)(number, frame)


def is_inside(frame: FrameType | None, codes: Collection[CodeType]) -> bool:
    """Whether a frame is that of one of some functions, or of something it called."""
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False
