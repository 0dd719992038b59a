"""Who handles the alerts: workers that fail now and then, and some messages that no worker can handle until a fix."""

from __future__ import annotations

import threading
import zlib

import penstock
from penstock import Delivery, Retry

POLICY = {"max_attempts": 3, "retry": Retry.fixed(0.05), "dead_letter": "alerts.dead"}


class Desk:
    """Handles each alert once: the note that it was handled and the acknowledgement are one transaction."""

    def __init__(self, journal: penstock.Journal) -> None:
        self.journal = journal
        self.queue = journal.queue("alerts", **POLICY)
        self.fixed = False
        self.failures = 0
        self._lock = threading.Lock()

    def handle(self, delivery: Delivery) -> None:
        """Handles an alert; an exception gives the message back."""
        number = zlib.crc32(delivery.payload["number"].encode())
        if number % 5 == 0 and delivery.attempt == 1:
            self._fail("the partner's service timed out")
        if number % 10 == 1 and not self.fixed:
            self._fail("the partner's service knows no such customer")
        with self.journal.transaction() as tx:
            tx.append("handled", "alert.handled", {"number": delivery.payload["number"]}, cause=delivery.event)
            tx.ack(delivery)

    def _fail(self, reason: str) -> None:
        with self._lock:
            self.failures += 1
        raise ConnectionError(reason)
