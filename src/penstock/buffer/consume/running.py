"""Run: reads ahead, fetches in parallel, hands over, and acknowledges the contiguous finished prefix.

    reader ──► to fetch ──► fetching threads ──► fetched ──► handler ──► finished ──► acknowledger

One lock guards everything between the stages; each stage waits on a condition of its own, so that a batch that moves on
wakes whom it concerns and not a dozen threads. The first thing that goes wrong (`trouble`) or `stop` ends all of them;
handlers that run are waited for, and what they finished is still acknowledged.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.buffer.backoff import Backoff
from penstock.buffer.consume.batch import Batch
from penstock.buffer.format.descriptor import Descriptor
from penstock.errors import ConfigError, Corrupt, Fenced, OutOfOrder, StorageError

if TYPE_CHECKING:
    from penstock.buffer.consume.consumer import Consumer


class RunReport(NamedTuple):
    """What a run did."""

    batches: int  # handled
    entries: int
    acked: int | None  # the frontier at the end
    fenced: Fenced | None  # set when another consumer took over


class ConsumerRun:
    """One call of `Consumer.run`."""

    def __init__(
        self,
        consumer: Consumer,
        handler: Callable[[Batch], object],
        *,
        concurrency: int,
        ahead: int,
        ordered: bool,
        until_empty: bool,
        poll: float,
        ack_interval: float,
        on_corrupt: Callable[[Descriptor, Corrupt], object] | None,
    ) -> None:
        if concurrency < 1 or ahead < 1:
            raise ConfigError(f"concurrency and ahead must be at least 1, not {concurrency} and {ahead}")
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._ahead = ahead
        self._ordered = ordered
        self._until_empty = until_empty
        self._poll = poll
        self._ack_interval = ack_interval
        self._on_corrupt = on_corrupt
        self._backoff = Backoff(first=0.05, most=2.0)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)  # for the reader: fewer are unhandled
        self._work = threading.Condition(self._lock)  # for the fetching threads
        self._turn = threading.Condition(self._lock)  # for threads that hand over, or wait for the end
        self._ackable = threading.Condition(self._lock)  # for the acknowledger
        self._to_fetch: deque[Descriptor] = deque()
        self._order: deque[int] = deque()  # read, and not part of the finished prefix
        self._next: deque[int] = deque()  # read, and not handed over; in order only
        self._unhandled = 0  # read and not handled: what `ahead` bounds
        self._fetched: dict[int, Batch | Exception | None] = {}  # None: damaged, and dealt with
        self._finished: set[int] = set()  # handled, but something before it is not
        self._frontier: int | None = None  # the end of the finished prefix
        self._acked: int | None = None
        self._stopping = False
        self._stop_event = threading.Event()
        self._exhausted = False
        self._handled = False  # no handler will run any more
        self._trouble: BaseException | None = None
        self._fenced: Fenced | None = None
        self._batches = 0
        self._entries = 0
        self._threads: set[int] = set()
        self._ended = threading.Event()

    def run(self) -> RunReport:
        self._threads.add(threading.get_ident())
        try:
            return self._run()
        finally:
            self._ended.set()

    def wait_unless_inside(self) -> None:
        """Waits for the end of the run; a handler, which would wait for itself, is let through."""
        if threading.get_ident() not in self._threads:
            self._ended.wait()

    def _run(self) -> RunReport:
        reader = threading.Thread(target=self._guarded, args=(self._read_loop,), name="penstock-read", daemon=True)
        acker = threading.Thread(target=self._guarded, args=(self._ack_loop,), name="penstock-ack", daemon=True)
        fetchers = [
            threading.Thread(target=self._guarded, args=(self._fetch_loop,), name=f"penstock-fetch-{n}", daemon=True)
            for n in range(self._concurrency)
        ]
        try:
            for thread in (acker, *fetchers, reader):
                thread.start()
            if self._ordered:
                self._hand_over_in_order()
            else:
                self._wait_for_end()
        except BaseException as error:
            self._fail(error)
        self.stop()
        for thread in (reader, *fetchers):
            if thread.ident is not None:  # one that could not be started is none to wait for
                thread.join()
        with self._lock:
            self._handled = True
            self._ackable.notify()
        if acker.ident is not None:
            acker.join()
        if self._trouble is not None:
            raise self._trouble
        return RunReport(self._batches, self._entries, self._consumer.acked, self._fenced)

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._stop_event.set()
            for waiting in (self._room, self._work, self._turn, self._ackable):
                waiting.notify_all()

    def _guarded(self, loop: Callable[[], None]) -> None:
        self._threads.add(threading.get_ident())
        try:
            loop()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if isinstance(error, Fenced):
                self._fenced = self._fenced or error
            elif self._trouble is None:
                self._trouble = error
        self.stop()

    # ── reading ──

    def _read_loop(self) -> None:
        failures = 0
        while True:
            with self._lock:
                # Read again when half of the room is free: a manifest read per batch would cost more than it saves.
                while not self._stopping and self._unhandled > self._ahead // 2:
                    self._room.wait()
                if self._stopping:
                    return
                room = self._ahead - self._unhandled
            try:
                found = self._consumer.next_descriptors(room)
                failures = 0
            except StorageError as error:
                if not error.retryable:
                    raise
                self._stop_event.wait(self._backoff.delay(failures))
                failures += 1
                continue
            with self._lock:
                if found:
                    self._to_fetch.extend(found)
                    self._order.extend(each.sequence for each in found)
                    self._next.extend(each.sequence for each in found)
                    self._unhandled += len(found)
                    self._work.notify(len(found))
                elif self._until_empty:
                    if self._unhandled == 0:
                        self._exhausted = True
                        self._work.notify_all()
                        self._turn.notify()
                        return
                    # Handling may bring more; only a look after the last of it can say that nothing is left.
                    while self._unhandled and not self._stopping:
                        self._room.wait()
                    continue
            if not found:
                self._stop_event.wait(self._poll)

    # ── fetching ──

    def _fetch_loop(self) -> None:
        with _Caller(None if self._ordered else self._handler) as call:
            while (descriptor := self._next_to_fetch()) is not None:
                try:
                    batch = self._fetch(descriptor)
                except Exception as error:
                    if not self._ordered:
                        raise
                    batch = error  # raised when its turn comes, after everything before it was handled
                if self._ordered:
                    with self._lock:
                        self._fetched[descriptor.sequence] = batch
                        if self._next and self._next[0] == descriptor.sequence:
                            self._turn.notify()
                elif not self._stop_event.is_set():
                    assert not isinstance(batch, Exception)
                    if batch is not None:
                        call(batch)
                    self._finish(descriptor.sequence, batch)

    def _next_to_fetch(self) -> Descriptor | None:
        with self._lock:
            while not self._to_fetch and not self._stopping and not self._exhausted:
                self._work.wait()
            return self._to_fetch.popleft() if self._to_fetch and not self._stopping else None

    def _fetch(self, descriptor: Descriptor) -> Batch | Exception | None:
        failures = 0
        while True:
            try:
                return self._consumer.fetch(descriptor)
            except Corrupt as error:
                if self._on_corrupt is None:
                    raise
                self._on_corrupt(descriptor, error)
                return None
            except StorageError as error:
                if not error.retryable or self._stop_event.wait(self._backoff.delay(failures)):
                    raise
                failures += 1

    # ── handing over ──

    def _hand_over_in_order(self) -> None:
        with _Caller(self._handler) as call:
            while True:
                with self._lock:
                    while not (self._next and self._next[0] in self._fetched):
                        if self._stopping or (self._exhausted and self._unhandled == 0):
                            return
                        self._turn.wait()
                    if self._stopping:
                        return
                    sequence = self._next.popleft()
                    batch = self._fetched.pop(sequence)
                if isinstance(batch, Exception):
                    raise batch
                if batch is not None:
                    call(batch)
                self._finish(sequence, batch)

    def _wait_for_end(self) -> None:
        with self._lock:
            while not (self._stopping or (self._exhausted and self._unhandled == 0)):
                self._turn.wait()

    def _finish(self, sequence: int, batch: Batch | None) -> None:
        with self._lock:
            self._finished.add(sequence)
            while self._order and self._order[0] in self._finished:
                self._frontier = self._order.popleft()
                self._finished.discard(self._frontier)
            self._unhandled -= 1
            if batch is not None:
                self._batches += 1
                self._entries += len(batch)
            self._room.notify()
            self._ackable.notify()

    # ── acknowledging ──

    def _ack_loop(self) -> None:
        failures = 0
        not_before = 0.0
        while (frontier := self._frontier_to_ack(not_before, refused=failures > 0)) is not None:
            try:
                self._ack_through(frontier)
            except StorageError as error:
                failures += 1
                if not error.retryable or (self._handled and failures > _LAST_ACK_TRIES):
                    raise
                not_before = monotonic() + self._backoff.delay(failures)
            else:
                failures = 0
                self._acked = frontier
                not_before = monotonic() + self._ack_interval

    def _ack_through(self, frontier: int) -> None:
        try:
            self._consumer.ack_through(frontier)
        except OutOfOrder:
            if self._consumer.acked is None or self._consumer.acked < frontier:  # else a handler did it, just now even
                raise

    def _frontier_to_ack(self, not_before: float, *, refused: bool) -> int | None:
        """Waits until there is something to acknowledge; None when there never will be.

        What the last handler finished is not held back for the interval, only for a store that refused it.
        """
        with self._lock:
            while True:
                left = not_before - monotonic()
                if self._fenced is not None:
                    return None
                if self._frontier != self._acked:
                    if left <= 0 or (self._handled and not refused):
                        return self._frontier
                    self._ackable.wait(left)
                elif self._handled:
                    return None
                else:
                    self._ackable.wait()


#: After the last handler, a store that refuses the last acknowledgement is asked this often; then the run fails.
_LAST_ACK_TRIES = 5


class _Caller:
    """Calls the handler; a coroutine function on an event loop of the calling thread's own."""

    def __init__(self, handler: Callable[[Batch], object] | None) -> None:
        self._handler = handler or _nothing
        self._runner = asyncio.Runner() if inspect.iscoroutinefunction(handler) else None

    def __enter__(self) -> Callable[[Batch], object]:
        return self._handler if self._runner is None else self._call

    def __exit__(self, *exc: object) -> None:
        if self._runner is not None:
            self._runner.close()

    def _call(self, batch: Batch) -> None:
        assert self._runner is not None
        self._runner.run(cast("Coroutine[Any, Any, Any]", self._handler(batch)))


def _nothing(batch: Batch) -> None:
    """What a thread that only fetches calls: never."""
