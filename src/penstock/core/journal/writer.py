"""Group commit: the caller that finds the writer idle commits all pending work itself.

The *lead* is a lock that names its holder. A caller that gets the lead at once commits alone: one fsync, no change of
thread. Any other caller leaves its operation in `pending` and parks. The leader, when done, wakes the first parked
caller to lead the next commit, which then carries everything that gathered meanwhile. Submissions without a waiter are
led by a pump thread. A transaction waits in the same line: its place there is `refuse_turn`, and no group goes past it.

No wake-up is lost: an operation is enqueued before its caller tries to take the lead, and a leader looks at `pending`
after it has released the lead. So one of the two sees the other.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time

# The module `signal` adds several microseconds of enum conversion to each call.
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from threading import get_ident
from time import perf_counter
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple

import msgspec

from penstock.core.clock import Clock
from penstock.core.engine.contract import Engine, WriteTx
from penstock.core.journal.catalog import Catalog
from penstock.core.journal.commit import Commit
from penstock.core.observe.logs import Log
from penstock.core.observe.metrics import DURATION_BUCKETS, REGISTRY, Reading
from penstock.core.ticket import Ticket, wake
from penstock.errors import Backpressure, Closed, ConfigError, OutcomeUnknown, PenstockError, ReadOnly, StorageError
from penstock.limits import BACKPRESSURE_RETRY, GROUP_BYTES, GROUP_SUBMISSIONS, RECLAIM_BYTES, RECLAIM_SHARE

if TYPE_CHECKING:
    from penstock.core.journal.index.index import EntityIndex

T = TypeVar("T")
Args = TypeVarTuple("Args")

log = Log("penstock.writer")

LEADER = "leader"
"""The key under which the lead holds the id of its thread."""


class Writer:
    """A writer that commits operations to one engine, with as few fsyncs as the callers' timing allows."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        entities: EntityIndex,
        *,
        capacity: int,
        pressure: float,
        announce: Callable[[dict[str, int]], None],
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.catalog = Catalog()
        self.capacity = capacity
        self.threshold = max(1, math.ceil(capacity * pressure))
        self._entities = entities
        self.announce = announce
        """Tells followers of topics which events a commit has added.

        It never raises, because nothing can undo the commit.
        """
        self._pending: deque[WriteRequest[Any]] = deque()
        # `setdefault` takes the lead and names its holder in one step, so that a thread that is interrupted right
        # afterwards can be made to release it. Any thread can release the lead, because the owner of a transaction may
        # be gone.
        self._lead: dict[str, int] = {}
        self.steps = threading.RLock()
        """Held during each step of a transaction, so that another thread ends the transaction only between two
        steps.
        """
        self.pid = os.getpid()
        self.shield = Shield(lambda frame: self._lead.get(LEADER) == get_ident())
        self._local = threading.local()
        self._room = threading.Condition()
        self._pump: threading.Thread | None = None
        self._pump_wanted = threading.Event()
        self._closed = False
        self.measures = ROLL.enter()
        """The number of committed transactions, the number of their operations, and their speed."""

    # ── callers ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def run(self, operation: WriteRequest[T]) -> T:
        """Runs an operation and returns when it is as durable as the engine makes it."""
        me = get_ident()
        if self._lead.get(LEADER) == me:
            raise self._nested()
        if self._closed:
            raise Closed("the journal is closed")
        try:
            if me == main_thread:
                with self.shield:
                    self._do(operation, me)
            else:
                self._do(operation, me)
        except BaseException:
            self._abandon(operation)
            raise
        if operation.error is not None:
            raise operation.error
        return operation.value  # type: ignore[return-value]

    def _do(self, operation: WriteRequest[Any], me: int) -> None:
        if self._lead.setdefault(LEADER, me) != me:
            self._wait_for(operation)
        elif self._pending or self.engine.linger:
            self._pending.append(operation)
            self._lead_from_queue(operation)
        else:
            try:
                self._commit((operation,))
            finally:
                del self._lead[LEADER]
                if self._pending:
                    self._pass_on()

    async def run_async(self, operation: WriteRequest[T], patience: float = math.inf) -> T:
        """Does what `run` does for an event loop, without blocking it; raises Backpressure without room for `patience`
        seconds.

        The pump commits. It is woken when the loop has done its other work. So a commit carries more operations, and
        does not compete with the loop for the interpreter.
        """
        import asyncio  # a quarter of the time of `import penstock`, wasted for programs that await nothing

        given_up = time.monotonic() + patience
        while True:
            try:
                ticket = self._enqueue(operation, patient=False)
            except Backpressure as error:
                if time.monotonic() + error.retry_after > given_up:
                    raise
                await asyncio.sleep(error.retry_after)
                continue
            asyncio.get_running_loop().call_soon(self._wake_pump)
            return await ticket

    def run_relaxed(self, apply: Callable[[Commit, *Args], T], *args: *Args) -> T:
        """Runs a function whose changes need not be on disk at the return: the next synced commit writes them."""
        return self.run(WriteRequest(apply, 0, args, True))

    def submit(self, operation: WriteRequest[T], *, patient: bool = True, nested: bool = False) -> Ticket[T]:
        """Submits an operation and returns at once.

        When too many operations wait, it waits, or raises Backpressure when impatient.

        `nested` also allows a call from inside a transaction. The operation then runs after the transaction, which must
        not wait for the ticket.
        """
        ticket = self._enqueue(operation, patient=patient, nested=nested)
        self._wake_pump()
        return ticket

    def _enqueue(self, operation: WriteRequest[T], *, patient: bool, nested: bool = False) -> Ticket[T]:
        """Adds an operation to the pending operations; the caller wakes the pump."""
        if self._closed:
            raise Closed("the journal is closed")
        if self.engine.read_only:
            raise ReadOnly("the journal was opened with read_only=True")
        if self._lead.get(LEADER) == get_ident() and not nested:
            raise self._nested()
        waiting = len(self._pending)
        if not patient and waiting >= self.threshold:
            raise Backpressure(
                f"{waiting} submissions wait for the writer (limit {self.threshold} of {self.capacity}); "
                f"try again in {BACKPRESSURE_RETRY * 1000:g} ms",
                retry_after=BACKPRESSURE_RETRY,
            )
        if waiting >= self.capacity and not nested:
            with self._room:
                self._room.wait_for(lambda: len(self._pending) < self.capacity or self._closed)
        ticket: Ticket[T] = Ticket()
        operation.ticket = ticket
        self._pending.append(operation)
        if self._came_too_late(operation):
            raise Closed("the journal is closed")
        return ticket

    def _wake_pump(self) -> None:
        if self._pending and not self._pump_wanted.is_set():
            self._start_pump()
            self._pump_wanted.set()

    def pending(self) -> int:
        return len(self._pending)

    def hold_lead(self) -> None:
        """Takes the lead for a user's transaction: no other caller commits until `let_go`."""
        try:
            self.check_process()
            self._wait_to_lead()
            if self._closed:
                raise Closed("the journal is closed")
        except BaseException:
            self.release_lead()
            raise

    def _wait_to_lead(self) -> None:
        """Takes the lead in turn: a thread that begins transactions in a row commits the operations of other callers
        in between.
        """
        if not self._pending and self._try_to_lead():
            return
        turn = WriteRequest(refuse_turn)
        turn.parked = parked = self._own_lock()
        self._pending.append(turn)
        try:
            while not self._leads_for(turn):
                parked.acquire()
        except BaseException:
            self._abandon(turn)
            raise
        self._withdraw(turn)

    def _leads_for(self, turn: WriteRequest[object]) -> bool:
        """Returns True if this thread leads and its turn has come.

        Otherwise commits the operations before it, and then releases the lead.

        The thread that releases the lead wakes the first caller of the line, which may be this thread.
        """
        if turn.error is None and self._try_to_lead():
            if self._pending and self._pending[0] is turn:  # it is missing when the journal was closed
                return True
            self._lead_once()
        if turn.error is not None:
            raise turn.error
        return False

    def let_go(self) -> None:
        """Releases the lead, which the caller holds for a transaction; any thread may call this."""
        self._lead.pop(LEADER, None)
        if self._pending:
            self._pass_on()

    def begin(self, tx: WriteTx) -> Commit:
        """Returns a commit in a transaction of the engine that has begun."""
        return Commit(self.catalog, tx, self.clock.now_ms(), self._entities)

    def drain(self) -> None:
        """Waits until everything submitted so far is committed."""
        self.run(WriteRequest(lambda commit: None))

    def reclaim(self) -> None:
        """Returns freed space to the file system, uninterrupted; a failure does not fail the earlier commit."""
        with Shield(always_busy):
            try:
                self.engine.reclaim()
            except StorageError as error:
                log.warning("freed space is given back to the disk another time: %s", error)

    def purge(self) -> None:
        """Rewrites the store's files, uninterrupted, so that nothing deleted stays in them."""
        with Shield(always_busy):
            self.engine.purge()

    def reclaim_much(self) -> None:
        """Returns freed space to the file system when it is an eighth of the store or more."""
        if self.engine.garbage() * RECLAIM_SHARE >= max(self.engine.size(), RECLAIM_BYTES):
            self.reclaim()

    def check_idle_here(self) -> None:
        """Raises ConfigError when this thread is inside a transaction."""
        if self._lead.get(LEADER) == get_ident():
            raise self._nested()

    def close(self) -> None:
        """Commits pending operations and refuses later operations."""
        self.check_idle_here()
        try:
            with self.shield:
                self._wait_to_lead()
                self._closed = True
                self.let_go()
                while self._pending:  # an operation behind all others is complete when they are
                    self._do(WriteRequest(lambda commit: None), get_ident())
        except BaseException:
            self.release_lead()
            raise
        finally:
            self._pump_wanted.set()
            with self._room:
                self._room.notify_all()
            ROLL.leave(self.measures)
        if self._pump is not None and self._pump is not threading.current_thread():
            self._pump.join()

    # ── leading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _lead_once(self) -> None:
        batch: list[WriteRequest[object]] = []
        try:
            self._gather(batch)
            if batch:
                self._commit(batch)
        except BaseException as error:
            # An interrupt, perhaps in the middle of gathering: no caller may be left waiting for an answer.
            for operation in batch:
                self._withdraw(operation)
            fail_all(batch, error)
            raise
        finally:
            wake_all(batch)  # as the leader, which no signal interrupts
            self.let_go()

    def _gather(self, batch: list[WriteRequest[object]]) -> None:
        if self.engine.linger and self._pending:
            time.sleep(self.engine.linger)
        pending, size = self._pending, 0
        while pending and len(batch) < GROUP_SUBMISSIONS and size < GROUP_BYTES:
            operation = pending[0]  # removed only then: an interrupt in between must not lose the operation
            if operation.apply is refuse_turn and not self._closed:
                break
            batch.append(operation)
            pending.popleft()
            size += operation.size
        if len(pending) + len(batch) >= self.capacity:
            with self._room:
                self._room.notify_all()

    def _pass_on(self) -> None:
        """Makes sure that a thread commits the pending operations."""
        for operation in tuple(self._pending):
            parked = operation.parked
            if parked is not None:
                operation.lead = True
                wake_thread(parked)
                return
        self._start_pump()
        self._pump_wanted.set()

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _wait_for(self, operation: WriteRequest[object]) -> None:
        self.check_process()
        operation.parked = self._own_lock()
        self._pending.append(operation)
        if self._try_to_lead():
            self._lead_from_queue(operation)
        else:
            self._park(operation)

    def _try_to_lead(self) -> bool:
        """Takes the lead if no thread has it; this thread must not have it already."""
        me = get_ident()
        return self._lead.setdefault(LEADER, me) == me

    def _own_lock(self) -> threading.Lock:
        """Returns the lock this thread parks on; it is held until another thread releases it to wake this one."""
        try:
            return self._local.parked  # type: ignore[no-any-return]
        except AttributeError:
            parked = self._local.parked = threading.Lock()
            parked.acquire()
            return parked

    def _park(self, operation: WriteRequest[object]) -> None:
        if operation.parked is None:
            operation.parked = self._own_lock()
            if self._try_to_lead():  # the leader may have looked for parked callers before this caller parked
                self._lead_from_queue(operation)
                return
        while not operation.done:
            operation.parked.acquire()
            if operation.lead and not operation.done:
                operation.lead = False
                if self._try_to_lead():
                    self._lead_from_queue(operation)

    def _lead_from_queue(self, operation: WriteRequest[object]) -> None:
        """Leads once; callers that still wait afterwards park again."""
        if operation.done:
            self.let_go()
            return
        self._lead_once()
        if not operation.done:
            self._park(operation)

    def _abandon(self, operation: WriteRequest[Any]) -> None:
        """Withdraws an interrupted caller; its turn to lead, if it had one, goes to another waiting caller."""
        operation.parked = None
        self._withdraw(operation)
        self.release_lead()
        if self._pending:
            self._pass_on()

    def release_lead(self) -> None:
        """Releases the lead if this thread has it, for whatever reason."""
        if self._lead.get(LEADER) == get_ident():
            self.let_go()

    def _came_too_late(self, operation: WriteRequest[Any]) -> bool:
        """Returns True if the writer was closed during the submission of an operation, and no leader will run it."""
        return self._closed and self._withdraw(operation)

    def _withdraw(self, operation: WriteRequest[object]) -> bool:
        """Withdraws an operation that no leader has begun; returns False when it is too late."""
        with suppress(ValueError), self._room:  # a submitter may wait for this place
            self._pending.remove(operation)
            self._room.notify_all()
            return True
        return False

    def check_process(self) -> None:
        """Raises Closed in a process that was forked from the process that opened the journal."""
        if os.getpid() != self.pid:
            raise Closed(
                f"the journal was opened by process {self.pid} and this one was forked from it; "
                "open the store again in the child"
            )

    def _nested(self) -> ConfigError:
        self.check_process()  # the transaction that a forked child is inside of belongs to its parent
        return ConfigError(
            "this thread is inside a transaction of this journal, which would wait for itself: "
            "use the transaction's own methods"
        )

    # ── committing ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _commit(self, batch: Sequence[WriteRequest[object]]) -> None:
        """Runs operations in one transaction; afterwards every operation is done and has its value or its error."""
        try:
            # Set in advance: SQLite decides at the beginning how a transaction syncs.
            relaxed = batch[0].relaxed and (len(batch) == 1 or all(operation.relaxed for operation in batch))
            begun = perf_counter()
            with self.engine.write(sync=not relaxed) as tx:
                # inline, which saves the call of `begin`
                commit = Commit(self.catalog, tx, self.clock.now_ms(), self._entities)
                before = 0
                for operation in batch:
                    try:
                        operation.value = operation.apply(commit, *operation.args)
                    except Exception as error:
                        if tx.writes + commit.gathered != before:  # the value of `Commit.changes`
                            if len(batch) == 1:
                                raise
                            raise Spoiled from error
                        operation.error = error
                    before = tx.writes + commit.gathered
                commit.flush()
            commit.publish()
            synced = not relaxed and self.engine.durability == "disk"
            touched = commit.touched
            self.measures.committed(len(batch), perf_counter() - begun, synced, touched)
        except Spoiled:
            self._one_by_one(batch)
            return
        except BaseException as error:
            self.catalog.forget()
            fail_all(batch, error)
            if not isinstance(error, Exception):
                raise
            return
        for operation in batch:
            if operation.ticket is not None:
                operation.ticket.set_outcome(operation.value, operation.error)
            operation.done = True
        if touched:
            self.announce(touched)

    def _one_by_one(self, batch: Sequence[WriteRequest[object]]) -> None:
        self.catalog.forget()
        for operation in batch:
            operation.error = None
            self._commit((operation,))

    # ── the pump ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _start_pump(self) -> None:
        if self._pump is None:
            with self._room:
                if self._pump is None:
                    pump = threading.Thread(target=self._pump_loop, name="penstock-writer", daemon=True)
                    pump.start()
                    self._pump = pump

    def _pump_loop(self) -> None:
        while True:
            self._pump_wanted.wait()
            self._pump_wanted.clear()
            # otherwise its leader looks at the pending operations when it releases the lead
            if self._pending and self._try_to_lead():
                try:
                    self._lead_once()
                except BaseException:  # the callers concerned were told; the next caller still needs a pump
                    log.exception("a commit was interrupted")
            if self._closed:
                return


# ── What is asked of the writer, and how those who asked are told: values, errors, wake-ups ──


Answer = TypeVar("Answer", covariant=True)


class WriteRequest(msgspec.Struct, Generic[Answer], eq=False, weakref=False):
    """A request to run inside a commit: `apply` checks first, then changes.

    An error before any change costs nothing.
    """

    apply: Callable[..., Answer]
    """The function, which is called with the commit and `args`."""
    size: int = 0
    args: tuple[object, ...] = ()
    relaxed: bool = False
    value: Answer | None = None
    error: BaseException | None = None
    done: bool = False
    lead: bool = False
    parked: threading.Lock | None = None
    ticket: Ticket[Answer] | None = None


def refuse_turn(commit: object) -> None:
    """Stands in the line for a thread that waits for the lead itself.

    Leaders stop before this operation until the writer is closed; then it is refused like the others.
    """
    raise Closed("the journal is closed")


class Spoiled(Exception):
    """The error when an operation failed after a change: the transaction must be rolled back, and its operations
    redone one by one.
    """


def wake_all(batch: Sequence[WriteRequest[object]]) -> None:
    """Wakes the callers of operations that are done."""
    tickets = []
    for operation in batch:
        parked = operation.parked
        if parked is not None:
            wake_thread(parked)
        elif operation.ticket is not None:
            tickets.append(operation.ticket)
    if tickets:
        wake(tickets)


def wake_thread(lock: threading.Lock) -> None:
    """Releases the lock that a caller parks on."""
    with suppress(RuntimeError):  # woken already
        lock.release()


def fail_all(batch: Sequence[WriteRequest[object]], error: BaseException) -> None:
    """Fails all operations of a transaction of which nothing was kept; an operation that failed by itself keeps its
    own error.
    """
    for operation in batch:
        if operation.done:
            continue
        if operation.error is None:
            operation.error = error if len(batch) == 1 else _error_for_others(error)
        if operation.ticket is not None:
            operation.ticket.set_outcome(operation.value, operation.error)
        operation.done = True


def _error_for_others(error: BaseException) -> BaseException:
    """Returns the error for the other operations of a group.

    Each needs its own exception, because each raises it in its own thread.
    """
    if isinstance(error, PenstockError):
        import copy

        own = copy.copy(error)
    elif isinstance(error, Exception):
        own = StorageError(f"the commit failed: {error!r}")
    else:
        own = OutcomeUnknown("the thread that was committing was interrupted; whether the commit was kept is not known")
    own.__cause__ = error
    return own


# ── Signals wait for the end of a commit ──
# Python runs signal handlers in the main thread, between any two of its instructions. A handler that raises there
# (KeyboardInterrupt, or the SystemExit of a service's SIGTERM handler) could leave a lock taken or a transaction open
# for good. While the main thread is inside a commit, such signals wait until it is done; a second one does not.
#
# However many shields are up, in whichever order they come and go, there is one handler, put in place with the first
# and taken away with the last.


SIGINT, SIGTERM = int(signal.SIGINT), int(signal.SIGTERM)
main_thread = threading.main_thread().ident
"""The thread that signal handlers run in."""


class _SignalHandlers:
    """The state that the main thread's shields share; other threads use only `Shield.lower`."""

    __slots__ = ("interrupt", "late", "terminate", "up")

    def __init__(self) -> None:
        self.up: list[Shield] = []
        self.late: list[tuple[int, FrameType | None]] = []
        """The waiting signals, at most one."""
        self.interrupt: object = None
        self.terminate: object = None

    def install(self) -> None:
        # Our handler is still in place when another thread has lowered the last shield.
        interrupt, terminate = getsignal(SIGINT), getsignal(SIGTERM)
        if interrupt is not receive_signal:
            self.interrupt = interrupt
        if terminate is not receive_signal:
            self.terminate = terminate
        try:
            if callable(self.interrupt):
                set_handler(SIGINT, receive_signal)
            if callable(self.terminate):
                set_handler(SIGTERM, receive_signal)
        except ValueError as error:
            raise ConfigError(
                "a journal is written in the main interpreter of a process, where signals can be kept out of a commit, "
                "and this is a subinterpreter: use a thread of the main one, or a process of its own"
            ) from error

    def remove(self) -> None:
        try:
            self._put_back()
        except BaseException:  # the first handler was in force again, and raised
            self._put_back()
            self.late.clear()
            raise

    def _put_back(self) -> None:
        # A handler that is not ours was set inside the block and stays.
        if getsignal(SIGINT) is receive_signal:
            set_handler(SIGINT, self.interrupt)
        if getsignal(SIGTERM) is receive_signal:
            set_handler(SIGTERM, self.terminate)

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Calls the program's own handler."""
        handler = self.interrupt if number == SIGINT else self.terminate
        if callable(handler):
            handler(number, frame)


_signal_handlers = _SignalHandlers()
late_signals = _signal_handlers.late
"""The waiting signals; not empty while a signal waits for a shield."""


def _begin_in_child() -> None:
    """Starts anew after a fork: the thread that forked is the main thread, and shields of other threads are gone."""
    global main_thread
    me = threading.main_thread().ident
    if main_thread != me:
        main_thread = me
        _signal_handlers.up.clear()
        _signal_handlers.late.clear()
        _signal_handlers.remove()


os.register_at_fork(after_in_child=_begin_in_child)


def always_busy(frame: FrameType | None) -> bool:
    """Returns True, for a block that must never be interrupted."""
    return True


class Shield:
    """A block in which the main thread's signal handlers wait as long as `busy` returns True; it does nothing in other
    threads.

    `busy` gets the interrupted frame.
    """

    __slots__ = ("busy",)

    def __init__(self, busy: Callable[[FrameType | None], bool]) -> None:
        self.busy = busy

    # Every commit of the main thread passes through here, so there is no loop and no new object.
    def __enter__(self) -> None:
        if get_ident() != main_thread:
            return
        up = _signal_handlers.up
        try:
            up.append(self)
            if len(up) == 1:
                _signal_handlers.install()
        except BaseException:  # a signal may raise here, before our handler is set
            if self in up:
                up.remove(self)
            if not up:
                _signal_handlers.remove()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Signals that come from here on wait too: `receive_signal` knows this function.
        if get_ident() != main_thread:
            return
        up = _signal_handlers.up
        if up and up[-1] is self:
            del up[-1]
        elif self in up:
            up.remove(self)
        if not up:
            if not _signal_handlers.late and getsignal(SIGTERM) is not receive_signal:
                # The usual case, without a call: one handler, after which nothing must be restored.
                if getsignal(SIGINT) is receive_signal:
                    set_handler(SIGINT, _signal_handlers.interrupt)
                return
            _signal_handlers.remove()
        if _signal_handlers.late:
            let_signal_through()

    def lower(self) -> None:
        """Removes the shield, from any thread; the handlers are restored when the main thread's next shield is
        removed.
        """
        with suppress(ValueError):
            _signal_handlers.up.remove(self)


def let_signal_through() -> None:
    """Lets a signal take effect that waited for a shield, unless another shield is still busy."""
    late = _signal_handlers.late
    if late and get_ident() == main_thread:
        frame = sys._getframe(1)
        if frame.f_code is _EXIT:
            frame = frame.f_back  # type: ignore[assignment]
        if not _is_busy(frame):
            _signal_handlers.pass_on(*late.pop())


def receive_signal(number: int, frame: FrameType | None) -> None:
    """Handles signals while a shield is up."""
    if not _signal_handlers.late and (_is_busy(frame) or is_inside(frame, _OWN)):
        _signal_handlers.late.append((number, frame))
    else:
        _signal_handlers.pass_on(number, frame)


def _is_busy(frame: FrameType | None) -> bool:
    return any(shield.busy(frame) for shield in tuple(_signal_handlers.up))


def is_inside(frame: FrameType | None, codes: Collection[CodeType]) -> bool:
    """Returns True if a frame belongs to one of some functions, or to a function below it."""
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


_EXIT = Shield.__exit__.__code__
_OWN = (_EXIT, _SignalHandlers.remove.__code__)


# ── What a writer counts: commits and how long they took, how many callers shared one, syncs, events by topic ──
# Only the leader counts, so plain numbers suffice and a commit pays a fraction of a microsecond. The registry adds up
# all writers of the process when the counters are read.


GROUP_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""The buckets of the number of operations in a commit, doubling."""


class WriterCounters:
    """The counters of a writer."""

    __slots__ = ("appended", "commits", "commits_of", "groups", "latencies", "operations", "seconds", "syncs")

    def __init__(self) -> None:
        self.commits = 0
        self.operations = 0
        self.seconds = 0.0
        self.syncs = 0
        self.latencies = [0] * (len(DURATION_BUCKETS) + 1)
        self.groups = [0] * (len(GROUP_BUCKETS) + 1)
        self.appended: dict[str, int] = {}
        """The events added to each topic."""
        self.commits_of: dict[str, int] = {}
        """The commits that touched each topic."""

    def committed(self, operations: int, seconds: float, synced: bool, touched: dict[str, int]) -> None:
        """Counts one commit; the caller leads."""
        self.commits += 1
        self.operations += operations
        self.seconds += seconds
        if synced:
            self.syncs += 1
        self.latencies[bisect_left(DURATION_BUCKETS, seconds)] += 1
        self.groups[0 if operations == 1 else bisect_left(GROUP_BUCKETS, operations)] += 1
        appended, commits = self.appended, self.commits_of
        for topic, count in touched.items():
            appended[topic] = appended.get(topic, 0) + count
            commits[topic] = commits.get(topic, 0) + 1

    def add(self, other: WriterCounters) -> None:
        """Adds another writer's numbers."""
        self.commits += other.commits
        self.operations += other.operations
        self.seconds += other.seconds
        self.syncs += other.syncs
        self.latencies = [mine + theirs for mine, theirs in zip(self.latencies, other.latencies, strict=True)]
        self.groups = [mine + theirs for mine, theirs in zip(self.groups, other.groups, strict=True)]
        for topic, count in list(other.appended.items()):
            self.appended[topic] = self.appended.get(topic, 0) + count


class TopicCounters:
    """The counters of every writer of the process, including closed writers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = WriterCounters()
        self._open: dict[int, WriterCounters] = {}

    def enter(self) -> WriterCounters:
        """Returns the counters of a new writer."""
        measures = WriterCounters()
        with self._lock:
            self._open[id(measures)] = measures
        return measures

    def leave(self, measures: WriterCounters) -> None:
        """Notes that a writer was closed; its counts stay. A second call does nothing."""
        with self._lock:
            if self._open.pop(id(measures), None) is not None:
                self._closed.add(measures)

    def total(self) -> WriterCounters:
        """Returns the sum of all writers."""
        total = WriterCounters()
        with self._lock:
            for measures in (self._closed, *self._open.values()):
                total.add(measures)
        return total


ROLL = TopicCounters()


def _commit_seconds() -> list[tuple[tuple[str, ...], Reading]]:
    total = ROLL.total()
    return [((), Reading(DURATION_BUCKETS, total.latencies, total.seconds))]


def _group_sizes() -> list[tuple[tuple[str, ...], Reading]]:
    total = ROLL.total()
    return [((), Reading(GROUP_BUCKETS, total.groups, float(total.operations)))]


def _appended() -> list[tuple[tuple[str, ...], float]]:
    return [((topic,), float(count)) for topic, count in ROLL.total().appended.items()]


REGISTRY.watch("counter", "topic.appended", "events appended by this process", ("topic",), _appended)
REGISTRY.watch("histogram", "writer.commit_seconds", "how long commits took, sync included", (), _commit_seconds)
REGISTRY.watch("histogram", "writer.group_size", "operations that shared a commit", (), _group_sizes)
REGISTRY.watch(
    "counter",
    "writer.syncs",
    "commits that were on disk before a caller was told; the others were relaxed or durability is process",
    (),
    lambda: [((), float(ROLL.total().syncs))],
)
