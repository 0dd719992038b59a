"""An embedded, durable event journal for Python.

Append events to topics in-process, follow them, take them as a queue, fold them into state; Spark reads and writes
them exactly once. Start with `penstock.open()`.
"""

from importlib import import_module

__version__ = "0.1.0"

_PLACES = {
    "api": "copy current describe open use",
    "core.clock": "Clock ManualClock",
    "core.entity.copying": "ExportReport ImportReport",
    "core.entity.fence": "Fence",
    "core.entity.gate": "gate",
    "core.entity.outbox": "Outbox",
    "core.entity.projection": "Projection on",
    "core.entity.proof": "CheckReport InclusionProof TreeRoot check_proof check_root sign_root",
    "core.entity.receipts": "VerifyReport",
    "core.entity.states": "RebuildReport Watch",
    "core.events": "Draft Event Receipt",
    "core.journal.catalog": "Settings",
    "core.journal.cursors": "TopicConsumer",
    "core.journal.description": "Description Pressure",
    "core.journal.moving": "CopyReport",
    "core.journal.upkeep.dropping": "DropReport",
    "core.journal.upkeep.erasing": "EraseReport",
    "core.journal.upkeep.retention": "CompactReport",
    "core.model.query": "EventQuery",
    "core.queue.inspect": "PendingDelivery QueueConsumer QueueMessage QueueStats",
    "core.queue.operations.groups": "Pause",
    "core.queue.policy": "QueuePolicy Retry",
    "core.queue.results": "ResultTicket",
    "core.queue.schedule": "Schedule",
    "core.observe.sample": "TaskProgress",
    "core.queue.tasks.running": "RunningTask current_task progress step",
    "core.queue.tasks.state": "TaskState TaskTimes",
    "core.queue.tasks.task": "Task",
    "core.queue.tasks.tasks": "Tasks",
    "core.queue.worker": "Middleware",
    "core.schema": "event upcast",
    "core.consuming.delivery": "Delivery",
    "core.surface.journal": "Journal",
    "core.surface.queue": "Queue",
    "core.consuming.subscription": "JournalSubscription Subscription",
    "core.surface.topic": "Topic",
    "core.surface.transaction": "Transaction",
    "core.consuming.worker": "Worker",
    "core.ticket": "Ticket",
}
"""The public names by their module.

A name is imported on first access, so that a command that only prints its help, or a Spark worker that decodes a block,
does not pay for the rest. `__init__.pyi` declares the names for type checkers.
"""
_NAMES = {name: f"penstock.{module}" for module, names in _PLACES.items() for name in names.split()}

_MODULES = {
    "errors": "penstock.errors",
    "metrics": "penstock.core.observe.metrics",
    "outbox": "penstock.integrations.outbox",
    "pipelines": "penstock.core.observe.pipelines",
    "tracing": "penstock.core.observe.tracing",
}
"""The public modules."""

__all__ = sorted([*_NAMES, "errors"])


def __getattr__(name: str) -> object:
    if name in _NAMES:
        value: object = getattr(import_module(_NAMES[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        try:
            return import_module(f"penstock.{name}")  # penstock.buffer, penstock.spark …
        except ModuleNotFoundError as error:
            if error.name != f"penstock.{name}":
                raise
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
