"""Wakes waiters for new events: in this process at once, in other processes within a few milliseconds.

No waiter misses a wake-up: note a signal's `version`, look at the store, then `wait(version)`; it returns at once when
anything was signalled since the note was made.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import ref

from penstock.core.observe.logs import Log
from penstock.core.ticket import wake_waiters
from penstock.errors import Closed, PenstockError
from penstock.limits import POLL_BLIND, POLL_FIRST, POLL_IDLE

if TYPE_CHECKING:
    import asyncio

    from penstock.core.events import Event
    from penstock.core.journal.core import JournalCore
    from penstock.core.ticket import Waiter


class Signal:
    """A growing number, and the threads and event loops that wait for its growth."""

    __slots__ = ("__weakref__", "_waiters", "version")

    def __init__(self) -> None:
        self.version = 0
        self._waiters: list[Waiter] = []

    def notify(self) -> None:
        """Wakes all waiters."""
        self.version += 1
        if self._waiters:
            wake_waiters((self._waiters,))

    def wait(self, seen: int, timeout: float | None = None) -> bool:
        """Waits until the version differs from `seen`; returns False after `timeout` seconds."""
        if self.version != seen:
            return True
        lock = threading.Lock()
        lock.acquire()
        self._waiters.append(lock)
        if self.version != seen or lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return True
        self._leave(lock)
        return self.version != seen

    async def wait_async(self, seen: int, timeout: float | None = None) -> bool:
        """Does what `wait` does, for an event loop."""
        if self.version != seen:
            return True
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiter = (loop, future)
        self._waiters.append(waiter)
        if self.version != seen:
            return True
        try:
            # Not wait_for: in Python 3.11 it swallows a cancellation that arrives together with the future's result.
            done, _ = await asyncio.wait((future,), timeout=timeout)
        finally:
            self._leave(waiter)
        return bool(done) or self.version != seen

    def _leave(self, waiter: Waiter) -> None:
        with suppress(ValueError):
            self._waiters.remove(waiter)


class Background:
    """A background thread, which starts when it is first woken and sleeps until there is work."""

    def __init__(self, name: str, log: Log) -> None:
        self._name, self._log = name, log
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._due: set[str] = set()

    def request(self, topic: str) -> None:
        """Asks for a look at a topic soon."""
        self._due.add(topic)
        self._wake()

    def _next_due(self) -> str | None:
        """Returns a topic that was asked for; None when there is none."""
        with self._lock:
            return self._due.pop() if self._due else None

    def _wake(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread  # only now: when a thread cannot start, the next request tries again
        self._wanted.set()

    def _run(self) -> None:
        raise NotImplementedError

    def _attempt(self, what: str, work: Callable[[], object]) -> None:
        """Runs work that may fail: later commits request it again, and report failures of their own."""
        try:
            work()
        except Closed:
            self._closed = True
        except PenstockError as error:
            self._log.warning("%s failed: %s", what, error)
        except Exception:
            self._log.exception("%s failed", what)

    def close(self) -> None:
        """Waits until the thread has ended."""
        with self._lock:
            self._closed = True
        self._wanted.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


class TopicChanges(Signal):
    """A signal of all topics, with the topics that each commit has touched."""

    __slots__ = ("_all", "_noted")

    def __init__(self) -> None:
        super().__init__()
        self._all = True
        self._noted: deque[Iterable[str]] = deque(maxlen=1024)

    def note(self, names: Iterable[str] | None) -> None:
        """Notes touched topics; None when any topic may have been touched."""
        if names is None or len(self._noted) == self._noted.maxlen:
            self._all = True  # before the oldest names are lost
        if names is not None:
            self._noted.append(names)
        self.notify()

    def taken(self) -> set[str] | None:
        """Returns the topics that were touched since the last call; None when any topic may have been touched."""
        names: set[str] = set()
        while self._noted:
            names.update(self._noted.popleft())
        if self._all:
            self._all = False
            return None
        return names


class Signalled:
    """The base of waiters in this process's journal: the part of a `LiveIterator` that a signal wakes."""

    def __init__(self, hub: Hub, signal: Signal) -> None:
        self._hub = hub
        self._signal = signal
        self._closed = False

    def close(self) -> None:
        """Ends the waiting; every waiting thread gets None."""
        self._closed = True
        self._signal.notify()

    def _is_closed(self) -> bool:
        return self._closed

    def _version(self) -> int:
        return self._signal.version

    def _wait(self, seen: int, left: float | None) -> None:
        with self._hub:
            self._signal.wait(seen, left)

    async def _wait_async(self, seen: int, left: float | None) -> None:
        with self._hub:
            await self._signal.wait_async(seen, left)


class ReadingAhead(Signalled):
    """The base of followers that read several events at a time.

    Threads that share a follower take turns, and each event goes to one thread.
    """

    def __init__(self, core: JournalCore, signal: Signal) -> None:
        super().__init__(core.hub, signal)
        self._core = core
        self._ahead: deque[Event] = deque()
        self._turn = threading.Lock()

    def _ready(self, *, ask: bool) -> Event | None:
        """Returns the next event that is already stored."""
        with self._turn:
            while not self._ahead and not self._closed:
                if self._core.closed:
                    raise Closed("the journal was closed under this subscription")
                if not self._read_on():
                    break
            if not self._ahead or self._closed:
                return None
            event = self._ahead.popleft()
            self._hand_out(event)
            return event

    def _read_on(self) -> bool:
        """Reads a step; returns False without further events."""
        raise NotImplementedError

    def _hand_out(self, event: Event) -> None:
        """Notes that an event goes to a caller."""
        raise NotImplementedError


def _forget(hub: ref[Hub], topic: str, gone: ref[Signal]) -> None:
    """Removes a dropped signal from its hub, which the signal does not keep alive."""
    if (there := hub()) is not None:
        there.forget(topic, gone)


class Hub:
    """A signal for each topic, and a watcher that looks for other processes' commits while there are waiters."""

    def __init__(self, changes: Callable[[], int] | None, location: str | None = None) -> None:
        self.signals: dict[str, ref[Signal]] = {}
        """The signals that a caller holds, by topic.

        Every commit looks here; a dictionary with weak values would raise an exception for each topic without a signal.
        """
        self.followers: tuple[ref[TopicChanges], ...] = ()
        """The followers of all topics.

        The tuple is replaced and never changed, because a commit may iterate over it.
        """
        self._changes = changes
        self._location = location
        self._files: FileWatch | None = None
        self._lock = threading.RLock()  # a signal handler may stop a worker while its thread holds it
        self._waiting = 0
        self._wanted = threading.Event()
        self._watcher: threading.Thread | None = None
        self.closed = False

    def signal(self, topic: str) -> Signal:
        with self._lock:  # of two signals for one name, one signal would never be notified
            held = self.signals.get(topic)
            signal = None if held is None else held()
            if signal is None:
                signal = Signal()
                self.signals[topic] = ref(signal, partial(_forget, ref(self), topic))
            return signal

    def forget(self, topic: str, gone: ref[Signal]) -> None:
        """Removes the signal of a topic, whose last holder has dropped it."""
        with self._lock:
            if self.signals.get(topic) is gone:
                del self.signals[topic]

    def follow_all(self) -> TopicChanges:
        """Returns an object that is told of every commit that touches a topic, as long as the object is held."""
        with self._lock:
            changes = TopicChanges()
            held = [one for one in self.followers if one() is not None]
            self.followers = (*held, ref(changes))
        return changes

    def tell_followers(self, names: Iterable[str] | None) -> None:
        """Tells the followers of all topics which topics were touched; None when any topic may have been touched."""
        for one in self.followers:
            if (follower := one()) is not None:
                follower.note(names)

    def notify_all(self) -> None:
        with self._lock:
            held = list(self.signals.values())
        for one in held:
            if (signal := one()) is not None:
                signal.notify()
        self.tell_followers(None)

    def close(self) -> None:
        """Wakes all waiters and ends all waiting."""
        with self._lock:
            self.closed = True
        self._wanted.set()
        if self._files is not None:
            self._files.interrupt()
        self.notify_all()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        if self._files is not None:
            self._files.close()
            self._files = None

    def __enter__(self) -> Hub:
        """Lets other processes' commits wake waiters of this process while the block runs."""
        if self._changes is not None:
            with self._lock:
                self._waiting += 1
                if self._waiting == 1:
                    self._wanted.set()
                if self._watcher is None and not self.closed:
                    self._files = FileWatch(self._location)
                    self._watcher = threading.Thread(
                        target=self._watch, args=(self._files,), name="penstock-watcher", daemon=True
                    )
                    self._watcher.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._changes is not None:
            with self._lock:
                self._waiting -= 1
                if not self._waiting and not self.closed:
                    self._wanted.clear()

    def _watch(self, files: FileWatch) -> None:
        assert self._changes is not None
        seen: int | None = -1  # a failed first look also counts as news
        while not self.closed:
            self._wanted.wait()
            try:
                now = self._changes()
            except Exception:  # closing, or a passing failure that the waiters' own reads will report
                now = None
            if now != seen:
                seen = now
                files.changed()
                self.notify_all()
            files.pause()


# ── Noticing that a store's files were written to: the kernel says so (inotify, on Linux), elsewhere one has to look ──
# A sign from a file means only "look again soon": files are written before a commit is visible, and not every write is
# a commit. So a waiting reader looks at the store at growing intervals after a sign, and now and then without a sign.


_IN_MODIFY = 0x2
_IN_CREATE = 0x100
_IN_MOVED_TO = 0x80
_event = struct.Struct("iIII")


SINGLE_COMMIT_SIGNS = 3
"""The most signs that one commit gives without a pause between them; more signs mean a burst of commits."""


class FileWatch:
    """The pauses of a reader that waits for a store to change: short after a sign of a write, long without one."""

    def __init__(self, location: str | None) -> None:
        self._prefix = b""
        self._signs = -1 if location is None else self._open_signs(Path(location))
        self._stop, self._stopper = os.pipe()
        self._longest = POLL_BLIND if self._signs < 0 else POLL_IDLE
        self._pause = POLL_FIRST
        self._signs_in_a_row = 0
        self._poll = select.poll()
        for descriptor in (self._signs, self._stop):
            if descriptor >= 0:
                self._poll.register(descriptor, select.POLLIN)

    def _open_signs(self, path: Path) -> int:
        """Returns a descriptor that becomes readable when a file is written there; -1 where the system has no such
        descriptor.
        """
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
        """Notes that the store has changed; further changes may follow at once."""
        self._pause = POLL_FIRST

    def pause(self) -> None:
        """Waits until it is time to look again."""
        for descriptor, _ in self._poll.poll(self._pause * 1000):
            if descriptor == self._signs and self._was_for_us():
                self._pause = POLL_FIRST
                self._signs_in_a_row += 1
                if self._signs_in_a_row > SINGLE_COMMIT_SIGNS:
                    time.sleep(POLL_FIRST)  # the commits of a burst cause one look, not many
                return
        self._signs_in_a_row = 0
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
