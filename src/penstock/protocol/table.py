"""Every operation there is."""

from __future__ import annotations

from typing import Any

from penstock.protocol import bulk, deliveries, journal, queues, topics
from penstock.protocol.operation import Operation

OPERATIONS: tuple[Operation[Any], ...] = (
    *journal.OPERATIONS,
    *topics.OPERATIONS,
    *queues.OPERATIONS,
    *deliveries.OPERATIONS,
    *bulk.OPERATIONS,
)
