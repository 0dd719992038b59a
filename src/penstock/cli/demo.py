"""The demo: a journal with activity, and the console open on it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.command import CommandContext, command
from penstock.cli.values import PORT
from penstock.core.consuming.stopping import StopSignals
from penstock.errors import Closed, StorageError

if TYPE_CHECKING:
    from penstock import Delivery, Event, Journal
    from penstock.core.local.backend import LocalJournal


Act = tuple[str, str, str]
"""An act of the story: the action, the page of the console that shows it, and the thing to look at there."""

SECONDS = 30.0
"""The default length of the demo, and the maximum length of its story. A longer demo repeats the story."""


@command("demo", "penstock demo", "penstock demo --seconds 300 --keep", "penstock demo --failover")
@click.option("--seconds", type=click.FloatRange(1, 86400), default=SECONDS, help="how long it lives")
@click.option("--port", type=PORT, default=0, help="the console's port; 0 for any that is free")
@click.option("--keep", is_flag=True, help="leave the journal behind, and say where it is")
@click.option("--no-browser", is_flag=True, help="do not open the console in a browser")
@click.option("--failover", is_flag=True, help="instead: two processes on object storage, one killed, counts compared")
def demo(context: CommandContext, seconds: float, port: int, keep: bool, no_browser: bool, failover: bool) -> None:
    """Shows a journal that lives: a shop that sells, workers, failures, and the console open on it.

    It makes its own journal in a temporary folder, which it removes at the end. It says what happens, and what to click
    in the console. Ctrl-C ends it early.
    """
    import logging

    from penstock.api import open_local
    from penstock.server.running import bind

    if context.url is not None:
        raise click.UsageError("the demo makes a journal of its own: leave --url out; --keep keeps the journal")
    if failover:
        show_failover(context)
        return
    listening = bind("127.0.0.1", port)
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    log = logging.getLogger("penstock")
    level = log.level
    try:
        log.setLevel(logging.CRITICAL)  # handlers fail on purpose; the console shows it
        with open_local(folder / "shop.db") as journal, _served(journal, listening) as url, StopSignals() as stop:
            if not no_browser and context.out.isatty() and _has_browser():
                click.launch(url)
            shop = DemoShop(journal, min(1.0, seconds / SECONDS))
            shop.open()
            try:
                _tell(context, shop, url, seconds, stop)
            finally:
                shop.close()
    finally:
        log.setLevel(level)
        listening.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if not keep:
        context.line("\nEverything was removed. Now yours: penstock append --create orders placed '{\"total\": 9.5}'")
    elif context.json:
        context.document({"kept": str(folder / "shop.db")})
    else:
        context.line(f"\nThe journal stays: penstock serve --url {folder / 'shop.db'}")


def _has_browser() -> bool:
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@contextmanager
def _served(journal: LocalJournal, listening: socket.socket) -> Iterator[str]:
    """Serves the console over a journal from a thread of this process while the block runs."""
    from penstock.server.running import make_server

    server = make_server(journal)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join()


def _tell(context: CommandContext, shop: DemoShop, url: str, seconds: float, stop: StopSignals) -> None:
    """Prints the story of the demo: what happens when, and where to look."""
    began = time.monotonic()

    def say(text: str, path: str, look: str) -> None:
        passed = time.monotonic() - began
        if context.json:
            context.document({"seconds": round(passed, 1), "says": text, "url": url + path, "look": look})
        else:
            context.line(f"{passed:5.1f} s  {text}")
            context.line(f"         → {url}{path}  {look}", "dim")
        context.flush()

    say(f"a shop opens for {seconds:g} seconds, and its console with it", "/", "rates, backlogs, lags, live")
    for at, act in _acts(seconds):
        if stop.wait(began + at - time.monotonic()):
            break
        say(*act(shop))
    stop.wait(began + seconds - time.monotonic())
    orders = shop.journal.topic("orders").latest
    say(f"the shop closes: {orders:,} orders, {shop.sent:,} emails sent, {shop.given_up():,} given up", "/", "the end")


def _acts(seconds: float) -> Iterator[tuple[float, Callable[[DemoShop], Act]]]:
    """Yields the acts of a demo, each with the number of seconds before it.

    The story comes first; its failures are repeated until the demo ends.
    """
    period = min(seconds, SECONDS)
    for told in count():
        for share, act in STORY if told == 0 else STORY[OPENING:]:
            at = (told + share) * period
            if at > seconds:
                return
            yield at, act


def _orders(shop: DemoShop) -> Act:
    return "orders come in", "/topics/orders", "click an event: its payload, its causes and effects"


def _causes(shop: DemoShop) -> Act:
    return "each order causes a payment, an invoice and a mail", "/graph/order-1", "the whole chain of one order"


def _break_mail(shop: DemoShop) -> Act:
    shop.mail_works = False
    return "the mail server breaks: emails fail, and are tried again", "/queues/emails", "watch attempts and ages"


def _count_dead(shop: DemoShop) -> Act:
    text = f"{shop.given_up():,} emails were given up after three attempts: they are dead letters"
    return text, "/", "the console's first line says what is wrong: click it"


def _mend_mail(shop: DemoShop) -> Act:
    shop.mail_works = True
    text = "the mail server is mended; what was given up waits to be sent back"
    return text, "/queues/emails?tab=dead", "read the reasons, then press `Send all back`"


def _redrive(shop: DemoShop) -> Act:
    text = f"the demo sends back what you did not: {int(shop.emails.redrive()):,} emails"
    return text, "/queues/emails?tab=dead", "some fail again: their mailboxes do not exist"


STORY: tuple[tuple[float, Callable[[DemoShop], Act]], ...] = (
    (0.1, _orders),
    (0.2, _causes),
    (0.3, _break_mail),
    (0.5, _count_dead),
    (0.6, _mend_mail),
    (0.8, _redrive),
)
"""The acts of the story. Each act comes after a share of the story's time."""
OPENING = 2
"""The number of acts that the demo tells only once."""


# ── The shop: it sells, sends emails that fail at times, bills, and reports ──


GOODS = {"apples": 3.2, "bread": 4.5, "coffee": 9.9, "dates": 6.0, "eggs": 5.1, "figs": 7.4}
CUSTOMERS = ("ada", "ben", "cleo", "dan", "eve", "finn", "gus", "hana")


class DemoShop:
    """The producers, workers and failures over one journal, from `open` to `close`."""

    def __init__(self, journal: Journal, pace: float) -> None:
        """Sets up the demo.

        `pace` scales the times of failures and retries, which are made for a demo of 30 seconds.
        """
        self.journal = journal
        self.mail_works = True
        self.sent = 0
        self._ending = threading.Event()
        from penstock.core.queue.policy import Retry

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
        """Starts the sales."""
        self._seller.start()
        for worker in self._workers:
            worker.start()
        self._billing.start()

    def close(self) -> None:
        """Ends the day: current work is finished."""
        self._ending.set()
        self._seller.join()
        self._billing.stop()
        for worker in self._workers:
            worker.stop()

    def given_up(self) -> int:
        """Returns the number of emails that are dead letters."""
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


# ── Two processes, one journal in object storage, one kill: what `penstock demo --failover` shows ──


BEFORE = 200
"""The number of events that the first process has acknowledged when it is killed, and the number that the second
process acknowledges after it.
"""

_WRITER = """
import sys
import penstock
import penstock.engines.slatedb.engine
print("stands by", flush=True)
journal = penstock.open(sys.argv[1], standby=True)
print("writes", flush=True)
while True:
    print(journal.topic("orders").append("placed", {"by": sys.argv[2]}).seq, flush=True)
"""


def show_failover(context: CommandContext) -> None:
    """Kills the writing process, lets the standby process continue, and compares the journal with the
    acknowledgements that both received.
    """
    import penstock.engines.slatedb.engine  # noqa: F401 - what is not installed is said here, not by processes that end
    from penstock.api import open_local

    with tempfile.TemporaryDirectory(prefix="penstock-failover-") as folder:
        url = f"slatedb:{Path(folder) / 'shop'}"
        first = _FailoverWriter(url, "the first")
        try:
            first.read(2)
            context.line("one process writes a journal in (what stands for) a bucket, another one stands by")
            second = _FailoverWriter(url, "the second")
            try:
                second.read(1)  # the start-up time of an interpreter is not part of a takeover
                first.read(2 + BEFORE)
                first.process.kill()
                killed = time.monotonic()
                first.read_rest()
                context.line(f"the first was killed after {len(first.acknowledged)} acknowledged events")
                second.read(3)
                took = time.monotonic() - killed
                context.line(f"the second acknowledged its first event {took:.1f} s later")
                second.read(2 + BEFORE)
            finally:
                second.process.kill()
                second.read_rest()
        finally:
            first.process.kill()
            first.process.wait()
        with open_local(url, read_only=True) as journal:
            kept = {event.seq for event in journal.topic("orders").read()}
    promised = first.acknowledged + second.acknowledged
    lost = len(set(promised) - kept)
    twice = len(promised) - len(set(promised))
    context.record(
        {
            "acknowledged": len(promised),
            "of them there": len(promised) - lost,
            "lost": lost,
            "given twice": twice,
            "seconds to take over": round(took, 1),
        }
    )
    if lost or twice:
        raise StorageError(f"{lost} acknowledged events are missing, {twice} positions were given twice")


class _FailoverWriter:
    """A process that appends continuously, and the positions that were acknowledged to it."""

    def __init__(self, url: str, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, url, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._lines = 0
        self.acknowledged: list[int] = []

    def read(self, lines: int) -> None:
        """Waits until the process has printed so many lines in all."""
        assert self.process.stdout is not None
        while self._lines < lines:
            line = self.process.stdout.readline()
            if not line:
                raise StorageError("a process of the demonstration ended by itself")
            self._record(line)

    def read_rest(self) -> None:
        """Reads the rest of a killed process's output, without an incomplete last line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                self._record(line)
        self.process.stdout.close()
        self.process.wait()

    def _record(self, line: str) -> None:
        self._lines += 1
        if line.strip().isdigit():
            self.acknowledged.append(int(line))
