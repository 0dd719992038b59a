"""Keeps Ctrl-C out of the middle of a commit.

Python runs signal handlers in the main thread, between any two of its instructions. A handler that raises there
(KeyboardInterrupt, or the SystemExit of a service's SIGTERM handler) could leave a lock taken or a transaction open for
good. While the main thread is inside a commit, such signals wait until it is done; a second one does not.

However many shields are up, in whichever order they come and go, there is one handler, put in place with the first and
taken away with the last.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

# The module `signal` wraps each call in several microseconds of enum conversion.
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable, Collection
from contextlib import suppress
from threading import get_ident
from types import CodeType, FrameType, TracebackType

from penstock.errors import ConfigError

SIGINT, SIGTERM = int(signal.SIGINT), int(signal.SIGTERM)
main_thread = threading.main_thread().ident
"""The thread that signal handlers run in."""


class _Handlers:
    """The state that the main thread's shields share; other threads touch nothing here, but for `Shield.lower`."""

    __slots__ = ("interrupt", "late", "terminate", "up")

    def __init__(self) -> None:
        self.up: list[Shield] = []
        self.late: list[tuple[int, FrameType | None]] = []
        """Signals that wait; one at most."""
        self.interrupt: object = None
        self.terminate: object = None

    def install(self) -> None:
        # Ours is in place still where another thread has lowered the last shield.
        interrupt, terminate = getsignal(SIGINT), getsignal(SIGTERM)
        if interrupt is not receive:
            self.interrupt = interrupt
        if terminate is not receive:
            self.terminate = terminate
        try:
            if callable(self.interrupt):
                set_handler(SIGINT, receive)
            if callable(self.terminate):
                set_handler(SIGTERM, receive)
        except ValueError as error:
            raise ConfigError(
                "a journal is written in the main interpreter of a process, where signals can be kept out of a commit, "
                "and this is a subinterpreter: use a thread of the main one, or a process of its own"
            ) from error

    def remove(self) -> None:
        try:
            self._put_back()
        except BaseException:  # the first one was in force again, and raised
            self._put_back()
            self.late.clear()
            raise

    def _put_back(self) -> None:
        # One that is not ours any more was set inside the block: it stays.
        if getsignal(SIGINT) is receive:
            set_handler(SIGINT, self.interrupt)
        if getsignal(SIGTERM) is receive:
            set_handler(SIGTERM, self.terminate)

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Calls the program's own handler."""
        handler = self.interrupt if number == SIGINT else self.terminate
        if callable(handler):
            handler(number, frame)


_handlers = _Handlers()
waiting = _handlers.late
"""Not empty while a signal waits for a shield."""


def _begin_in_child() -> None:
    """After a fork: the thread that forked is the main one; shields of another one are not there any more."""
    global main_thread
    me = threading.main_thread().ident
    if main_thread != me:
        main_thread = me
        _handlers.up.clear()
        _handlers.late.clear()
        _handlers.remove()


os.register_at_fork(after_in_child=_begin_in_child)


def always(frame: FrameType | None) -> bool:
    """For a block that is never to be interrupted."""
    return True


class Shield:
    """A block in which the main thread's signal handlers wait as long as `busy` says; nothing for other threads.

    `busy` is given the frame that was interrupted.
    """

    __slots__ = ("busy",)

    def __init__(self, busy: Callable[[FrameType | None], bool]) -> None:
        self.busy = busy

    # Every commit of the main thread passes through here: no loop, nothing made.
    def __enter__(self) -> None:
        if get_ident() != main_thread:
            return
        up = _handlers.up
        try:
            up.append(self)
            if len(up) == 1:
                _handlers.install()
        except BaseException:  # a signal's, before ours is the handler
            if self in up:
                up.remove(self)
            if not up:
                _handlers.remove()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Signals that come from here on wait too: `receive` knows this function.
        if get_ident() != main_thread:
            return
        up = _handlers.up
        if up and up[-1] is self:
            del up[-1]
        elif self in up:
            up.remove(self)
        if not up:
            _handlers.remove()
        if _handlers.late:
            let_through()

    def lower(self) -> None:
        """Takes the shield away, from whichever thread; the handlers are put back when the main thread's next shield
        goes."""
        with suppress(ValueError):
            _handlers.up.remove(self)


def let_through() -> None:
    """Lets a signal take effect that waited for a shield, unless another one is still busy."""
    late = _handlers.late
    if late and get_ident() == main_thread:
        frame = sys._getframe(1)
        if frame.f_code is _EXIT:
            frame = frame.f_back  # type: ignore[assignment]
        if not _is_busy(frame):
            _handlers.pass_on(*late.pop())


def receive(number: int, frame: FrameType | None) -> None:
    """The handler while a shield is up."""
    if not _handlers.late and (_is_busy(frame) or is_inside(frame, _OWN)):
        _handlers.late.append((number, frame))
    else:
        _handlers.pass_on(number, frame)


def _is_busy(frame: FrameType | None) -> bool:
    return any(shield.busy(frame) for shield in tuple(_handlers.up))


def is_inside(frame: FrameType | None, codes: Collection[CodeType]) -> bool:
    """Returns True if a frame is that of one of some functions, or of something it called."""
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


_EXIT = Shield.__exit__.__code__
_OWN = (_EXIT, _Handlers.remove.__code__)
