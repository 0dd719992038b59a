"""The shop that `penstock demo` shows: it sells, sends emails that fail at times, bills, and reports."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from penstock.errors import Closed
from penstock.events import Event
from penstock.queue.retry import Retry
from penstock.surface.delivery import Delivery
from penstock.surface.journal import Journal

GOODS = {"apples": 3.2, "bread": 4.5, "coffee": 9.9, "dates": 6.0, "eggs": 5.1, "figs": 7.4}
CUSTOMERS = ("ada", "ben", "cleo", "dan", "eve", "finn", "gus", "hana")


class DemoShop:
    """Producers, workers and failures over one journal, from `open` to `close`."""

    def __init__(self, journal: Journal, pace: float) -> None:
        """`pace` is how much faster or slower than a demo of 30 seconds things go wrong and are tried again."""
        self.journal = journal
        self.mail_works = True
        self.sent = 0
        self._ending = threading.Event()
        retry = Retry.fixed(max(0.05, pace))
        self.emails = journal.queue("emails", max_attempts=3, retry=retry, dead_letter="emails.dead")
        self.reports = journal.queue("reports")
        self.reports.every(max(1.0, 5 * pace), {"report": "revenue"}, name="revenue")
        self._seller = threading.Thread(target=self._sell, name="demo-seller", daemon=True)
        self._workers = [
            self.emails.worker(self._send, concurrency=2, consumer="mailer"),
            self.reports.worker(self._report, consumer="reporter"),
        ]
        self._billing = journal.topic("orders").worker("billing", self._bill)

    def open(self) -> None:
        """Begins to sell."""
        self._seller.start()
        for worker in self._workers:
            worker.start()
        self._billing.start()

    def close(self) -> None:
        """Ends the day: everything in hand is finished."""
        self._ending.set()
        self._seller.join()
        self._billing.stop()
        for worker in self._workers:
            worker.stop()

    def given_up(self) -> int:
        """Emails that became dead letters and still are."""
        return len(self.journal.queue("emails.dead"))

    def _sell(self) -> None:
        chance = random.Random(7)
        number = 0
        orders, payments = self.journal.topic("orders"), self.journal.topic("payments")
        with suppress(Closed):
            while not self._ending.wait(chance.uniform(0.02, 0.12)):
                number += 1
                customer, good = chance.choice(CUSTOMERS), chance.choice(list(GOODS))
                order = {"order": number, "good": good, "total": round(GOODS[good] * chance.randint(1, 9), 2)}
                placed = orders.append("placed", order, key=customer, correlation=f"order-{number}")
                payments.append("paid", {"order": number, "total": order["total"]}, key=customer, cause=placed)
                mailbox = "no-such-mailbox" if number % 12 == 0 else customer
                self.emails.push({"to": f"{mailbox}@example.com", "order": number}, kind="receipt", cause=placed)

    def _send(self, delivery: Delivery) -> None:
        time.sleep(0.03)
        if not self.mail_works:
            raise ConnectionError("the mail server does not answer")
        if delivery.payload["to"].startswith("no-such-mailbox"):
            raise ValueError(f"{delivery.payload['to']} does not exist")
        self.journal.topic("mails").append("sent", delivery.payload, cause=delivery.event)
        self.sent += 1

    def _bill(self, events: Iterable[Event]) -> None:
        for event in events:
            self.journal.topic("invoices").append("billed", event.payload, key=event.key, cause=event)

    def _report(self, delivery: Delivery) -> None:
        self.journal.topic("revenue").append("counted", {"orders": self.journal.topic("orders").latest})
