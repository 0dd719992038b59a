"""An embedded, durable event journal for Python.

Append events to topics in-process, follow them, take them as a queue, fold them into state; Spark reads and writes
them exactly once. Start with `penstock.open()`.
"""

from importlib import import_module

__version__ = "0.1.0"

_PLACES = {
    "api": "copy current describe open use",
    "clock": "Clock ManualClock",
    "entity.copying": "ExportReport ImportReport",
    "entity.fence": "Fence",
    "entity.gate": "gate",
    "entity.outbox": "Outbox",
    "entity.projection": "Projection on",
    "entity.proof": "CheckReport InclusionProof TreeRoot check_proof check_root sign_root",
    "entity.receipts": "VerifyReport",
    "entity.states": "RebuildReport Watch",
    "events": "Draft Event Receipt",
    "journal.catalog": "Settings",
    "journal.cursors": "TopicConsumer",
    "journal.description": "Description Pressure",
    "journal.moving": "CopyReport",
    "journal.upkeep.dropping": "DropReport",
    "journal.upkeep.retention": "CompactReport",
    "model.query": "EventQuery",
    "queue.inspect": "PendingDelivery QueueConsumer QueueMessage QueueStats",
    "queue.operations.groups": "Pause",
    "queue.policy": "QueuePolicy Retry",
    "queue.results": "ResultTicket",
    "queue.schedule": "Schedule",
    "queue.tasks": "Task Tasks",
    "queue.worker": "Middleware",
    "schema": "event upcast",
    "consuming.delivery": "Delivery",
    "surface.journal": "Journal",
    "surface.queue": "Queue",
    "consuming.subscription": "JournalSubscription Subscription",
    "surface.topic": "Topic",
    "surface.transaction": "Transaction",
    "consuming.worker": "Worker",
    "ticket": "Ticket",
}
"""By module, the public names that live there. They are fetched when first asked for: a command that only prints its
help, or a Spark worker that decodes a block, should not pay for the rest. `__init__.pyi` tells type checkers so."""
_NAMES = {name: f"penstock.{module}" for module, names in _PLACES.items() for name in names.split()}

_MODULES = {
    "errors": "penstock.errors",
    "metrics": "penstock.observe.metrics",
    "pipelines": "penstock.observe.pipelines",
    "tracing": "penstock.observe.tracing",
}
"""Modules that are part of the public surface under a name of their own."""

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
