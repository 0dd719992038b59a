"""Takes the pictures in docs/images with a real Chromium.

They are of the journal that the browser tests look at (a thousand topics, a hundred thousand messages, hostile names),
in which a shop is busy while they are taken.

python scripts/screenshots.py            # needs playwright and a chromium (or PENSTOCK_CHROMIUM)
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "tests"))

import penstock  # noqa: E402
from penstock.server.running import bind, make_server  # noqa: E402
from server.crowded import fill  # noqa: E402

BUSY_SECONDS = 90.0


def keep_shop(journal: penstock.Journal, stopping: threading.Event) -> None:
    """Orders come, are paid and shipped; mails are sent, some in vain."""
    chance = random.Random(7)
    orders, payments, shipments = (journal.topic(name) for name in ("orders", "payments", "shipments"))
    emails = journal.queue("emails", max_attempts=1, dead_letter="emails.dead", lease=30)
    thumbnails = journal.queue("thumbnails")
    number = 0
    while not stopping.wait(0.05):
        for _ in range(chance.randint(1, 12)):
            number += 1
            total = round(chance.lognormvariate(3.5, 0.8), 2)
            customer = f"customer-{chance.randint(1, 90)}"
            placed = orders.append("order.placed", {"order": number, "total": total}, key=customer)
            if chance.random() < 0.8:
                paid = payments.append("payment.received", {"order": number, "amount": total}, cause=placed)
                if chance.random() < 0.6:
                    shipments.append("shipment.sent", {"order": number, "parcels": chance.randint(1, 3)}, cause=paid)
            emails.push({"to": f"{customer}@example.com", "order": number})
            if number % 3 == 0:
                thumbnails.push({"image": f"product-{number}.jpg"}, delay=chance.choice((0, 0, 20)))
        for delivery in emails.take_many(chance.randint(4, 8), consumer=f"mailer-{chance.randint(1, 3)}"):
            outcome = chance.random()
            if outcome < 0.03:
                delivery.nack(error=chance.choice(("SMTPError: 550 mailbox full", "TimeoutError: no answer in 10 s")))
            elif outcome < 0.9:
                delivery.ack()
        for consumer, share in (("billing", 1.0), ("warehouse", 0.97), ("analytics", 0.8)):
            orders.commit(consumer, int(orders.latest * share))


def shoot(page: Any, url: str, path: str, name: str) -> None:
    page.goto(url + path)
    page.locator("#state").filter(has_text="live").wait_for()
    page.wait_for_timeout(2500)
    page.screenshot(path=IMAGES / f"{name}.png")


def main() -> None:
    chromium = os.environ.get("PENSTOCK_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        sys.exit("no Chromium here: apt-get install chromium, or name one with PENSTOCK_CHROMIUM")
    IMAGES.mkdir(exist_ok=True)
    stopping = threading.Event()
    with tempfile.TemporaryDirectory() as folder, penstock.open(Path(folder) / "shop.db", durability="process") as shop:
        fill(shop)
        shop.queue("reports").every(
            "0 6 * * mon-fri", {"report": "sales"}, name="daily-sales", timezone="Europe/Berlin"
        )
        listening = bind("127.0.0.1", 0)
        server = make_server(shop)
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        working = threading.Thread(target=keep_shop, args=(shop, stopping), daemon=True)
        serving.start()
        working.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
                page = context.new_page()
                if scheme == "light":
                    page.goto(url)
                    time.sleep(BUSY_SECONDS)  # a chart needs a past
                    shoot(page, url, "/", "overview")
                    shoot(page, url, "/queues/emails", "queue")
                    shoot(page, url, "/queues/thumbnails/messages?state=delayed", "messages")
                    page.set_viewport_size({"width": 390, "height": 844})
                    shoot(page, url, "/", "phone")
                    page.set_viewport_size({"width": 1440, "height": 900})
                    shoot(page, url, "/topics/orders", "topic")
                    page.locator("#tail li .kind").nth(4).click()
                    page.locator("#inspector .json").wait_for()
                    page.locator("#filters").scroll_into_view_if_needed()
                    page.screenshot(path=IMAGES / "topic.png", full_page=False)
                else:
                    shoot(page, url, "/", "overview-dark")
                context.close()
            browser.close()
        stopping.set()
        working.join()
        shop_server = server.config.app
        shop_server.state.service.stop()  # type: ignore[union-attr]
        server.should_exit = True
        serving.join()


if __name__ == "__main__":
    main()
