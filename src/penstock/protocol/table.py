"""Every operation there is."""

from __future__ import annotations

from penstock.protocol import bulk, deliveries, journal, messages, queues, topics
from penstock.protocol.operation import Operation

OPERATIONS: tuple[Operation[object], ...] = (
    *journal.OPERATIONS,
    *topics.OPERATIONS,
    *queues.OPERATIONS,
    *messages.OPERATIONS,
    *deliveries.OPERATIONS,
    *bulk.OPERATIONS,
)
