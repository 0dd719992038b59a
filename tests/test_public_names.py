"""The public surface, fixed: whoever adds or removes a name says so here. One name a line, sorted, is easy to merge."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import errors

NAMES = [
    "CheckReport",
    "Clock",
    "CompactReport",
    "CopyReport",
    "Delivery",
    "Description",
    "Draft",
    "DropReport",
    "EraseReport",
    "Event",
    "EventQuery",
    "ExportReport",
    "Fence",
    "ImportReport",
    "InclusionProof",
    "Journal",
    "JournalSubscription",
    "ManualClock",
    "Middleware",
    "Outbox",
    "Pause",
    "PendingDelivery",
    "Pressure",
    "Projection",
    "Queue",
    "QueueConsumer",
    "QueueMessage",
    "QueuePolicy",
    "QueueStats",
    "RebuildReport",
    "Receipt",
    "ResultTicket",
    "Retry",
    "RunningTask",
    "Schedule",
    "Settings",
    "Subscription",
    "Task",
    "TaskProgress",
    "TaskState",
    "TaskTimes",
    "Tasks",
    "Ticket",
    "Topic",
    "TopicConsumer",
    "Transaction",
    "TreeRoot",
    "VerifyReport",
    "Watch",
    "Worker",
    "check_proof",
    "check_root",
    "copy",
    "current",
    "current_task",
    "describe",
    "errors",
    "event",
    "gate",
    "on",
    "open",
    "progress",
    "sign_root",
    "step",
    "upcast",
    "use",
]

ERRORS = [
    "Backpressure",
    "Closed",
    "ConfigError",
    "Conflict",
    "Corrupt",
    "Denied",
    "FenceActive",
    "FenceCancelled",
    "Fenced",
    "FlowFailed",
    "GiveUp",
    "InvalidName",
    "Lagged",
    "Locked",
    "NoStore",
    "OutOfOrder",
    "OutcomeUnknown",
    "PenstockError",
    "PoisonMessage",
    "PolicyMismatch",
    "PositionTrimmed",
    "QueueFull",
    "ReadOnly",
    "ReplyFailed",
    "StaleDelivery",
    "StorageError",
    "TaskTimeout",
    "TopicInUse",
    "TryAgain",
    "Unflushed",
    "UnknownQueue",
    "UnknownTask",
    "UnknownTopic",
    "Unprovable",
]


def defined_errors() -> list[str]:
    return sorted(
        name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)
    )


def test_the_public_names_are_these() -> None:
    assert sorted(penstock.__all__) == sorted(NAMES)
    assert list(penstock.__all__) == sorted(penstock.__all__)
    assert len(set(penstock.__all__)) == len(penstock.__all__)


def test_every_public_name_is_there_and_documented() -> None:
    for name in penstock.__all__:
        assert inspect.getdoc(getattr(penstock, name)), f"penstock.{name} has no docstring"


def test_the_errors_are_these_and_one_tree() -> None:
    assert defined_errors() == sorted(ERRORS)
    for name in ERRORS:
        assert issubclass(getattr(errors, name), errors.PenstockError)
        assert name in (errors.__doc__ or ""), f"{name} is not drawn in the tree of penstock.errors"
        assert inspect.getdoc(getattr(errors, name))


def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(errors.ConfigError, ValueError) and issubclass(errors.UnknownQueue, KeyError)
    assert issubclass(errors.InvalidName, errors.ConfigError) and issubclass(errors.PolicyMismatch, errors.ConfigError)


EXAMPLES = [
    errors.Corrupt("damaged", topic="t", seq=3, file="f", offset=9),
    errors.Conflict("moved", expected=1, actual=2),
    errors.PositionTrimmed("gone", oldest=5),
    errors.Backpressure("behind", retry_after=0.5),
    errors.Lagged("slow", last_seq=7),
    errors.StaleDelivery("late", token="abc"),
    errors.PoisonMessage("odd", raw=b"\xff"),
    errors.ReplyFailed("given up", reason="rejected", error="no", traceback=None),
    errors.Fenced("taken over", epoch=4),
    errors.FlowFailed("broken", flow="revenue"),
    errors.StorageError("full", retryable=True),
    errors.OutcomeUnknown("unsure"),
    errors.Denied("no"),
    errors.UnknownQueue("no such queue"),
    errors.ConfigError("bad"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_keep_their_details_when_they_are_sent_elsewhere(error: errors.PenstockError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


def test_the_version_is_there() -> None:
    assert penstock.__version__.count(".") == 2


def test_names_are_fetched_when_asked_for() -> None:
    program = (
        "import sys, penstock\n"
        "assert not [name for name in sys.modules if name.startswith('penstock.')]\n"
        "assert penstock.event.__module__ == 'penstock.core.schema'\n"
        "assert penstock.metrics.REGISTRY and 'open' in dir(penstock) and not hasattr(penstock, 'nothing')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_type_checkers_see_is_what_is_fetched() -> None:
    """The stub says the same as the two tables."""
    tree = ast.parse(Path(str(penstock.__file__)).with_suffix(".pyi").read_text("utf-8"))
    seen: dict[str, str] = {}
    modules: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            assert alias.asname == alias.name, f"{alias.name} is not exported by the stub"
            if node.module in ("penstock", "penstock.core.observe", "penstock.integrations"):
                modules[alias.name] = f"{node.module}.{alias.name}"
            else:
                seen[alias.name] = str(node.module)
    assert seen == penstock._NAMES
    assert modules == penstock._MODULES
    assert {*seen, "errors"} == set(penstock.__all__)


def test_a_program_on_topics_imports_no_queue_and_no_operation_of_the_wire(tmp_path: Path) -> None:
    """A command, or a job that cron starts, would wait for what it does not use."""
    program = (
        "import sys, penstock\n"
        f"with penstock.open({str(tmp_path / 's.db')!r}) as journal:\n"
        "    journal.topic('t').append('k', 1)\n"
        "    assert [event.payload for event in journal.topic('t').read()] == [1]\n"
        "wanted = 'penstock.core.queue.registry', 'penstock.core.protocol.queues', 'penstock.core.protocol.topics'\n"
        "unused = *wanted, 'penstock.core.entity.fence', 'penstock.core.entity.gate', 'penstock.core.journal.across'\n"
        "assert not [name for name in unused if name in sys.modules]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
