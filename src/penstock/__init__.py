"""An embedded, durable event journal for Python.

Append events to topics in-process, follow them, take them as a queue, fold them into state; Spark reads and writes
them exactly once. Start with `penstock.open()`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import errors
    from penstock.api import Journal, Topic, Transaction, current, open, use
    from penstock.clock import Clock, ManualClock
    from penstock.entity.chain import CheckReport, VerifyReport
    from penstock.entity.exporting import ExportReport
    from penstock.entity.fence import Fence
    from penstock.entity.importing import ImportReport
    from penstock.entity.outbox import Outbox
    from penstock.entity.projection import Projection, on
    from penstock.entity.rebuild import RebuildReport
    from penstock.entity.watch import Watch
    from penstock.event import Draft, Event, Receipt
    from penstock.journal.catalog import Settings
    from penstock.journal.compaction import CompactReport
    from penstock.journal.journal import Description, Pressure
    from penstock.journal.subscription import Subscription
    from penstock.journal.worker import Worker
    from penstock.queue.delivery import Delivery
    from penstock.queue.inspect import Consumer as QueueConsumer
    from penstock.queue.inspect import PendingDelivery, QueueStats
    from penstock.queue.middleware import Middleware
    from penstock.queue.policy import QueuePolicy
    from penstock.queue.queue import Queue
    from penstock.queue.retry import Retry
    from penstock.queue.schedule import Schedule
    from penstock.schema import event, upcast
    from penstock.ticket import Ticket

__all__ = [
    "CheckReport",
    "Clock",
    "CompactReport",
    "Delivery",
    "Description",
    "Draft",
    "Event",
    "ExportReport",
    "Fence",
    "ImportReport",
    "Journal",
    "ManualClock",
    "Middleware",
    "Outbox",
    "PendingDelivery",
    "Pressure",
    "Projection",
    "Queue",
    "QueueConsumer",
    "QueuePolicy",
    "QueueStats",
    "RebuildReport",
    "Receipt",
    "Retry",
    "Schedule",
    "Settings",
    "Subscription",
    "Ticket",
    "Topic",
    "Transaction",
    "VerifyReport",
    "Watch",
    "Worker",
    "current",
    "errors",
    "event",
    "on",
    "open",
    "upcast",
    "use",
]

__version__ = "0.1.0"

_HOMES = {
    "CheckReport": ("penstock.entity.chain", "CheckReport"),
    "Clock": ("penstock.clock", "Clock"),
    "CompactReport": ("penstock.journal.compaction", "CompactReport"),
    "Delivery": ("penstock.queue.delivery", "Delivery"),
    "Description": ("penstock.journal.journal", "Description"),
    "Draft": ("penstock.event", "Draft"),
    "Event": ("penstock.event", "Event"),
    "ExportReport": ("penstock.entity.exporting", "ExportReport"),
    "Fence": ("penstock.entity.fence", "Fence"),
    "ImportReport": ("penstock.entity.importing", "ImportReport"),
    "Journal": ("penstock.api", "Journal"),
    "ManualClock": ("penstock.clock", "ManualClock"),
    "Middleware": ("penstock.queue.middleware", "Middleware"),
    "Outbox": ("penstock.entity.outbox", "Outbox"),
    "PendingDelivery": ("penstock.queue.inspect", "PendingDelivery"),
    "Pressure": ("penstock.journal.journal", "Pressure"),
    "Projection": ("penstock.entity.projection", "Projection"),
    "Queue": ("penstock.queue.queue", "Queue"),
    "QueueConsumer": ("penstock.queue.inspect", "Consumer"),
    "QueuePolicy": ("penstock.queue.policy", "QueuePolicy"),
    "QueueStats": ("penstock.queue.inspect", "QueueStats"),
    "RebuildReport": ("penstock.entity.rebuild", "RebuildReport"),
    "Receipt": ("penstock.event", "Receipt"),
    "Retry": ("penstock.queue.retry", "Retry"),
    "Schedule": ("penstock.queue.schedule", "Schedule"),
    "Settings": ("penstock.journal.catalog", "Settings"),
    "Subscription": ("penstock.journal.subscription", "Subscription"),
    "Ticket": ("penstock.ticket", "Ticket"),
    "Topic": ("penstock.api", "Topic"),
    "Transaction": ("penstock.api", "Transaction"),
    "VerifyReport": ("penstock.entity.chain", "VerifyReport"),
    "Watch": ("penstock.entity.watch", "Watch"),
    "Worker": ("penstock.journal.worker", "Worker"),
    "current": ("penstock.api", "current"),
    "event": ("penstock.schema", "event"),
    "on": ("penstock.entity.projection", "on"),
    "open": ("penstock.api", "open"),
    "upcast": ("penstock.schema", "upcast"),
    "use": ("penstock.api", "use"),
}
"""Where each public name lives. They are fetched when first asked for: a command that only prints its help, or a Spark
worker that decodes a block, should not pay for the rest."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        try:
            return import_module(f"penstock.{name}")  # penstock.errors, penstock.metrics …
        except ModuleNotFoundError as error:
            if error.name != f"penstock.{name}":
                raise
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    module, original = home
    value = globals()[name] = getattr(import_module(module), original)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """`penstock.event` is the decorator, also after somebody imported the module of that name."""

    @property
    def event(self) -> Any:
        return import_module("penstock.schema").event

    @event.setter
    def event(self, module: ModuleType) -> None:
        """Importing the module would put it here."""


sys.modules[__name__].__class__ = _Package
