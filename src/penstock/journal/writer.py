"""Group commit: whoever finds the writer idle commits everybody's pending work itself.

The *lead* is a lock. A caller that gets it at once commits alone: one fsync, no thread hop. A caller that does not
leaves its operation in `pending` and parks; the leader, when done, wakes the first parked caller to lead the next
commit, which then carries everything that gathered meanwhile. Submissions nobody waits for are led by a pump thread.

No wake-up is lost: an operation is enqueued before its caller tries the lead, and a leader looks at `pending` after it
has let go of the lead; one of the two must see the other.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from penstock.clock import Clock
from penstock.engine.contract import Engine
from penstock.errors import Backpressure, Closed, ConfigError, PenstockError, StorageError
from penstock.journal.catalog import Catalog
from penstock.journal.commit import Commit, Generation
from penstock.limits import BACKPRESSURE_RETRY, GROUP_BYTES, GROUP_SUBMISSIONS
from penstock.ticket import Ticket, wake

T = TypeVar("T")


class Operation(Generic[T]):
    """Something to be done inside a commit: `apply` checks first, then changes; raising before any change is free."""

    # Class-level defaults: most operations are never parked, ticketed or led.
    relaxed = False
    value: T | None = None
    error: BaseException | None = None
    done = False
    lead = False
    parked: threading.Lock | None = None
    ticket: Ticket[T] | None = None

    def __init__(self, apply: Callable[[Commit], T], size: int = 0, *, relaxed: bool = False) -> None:
        self.apply = apply
        self.size = size
        if relaxed:
            self.relaxed = True


class _Spoiled(Exception):
    """An operation failed after it had changed something: the transaction must be rolled back and redone one by one."""


class Writer:
    """Commits operations to one engine, as few fsyncs as the callers' timing allows."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        generation: Generation,
        *,
        capacity: int,
        pressure: float,
        committed: Callable[[dict[str, int]], None],
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.catalog = Catalog()
        self.capacity = capacity
        self.threshold = max(1, math.ceil(capacity * pressure))
        self._generation = generation
        self._committed = committed
        self._pending: deque[Operation[Any]] = deque()
        self._lead = threading.Lock()
        self._leader: int | None = None
        self._local = threading.local()
        self._room = threading.Condition()
        self._pump: threading.Thread | None = None
        self._pump_wanted = threading.Event()
        self._closed = False
        self.commits = 0
        """How many transactions were committed."""
        self.operations = 0
        """How many operations they carried; divided by `commits`, the size of a group."""

    # ── callers ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def run(self, operation: Operation[T]) -> T:
        """Does an operation and returns when it is as durable as the engine makes it."""
        if self._closed:
            raise Closed("the journal is closed")
        if self._lead.acquire(False):
            self._lead_until(operation)
        else:
            self._wait_for(operation)
        if operation.error is not None:
            raise operation.error
        return operation.value  # type: ignore[return-value]

    def submit(self, operation: Operation[T], *, patient: bool = True) -> Ticket[T]:
        """Hands an operation over and returns at once; waits (impatient: raises Backpressure) when too many wait."""
        if self._closed:
            raise Closed("the journal is closed")
        waiting = len(self._pending)
        if not patient and waiting >= self.threshold:
            raise Backpressure(
                f"{waiting} submissions wait for the writer (limit {self.threshold} of {self.capacity}); "
                f"try again in {BACKPRESSURE_RETRY * 1000:g} ms",
                retry_after=BACKPRESSURE_RETRY,
            )
        if waiting >= self.capacity:
            with self._room:
                self._room.wait_for(lambda: len(self._pending) < self.capacity or self._closed)
        ticket: Ticket[T] = Ticket()
        operation.ticket = ticket
        self._pending.append(operation)
        if not self._pump_wanted.is_set():
            self._start_pump()
            self._pump_wanted.set()
        return ticket

    def pending(self) -> int:
        return len(self._pending)

    def exclusively(self, timeout: float = -1) -> Exclusive:
        """The lead, for a user's transaction: nobody else commits until it is let go of."""
        self._refuse_nesting()
        if not self._lead.acquire(timeout=timeout):
            raise TimeoutError("another transaction is still open")
        return Exclusive(self)

    def drain(self) -> None:
        """Returns when everything submitted so far is committed."""
        self.run(Operation(lambda commit: None))

    def close(self) -> None:
        """Commits what is pending and refuses everything after."""
        self._refuse_nesting()
        with self._lead:
            self._closed = True
        while self._pending:
            self._lead.acquire()
            self._lead_once()
        self._pump_wanted.set()
        with self._room:
            self._room.notify_all()
        if self._pump is not None and self._pump is not threading.current_thread():
            self._pump.join()

    # ── leading ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _lead_until(self, operation: Operation[Any]) -> None:
        """Commits, lead in hand, until `operation` is among what was committed."""
        if not self._pending:
            self._leader = threading.get_ident()
            batch: Sequence[Operation[Any]] = (operation,)
            try:
                self._commit(batch)
            finally:
                self._leader = None
                self._lead.release()
            if self._pending:
                self._pass_on()
            return
        self._pending.append(operation)
        while True:
            self._lead_once()
            if operation.done:
                return
            if not self._lead.acquire(False):
                self._park(operation)
                return

    def _lead_once(self) -> None:
        self._leader = threading.get_ident()
        batch: list[Operation[Any]] = []
        try:
            batch = self._gather()
            self._commit(batch)
        finally:
            self._leader = None
            self._lead.release()
        if self._pending:
            self._pass_on()
        self._wake(batch)

    def _gather(self) -> list[Operation[Any]]:
        pending, size = self._pending, 0
        batch: list[Operation[Any]] = []
        while pending and len(batch) < GROUP_SUBMISSIONS and size < GROUP_BYTES:
            operation = pending.popleft()
            batch.append(operation)
            size += operation.size
        if len(pending) + len(batch) >= self.capacity:
            with self._room:
                self._room.notify_all()
        return batch

    def _pass_on(self) -> None:
        """Makes sure somebody commits what is pending."""
        for operation in tuple(self._pending):
            if operation.parked is not None:
                operation.lead = True
                _release(operation.parked)
                return
        self._start_pump()
        self._pump_wanted.set()

    def _wake(self, batch: Sequence[Operation[Any]]) -> None:
        tickets = []
        for operation in batch:
            if operation.parked is not None:
                _release(operation.parked)
            elif operation.ticket is not None:
                tickets.append(operation.ticket)
        if tickets:
            wake(tickets)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _wait_for(self, operation: Operation[Any]) -> None:
        self._refuse_nesting()
        try:
            operation.parked = self._local.parked
        except AttributeError:
            operation.parked = self._local.parked = threading.Lock()
            operation.parked.acquire()
        self._pending.append(operation)
        if self._lead.acquire(False):
            self._lead_from_queue(operation)
        else:
            self._park(operation)

    def _park(self, operation: Operation[Any]) -> None:
        if operation.parked is None:
            try:
                operation.parked = self._local.parked
            except AttributeError:
                operation.parked = self._local.parked = threading.Lock()
                operation.parked.acquire()
            if self._lead.acquire(False):  # the leader may have looked for parked callers before we were one
                self._lead_from_queue(operation)
                return
        while not operation.done:
            operation.parked.acquire()
            if operation.lead and not operation.done:
                operation.lead = False
                if self._lead.acquire(False):
                    self._lead_from_queue(operation)

    def _lead_from_queue(self, operation: Operation[Any]) -> None:
        """Leads once; whoever is still waiting afterwards parks again."""
        if operation.done:
            self._lead.release()
            if self._pending:
                self._pass_on()
            return
        self._lead_once()
        if not operation.done:
            self._park(operation)

    def _refuse_nesting(self) -> None:
        if self._leader == threading.get_ident():
            raise ConfigError(
                "this thread is inside a transaction (or a handler run by the writer) of this journal: "
                "use the transaction's own methods"
            )

    # ── committing ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _commit(self, batch: Sequence[Operation[Any]]) -> None:
        try:
            touched = self._attempt(batch)
        except _Spoiled:
            self._one_by_one(batch)
            return
        except BaseException as error:
            self.catalog.forget()
            self._fail(batch, error)
            if not isinstance(error, Exception):
                raise
            return
        for operation in batch:
            self._settle(operation)
        if touched:
            self._committed(touched)

    def _attempt(self, batch: Sequence[Operation[Any]]) -> dict[str, int]:
        # Said in advance: SQLite fixes at its start how a transaction syncs.
        relaxed = all([operation.relaxed for operation in batch])
        with self.engine.write(sync=not relaxed) as tx:
            commit = Commit(self.catalog, tx, self.clock.now_ms(), self._generation)
            for operation in batch:
                before = commit.writes
                try:
                    operation.value = operation.apply(commit)
                except Exception as error:
                    if commit.writes != before and len(batch) > 1:
                        raise _Spoiled from error
                    if commit.writes != before:
                        raise
                    operation.error = error
            commit.flush()
        commit.publish()
        self.commits += 1
        self.operations += len(batch)
        return commit.touched

    def _one_by_one(self, batch: Sequence[Operation[Any]]) -> None:
        self.catalog.forget()
        for operation in batch:
            operation.error = None
            self._commit((operation,))

    def _fail(self, batch: Sequence[Operation[Any]], error: BaseException) -> None:
        """Nothing of this transaction was kept; those who failed by themselves keep their own reason."""
        for operation in batch:
            if operation.error is None:
                operation.error = error if len(batch) == 1 else _for_others(error)
            self._settle(operation)

    def _settle(self, operation: Operation[Any]) -> None:
        operation.done = True
        if operation.ticket is not None:
            operation.ticket.settle(operation.value, operation.error)

    # ── the pump ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _start_pump(self) -> None:
        if self._pump is None:
            with self._room:
                if self._pump is None:
                    self._pump = threading.Thread(target=self._pump_loop, name="penstock-writer", daemon=True)
                    self._pump.start()

    def _pump_loop(self) -> None:
        while True:
            self._pump_wanted.wait()
            self._pump_wanted.clear()
            while self._pending:
                self._lead.acquire()
                self._lead_once()
            if self._closed:
                return


class Exclusive:
    """The writer's lead held over a user's transaction."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        writer._leader = threading.get_ident()
        self._held = True
        if writer._closed:
            self.release()
            raise Closed("the journal is closed")

    def begin(self) -> Commit:
        writer = self._writer
        self._tx = writer.engine.write()
        self._tx.__enter__()
        try:
            self.commit = Commit(writer.catalog, self._tx, writer.clock.now_ms(), writer._generation)
        except BaseException as error:
            self._tx.__exit__(type(error), error, error.__traceback__)
            raise
        return self.commit

    def end(self) -> None:
        """Commits; when that fails, nothing was kept."""
        try:
            self.commit.flush()
        except BaseException as error:
            self.roll_back(error)
            raise
        try:
            self._tx.__exit__(None, None, None)
        except BaseException:
            self._writer.catalog.forget()
            raise
        self.commit.publish()
        self._writer.commits += 1
        self._writer.operations += 1
        if self.commit.touched:
            self._writer._committed(self.commit.touched)

    def roll_back(self, error: BaseException | None) -> None:
        self._writer.catalog.forget()
        reason = error or RuntimeError("rolled back")
        self._tx.__exit__(type(reason), reason, reason.__traceback__)

    def release(self) -> None:
        if self._held:
            self._held = False
            writer = self._writer
            writer._leader = None
            writer._lead.release()
            if writer._pending:
                writer._pass_on()


def _for_others(error: BaseException) -> BaseException:
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, Exception):
        return error if isinstance(error, OSError | MemoryError) else StorageError(f"the commit failed: {error!r}")
    return StorageError("the thread that was committing was interrupted; whether the commit was kept is not known")


def _release(lock: threading.Lock) -> None:
    with suppress(RuntimeError):  # woken already
        lock.release()
