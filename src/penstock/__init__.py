"""An embedded, durable event journal for Python.

Append events to topics in-process, follow them, take them as a queue, fold them into state; Spark reads and writes
them exactly once. Start with `penstock.open()`.
"""

from importlib import import_module

__version__ = "0.1.0"

_NAMES = {
    "CheckReport": "penstock.entity.proof",
    "Clock": "penstock.clock",
    "CompactReport": "penstock.journal.upkeep",
    "CopyReport": "penstock.journal.moving",
    "Delivery": "penstock.surface.delivery",
    "Description": "penstock.journal.description",
    "Draft": "penstock.events",
    "DropReport": "penstock.journal.dropping",
    "Event": "penstock.events",
    "ExportReport": "penstock.entity.copying",
    "Fence": "penstock.entity.fence",
    "ImportReport": "penstock.entity.copying",
    "InclusionProof": "penstock.entity.proof",
    "Journal": "penstock.surface.journal",
    "ManualClock": "penstock.clock",
    "Middleware": "penstock.queue.worker",
    "Outbox": "penstock.entity.outbox",
    "Pause": "penstock.queue.operations.groups",
    "PendingDelivery": "penstock.queue.inspect",
    "Pressure": "penstock.journal.description",
    "Projection": "penstock.entity.projection",
    "Queue": "penstock.surface.queue",
    "QueueConsumer": "penstock.queue.inspect",
    "QueueMessage": "penstock.queue.inspect",
    "QueuePolicy": "penstock.queue.policy",
    "QueueStats": "penstock.queue.inspect",
    "RebuildReport": "penstock.entity.states",
    "Receipt": "penstock.events",
    "ResultTicket": "penstock.queue.results",
    "Retry": "penstock.queue.policy",
    "Schedule": "penstock.queue.schedule",
    "Settings": "penstock.journal.catalog",
    "JournalSubscription": "penstock.surface.subscription",
    "Subscription": "penstock.surface.subscription",
    "Task": "penstock.queue.tasks",
    "Tasks": "penstock.queue.tasks",
    "Ticket": "penstock.ticket",
    "Topic": "penstock.surface.topic",
    "TopicConsumer": "penstock.journal.cursors",
    "Transaction": "penstock.surface.transaction",
    "TreeRoot": "penstock.entity.proof",
    "VerifyReport": "penstock.entity.receipts",
    "Watch": "penstock.entity.states",
    "Worker": "penstock.surface.worker",
    "check_proof": "penstock.entity.proof",
    "check_root": "penstock.entity.proof",
    "copy": "penstock.api",
    "current": "penstock.api",
    "describe": "penstock.api",
    "event": "penstock.schema",
    "gate": "penstock.entity.gate",
    "on": "penstock.entity.projection",
    "open": "penstock.api",
    "sign_root": "penstock.entity.proof",
    "upcast": "penstock.schema",
    "use": "penstock.api",
}
"""Where each public name lives. They are fetched when first asked for: a command that only prints its help, or a Spark
worker that decodes a block, should not pay for the rest. `__init__.pyi` says the same to type checkers."""

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
