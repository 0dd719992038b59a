"""An embedded, durable event journal for Python.

Append events to topics in-process, follow them, take them as a queue, fold them into state; Spark reads and writes
them exactly once. Start with `penstock.open()`.
"""

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
