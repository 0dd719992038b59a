"""An embedded, durable event journal for Python.

Append events to topics in-process, follow them, take them as a queue, fold them into state; Spark reads and writes
them exactly once. Start with `penstock.open()`.
"""

from penstock import errors
from penstock.api import Journal, Topic, Transaction, current, open, use
from penstock.clock import Clock, ManualClock
from penstock.event import Draft, Event, Receipt
from penstock.journal.catalog import Settings
from penstock.journal.compaction import CompactReport
from penstock.journal.journal import Description, Pressure
from penstock.journal.subscription import Subscription
from penstock.journal.worker import Worker
from penstock.ticket import Ticket

__all__ = [
    "Clock",
    "CompactReport",
    "Description",
    "Draft",
    "Event",
    "Journal",
    "ManualClock",
    "Pressure",
    "Receipt",
    "Settings",
    "Subscription",
    "Ticket",
    "Topic",
    "Transaction",
    "Worker",
    "current",
    "errors",
    "open",
    "use",
]

__version__ = "0.1.0"
