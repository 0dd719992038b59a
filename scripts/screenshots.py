"""Takes the pictures in docs/images with a real Chromium: the console over a shop that is busy meanwhile.

python scripts/screenshots.py            # needs playwright, Pillow and a chromium (or PENSTOCK_CHROMIUM)
python scripts/screenshots.py FOLDER     # instead: every page, desktop and phone, light and dark, to look at
"""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

import penstock
from penstock.core.observe.pipelines import FlowStatus, report
from penstock.server.running import bind, make_server

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
BUSY_SECONDS = float(os.environ.get("BUSY_SECONDS", "130"))
"""How long the shop is busy before the first picture: a worker of one queue ends before, and is gone by then."""
COLOURS = 160
"""Colours of a picture that is kept: enough for a page, and a third of the bytes."""
SIZES = {"desktop": (1440, 900), "phone": (390, 844)}
PAGES = {
    "overview": "/",
    "search": "/search?q=customer-7@",
    "topics": "/topics",
    "topic": "/topics/orders",
    "event": "/topics/orders/events/12",
    "queues": "/queues",
    "queue": "/queues/emails",
    "dead": "/queues/emails?tab=dead",
    "dead-found": "/queues/emails?tab=dead&dead-error=timeout&full=1",
    "message": "/topics/emails.dead/events/3",
    "original": "/queues/refunds?tab=dead",
    "dead-letter-queue": "/queues/emails.dead",
    "delayed": "/queues/thumbnails?state=delayed",
    "workers": "/workers",
    "workers-of-queue": "/queues/emails?tab=workers",
    "schedules-of-queue": "/queues/reports?tab=schedules",
    "groups": "/queues/newsletter?tab=groups",
    "policy": "/queues/emails?tab=policy",
    "schedules": "/schedules",
    "pipelines": "/pipelines",
    "buffers": "/buffers",
    "health": "/health",
    "api": "/docs",
    "lost": "/topics/ordres",
}
KEPT = {
    "desktop-light": ("overview", "queues", "queue", "dead", "message", "workers", "search", "pipelines", "lost"),
    "desktop-dark": ("overview", "dead", "workers"),
    "phone-light": ("overview", "dead", "message", "workers"),
    "phone-dark": ("queues", "message"),
}
"""The pictures that the docs show; of the first kind the name has no addition."""


SENDING = """
def handle(delivery, kind, seconds):
    with delivery:
        send(kind, seconds, delivery.payload["to"])

def send(kind, seconds, to):
    if kind < 0.6:
        connect(seconds)
    if kind < 0.9:
        raise ConnectionRefusedError(f"550 mailbox {to} is full")
    raise KeyError("customer_name")

def connect(seconds):
    raise TimeoutError(f"mail.example.com gave no answer within {seconds} s")
"""
"""The shop's own program, in a file of its own for tracebacks."""


tasks = penstock.Tasks()


@tasks.task(queue="parcels")
def pack_parcel(order: int, items: int) -> None:
    """Packs the parcel of an order in steps, and says how far it is."""
    penstock.step("reserve the stock", time.sleep, 0.3)
    for packed in range(items):
        penstock.progress(packed / items, f"{packed} of {items} items packed")
        penstock.step(f"pack item {packed + 1}", time.sleep, 0.8)
    penstock.step("print the label", time.sleep, 0.4)


@tasks.task(queue="parcels")
def weigh_parcel(order: int) -> float:
    time.sleep(0.1)
    return order % 7 + 0.4


class Shop:
    """Orders come, are paid and shipped; mails are sent, some in vain; a pipeline counts."""

    def __init__(self, journal: penstock.Journal) -> None:
        self.journal = journal
        self.emails = journal.queue("emails", max_attempts=2, dead_letter="emails.dead", lease=30, ttl=3600)
        self.thumbnails = journal.queue("thumbnails")
        self.refunds = journal.queue("refunds", max_attempts=1)
        self.invoices = journal.queue("invoices")
        self.newsletter = journal.queue("newsletter", mode="fanout")
        for group in ("mail", "push", "archive"):
            self.newsletter.add_group(group)
        reports = journal.queue("reports")
        reports.every("0 6 * * mon-fri", {"report": "sales"}, name="daily-sales", timezone="Europe/Berlin")
        reports.every(900, {"report": "stock"}, name="stock-levels")
        reports.pause()
        tasks.bind(journal)
        program: dict[str, Callable[[penstock.Delivery, float, int], None]] = {}
        exec(compile(SENDING, "/srv/shop/mail.py", "exec"), program)
        self.handle = program["handle"]
        self.flow = FlowStatus(
            pipeline="shop",
            flow="revenue",
            state="running",
            sources=["orders"],
            target="revenue",
            rows_per_second=61.0,
            lag=120,
            batch=41,
            batch_seconds=1.4,
            rows=18_240,
            started_at=datetime.now(UTC),
        )

    def run(self, stopping: threading.Event) -> None:
        chance, number, journal = random.Random(7), 0, self.journal
        orders, payments, shipments = (journal.topic(name) for name in ("orders", "payments", "shipments"))
        begun = time.monotonic()
        packers = [worker for n in (1, 2) for worker in tasks.workers(consumer=f"packer-{n}")]
        for worker in packers:
            worker.start()
        while not stopping.wait(0.05):
            for _ in range(chance.randint(1, 6)):
                number += 1
                total = round(chance.lognormvariate(3.5, 0.8), 2)
                customer = f"customer-{chance.randint(1, 90)}"
                tags = (f"country:{chance.choice(('de', 'fr', 'pl'))}", *(("large",) if total > 90 else ()))
                placed = orders.append("order.placed", {"order": number, "total": total}, key=customer, tags=tags)
                if chance.random() < 0.8:
                    paid = payments.append("payment.received", {"order": number, "amount": total}, cause=placed)
                    if chance.random() < 0.6:
                        parcels = chance.randint(1, 3)
                        shipments.append("shipment.sent", {"order": number, "parcels": parcels}, cause=paid)
                self.emails.push({"to": f"{customer}@example.com", "order": number}, kind="receipt", cause=placed)
                if number % 3 == 0:
                    self.thumbnails.push({"image": f"product-{number}.jpg"}, delay=chance.choice((0, 0, 300)))
                if number % 97 == 0:
                    self.newsletter.push({"issue": number // 97, "title": "What is new"})
                if number % 5 == 0:
                    self.invoices.push({"order": number, "total": total, "customer": customer})
                if number % 150 == 0:
                    pack_parcel.push(number, chance.randint(2, 9))
                    weigh_parcel.push(number)
                if number % 400 == 0:
                    self.refunds.push({"order": number, "total": total})
            self._work(chance)
            if time.monotonic() - begun < BUSY_SECONDS - 75:  # then the only worker of this queue is killed
                for delivery in self.invoices.take_many(2, consumer="printer", lease=20):
                    delivery.ack()
            for consumer, share in (("billing", 1.0), ("warehouse", 0.97), ("analytics", 0.8)):
                orders.commit(consumer, int(orders.latest * share))
            if number % 20 == 0:
                self._report(number)
        for worker in packers:
            worker.stop()

    def _work(self, chance: random.Random) -> None:
        for delivery in self.emails.take_many(chance.randint(2, 5), consumer=f"mailer-{chance.randint(1, 3)}"):
            outcome = chance.random()
            if outcome < 0.03:
                self._fail(delivery, chance)
            elif outcome < 0.995:
                delivery.ack()
        for delivery in self.thumbnails.take_many(3, consumer="resizer"):
            delivery.ack()
        for delivery in self.refunds.take_many(1, consumer="cashier"):
            delivery.nack(error="PaymentError: the card has expired")
        for group in ("mail", "push", "archive"):
            for delivery in self.newsletter.take_many(1, group=group, consumer=f"{group}-1"):
                delivery.ack()

    def _fail(self, delivery: penstock.Delivery, chance: random.Random) -> None:
        """A mail server does not answer, or refuses; one mail in ten cannot be written at all."""
        with suppress(OSError, KeyError):
            self.handle(delivery, chance.random(), chance.choice((10, 20, 30)))

    def _report(self, number: int) -> None:
        flow = self.flow
        flow.rows, flow.batch, flow.reported_at = number, number // 20, datetime.now(UTC)
        failed = FlowStatus(
            pipeline="shop",
            flow="customers",
            state="failed",
            sources=["orders", "payments"],
            target="customers",
            restarts=3,
            started_at=flow.started_at,
            error="AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column or function parameter with name "
            "`amuont` cannot be resolved. Did you mean one of the following? [`amount`, `order`, `kind`].",
        )
        report(self.journal, [flow, failed])


def look(page: Page, address: str) -> None:
    page.goto(address)
    if page.locator("#state").count():
        page.locator("#state").filter(has_text="live").wait_for()
    page.wait_for_timeout(1500)


def shoot_everything(browser: Browser, url: str, folder: Path) -> None:
    for scheme in ("light", "dark"):
        for size, (width, height) in SIZES.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page = context.new_page()
            for name, path in PAGES.items():
                look(page, url + path)
                page.screenshot(path=folder / f"{name}-{size}-{scheme}.png", full_page=True)
            context.close()


def look_at_a_message(page: Page) -> None:
    """Opens the sheet of a dead letter beside its list."""
    page.locator("#dead tbody tr td.error").filter(has_text="TimeoutError").first.click()
    page.locator("#inspector .failure").wait_for()
    page.wait_for_timeout(300)


def shoot_docs(browser: Browser, url: str) -> None:
    for kind, names in KEPT.items():
        size, scheme = kind.split("-")
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        for name in names:
            look(page, url + PAGES["dead" if name == "message" else name])
            if name == "message":
                look_at_a_message(page)
            elif name == "dead" and size == "phone":
                page.locator("#dead-section").scroll_into_view_if_needed()
                page.mouse.wheel(0, 520)
                page.wait_for_timeout(300)
            keep(page, IMAGES / (f"{name}.png" if kind == "desktop-light" else f"{name}-{kind}.png"))
        context.close()


def keep(page: Page, path: Path) -> None:
    """Keeps a picture of what a screen shows, with few colours."""
    from PIL import Image

    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    chromium = os.environ.get("PENSTOCK_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("no Chromium here: apt-get install chromium, or name one with PENSTOCK_CHROMIUM")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    (folder or IMAGES).mkdir(parents=True, exist_ok=True)
    stopping = threading.Event()
    with (
        tempfile.TemporaryDirectory() as place,
        penstock.open(Path(place) / "shop.db", durability="process") as journal,
    ):
        working = threading.Thread(target=Shop(journal).run, args=(stopping,), daemon=True)
        working.start()
        listening = bind("127.0.0.1", 0)
        server = make_server(journal)
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        serving.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(url)
            time.sleep(BUSY_SECONDS)  # a chart needs a past
            page.close()
            if folder is None:
                shoot_docs(browser, url)
            else:
                shoot_everything(browser, url, folder)
            browser.close()
        stopping.set()
        working.join()
        server.config.app.state.service.stop()  # type: ignore[union-attr]
        server.should_exit = True
        serving.join()


if __name__ == "__main__":
    main()
