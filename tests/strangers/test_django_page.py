"""The example of Django in a browser: orders are placed, receipts are sent, and a worker is killed meanwhile."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from server.browser import browser  # noqa: F401
from waiting import eventually

SHOP = Path(__file__).resolve().parents[2] / "examples" / "django_shop"


class Shop:
    """The example's server, and a worker that can be killed."""

    def __init__(self, home: Path, port: int) -> None:
        self._environ = {**os.environ, "SHOP_HOME": str(home), "DJANGO_SETTINGS_MODULE": "shop.settings"}
        self.url = f"http://127.0.0.1:{port}/"
        subprocess.run(self._command("migrate", "-v", "0"), env=self._environ, cwd=SHOP, check=True)
        self.server = self._start("runserver", "--noreload", f"127.0.0.1:{port}")
        self.worker = self.start_worker()

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "manage.py", *words]

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(self._command(*words), env=self._environ, cwd=SHOP, **quiet)

    def start_worker(self) -> subprocess.Popen[bytes]:
        self.worker = self._start("penstock_worker", "--no-reload")
        return self.worker

    def stop(self) -> None:
        for process in (self.server, self.worker):
            process.kill()
            process.wait()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    running = Shop(tmp_path, port)
    yield running
    running.stop()


@pytest.mark.nightly("strangers-django")
def test_orders_are_placed_and_their_receipts_sent(browser: Browser, shop: Shop) -> None:  # noqa: F811
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(shop.url.split(":")[2].strip("/")))) == 0

    eventually(answers)
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(shop.url)

    def order(email: str) -> None:
        page.fill("[name=email]", email)
        page.fill("[name=total]", "9.50")
        page.click("button")

    order("ada@example.com")
    expect(page.locator("tr", has_text="ada@example.com")).to_contain_text("receipt sent to ada@example.com")
    order("bob@example.invalid")
    failed = page.locator("tr", has_text="bob@example.invalid")
    expect(failed.locator(".failed")).to_have_text("FAILED")
    expect(failed).to_contain_text("ConnectionError: no mail server takes mail")
    order("eve@example.com")
    late = page.locator("tr", has_text="eve@example.com")
    expect(late.locator(".running")).to_have_text("RUNNING")
    shop.worker.kill()
    shop.worker.wait()
    shop.start_worker()
    expect(late).to_contain_text("receipt sent to eve@example.com")
    expect(late.locator("td").nth(4)).to_have_text(re.compile("[12]"))
    page.fill("[name=email]", "no address")
    page.click("button")
    assert page.locator("tbody tr").count() == 3
    assert complaints == []
    page.close()
