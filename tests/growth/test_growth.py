"""Cost follows the answer: every public operation, in a small store and a large one, in every state of a store.

Counted, not timed: engine calls, rows that scans hand out, functions that the package calls. What has the same answer
in both may cost three times as much in the large one, which is sixteen times as large; an answer that is ten times
as large may cost ten times that. `make bench BENCH=growth` measures the times.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

import penstock
from growth import journal_rows, queue_rows
from growth.counting import Cost, Counter
from growth.row import Row
from growth.world import LARGE, SMALL, STATES, State, World, in_memory, small_parts, worlds

ROWS = [*journal_rows.ROWS, *queue_rows.ROWS]
FACTOR = 3
SLACK = Cost(calls=16, rows=16, steps=1_000)
"""What a few more levels of a search cost, where the small store needs next to nothing."""

HANDLES = {
    "Delivery", "Fence", "Journal", "JournalSubscription", "Outbox", "Queue", "ResultTicket", "Subscription", "Task",
    "Topic", "Transaction", "Watch", "Worker",
}  # fmt: skip
"""What asks the store."""
VALUES = {
    "CheckReport", "Clock", "CompactReport", "CopyReport", "Description", "Draft", "DropReport", "EraseReport", "Event",
    "EventQuery",
    "ExportReport", "ImportReport", "InclusionProof", "ManualClock", "Middleware", "Pause", "PendingDelivery",
    "Pressure", "Projection", "QueueConsumer", "QueueMessage", "QueuePolicy", "QueueStats", "RebuildReport", "Receipt",
    "Retry", "RunningTask", "Schedule", "Settings", "TaskProgress", "TaskState", "TaskTimes", "Tasks",
    "Ticket", "TopicConsumer", "TreeRoot", "VerifyReport",
}  # fmt: skip
"""What has been read, or tells something: no store behind it."""
FUNCTIONS = {"copy", "describe", "open"}
PLAIN = {
    "check_proof",
    "check_root",
    "current",
    "current_task",
    "errors",
    "event",
    "gate",
    "on",
    "progress",
    "sign_root",
    "step",
    "upcast",
    "use",
}
"""Functions, and a module, that ask no store."""


@pytest.fixture(scope="module")
def counter() -> Iterator[Counter]:
    counter = Counter()
    with counter.counting():
        yield counter


@pytest.fixture(scope="module")
def built(counter: Counter) -> Iterator[dict[tuple[State, int], World]]:
    with small_parts(), worlds((SMALL, LARGE), in_memory) as found:
        yield found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_cost_follows_the_answer(row: Row, built: dict[tuple[State, int], World], counter: Counter) -> None:
    seen: list[str] = []
    grown = False
    for state in STATES:
        small, few = counter.cost(row.on(built[state, SMALL]))
        large, many = counter.cost(row.on(built[state, LARGE]))
        allowed = [FACTOR * cost * max(1, many / max(few, 1)) + more for cost, more in zip(small, SLACK, strict=True)]
        seen.append(f"{state}: {small} for {few}, {large} for {many}")
        grown = grown or any(cost > most for cost, most in zip(large, allowed, strict=True))
    if row.grows:
        assert grown, "it grows no more: take `grows` off its row\n" + "\n".join(seen)
    else:
        assert not grown, "it costs more in a large store:\n" + "\n".join(seen)


def test_every_public_operation_has_a_row() -> None:
    assert set(penstock.__all__) == HANDLES | VALUES | FUNCTIONS | PLAIN, "say what a new public name is"
    wanted = {f"{name}.{method}" for name in HANDLES for method in methods(getattr(penstock, name))} | FUNCTIONS
    have = {row.operation for row in ROWS}
    assert wanted - have == set(), "an operation without a row"
    assert have - wanted == set(), "a row without an operation"


def methods(handle: type) -> Iterator[str]:
    """The public methods and properties of a class, and those that `len` and `for` call."""
    for name in {name for base in handle.__mro__ if base.__module__.startswith("penstock") for name in vars(base)}:
        found = inspect.getattr_static(handle, name)
        public = not name.startswith("_") or name in ("__len__", "__iter__")
        if public and (callable(found) or isinstance(found, property | classmethod | staticmethod)):
            yield name


def test_no_name_is_used_twice() -> None:
    names = [row.name for row in ROWS]
    assert sorted(set(names)) == sorted(names)
