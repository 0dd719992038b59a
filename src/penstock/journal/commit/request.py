"""What is asked of the writer, and how those who asked are told: values, errors, wake-ups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from penstock.errors import OutcomeUnknown, PenstockError, StorageError
from penstock.ticket import Ticket, wake

T = TypeVar("T", covariant=True)


class WriteRequest(msgspec.Struct, Generic[T], eq=False, weakref=False):
    """Something to be done inside a commit: `apply` checks first, then changes; raising before any change is free."""

    apply: Callable[..., T]
    """Called with the commit and `args`."""
    size: int = 0
    args: tuple[object, ...] = ()
    relaxed: bool = False
    value: T | None = None
    error: BaseException | None = None
    done: bool = False
    lead: bool = False
    parked: threading.Lock | None = None
    ticket: Ticket[T] | None = None


class Spoiled(Exception):
    """An operation failed after it had changed something: the transaction must be rolled back and redone one by one."""


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
    """Nothing of this transaction was kept; those who failed by themselves keep their own reason."""
    for operation in batch:
        if operation.done:
            continue
        if operation.error is None:
            operation.error = error if len(batch) == 1 else _error_for_others(error)
        if operation.ticket is not None:
            operation.ticket.set_outcome(operation.value, operation.error)
        operation.done = True


def _error_for_others(error: BaseException) -> BaseException:
    """What a group's other members are told: an error of their own, since each raises it in a thread of its own."""
    if isinstance(error, PenstockError):
        import copy

        own = copy.copy(error)
    elif isinstance(error, Exception):
        own = StorageError(f"the commit failed: {error!r}")
    else:
        own = OutcomeUnknown("the thread that was committing was interrupted; whether the commit was kept is not known")
    own.__cause__ = error
    return own
