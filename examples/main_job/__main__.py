"""`make run`: a shop's day. Producers sell, Spark counts, workers call; Spark is killed; the books are proven right."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import penstock
from examples.main_job import chart, proof
from examples.main_job.desk import POLICY, Desk
from penstock.core.observe.pipelines import status
from penstock.spark import seal

PIPELINE = Path(__file__).with_name("pipeline.py")
FLOWS = ("revenue", "customers", "alerts")
PATIENCE = 300.0
"""Seconds to wait for anything; on two cores nothing takes longer than twenty."""
SILENCE = 4.0
"""Seconds after which a story that waits says what it waits for."""


class Story:
    """One run: the folder it leaves behind, and what happened when."""

    def __init__(self, folder: Path, orders: int, seconds: float, master: str | None = None) -> None:
        self.folder = folder
        self.orders = orders
        self.seconds = seconds
        self.master = master
        self.url = str(folder / "shop.db")
        self.buffer = f"file://{(folder / 'buffer').resolve()}"
        self.began = self.said = time.monotonic()
        self.moments: list[chart.Moment] = []
        self.events: list[tuple[float, str]] = []
        self.lines: list[str] = []
        self.totals = chart.Totals(0, 0, 0, 0, 0, 0)
        self.processes: list[subprocess.Popen[bytes]] = []

    def say(self, text: str = "") -> None:
        line = f"{time.monotonic() - self.began:6.1f} s  {text}" if text else ""
        self.lines.append(line)
        self.said = time.monotonic()
        print(line, flush=True)

    def tell_progress(self, journal: penstock.Journal, pid: int) -> None:
        """Shows the present work of Spark, on the screen only."""
        flows = [flow for flow in status(journal) if flow.pid == pid]
        doing = [f"{one.flow} {one.state}" + ("" if one.batch is None else f" (batch {one.batch})") for one in flows]
        orders = f"{journal.topic('orders').latest:,} orders stored, {counted(journal):,} counted"
        spark = ", ".join(doing) if flows else "Spark's JVM is starting"
        self.said = time.monotonic()
        print(f"{self.said - self.began:6.1f} s    … {orders}: {spark}", flush=True)

    def mark(self, what: str) -> None:
        self.events.append((time.monotonic() - self.began, what))

    # ── who takes part ───────────────────────────────────────────────────────────────────────────────────────────────
    def start_pipeline(self) -> subprocess.Popen[bytes]:
        """`penstock run pipeline.py`, as anybody would run it; what it says goes to a file."""
        command = [sys.executable, "-m", "penstock.cli", "run", str(PIPELINE), "--url", self.url]
        command += ["--master", self.master] if self.master else []
        env = {**os.environ, "SHOP_BUFFER": self.buffer, "ORDERS_PER_BATCH": str(max(self.orders // 6, 1))}
        with (self.folder / "pipeline.log").open("ab") as log:
            return self._start(command, stdout=log, stderr=log, env=env)

    def start_producers(self) -> list[subprocess.Popen[bytes]]:
        raw = self.folder / "raw"
        raw.mkdir()
        share = self.orders // 4
        ways = [("journal", self.url)] * 3 + [("buffer", self.buffer)]
        started = []
        for number, (way, url) in enumerate(ways, 1):
            given = [way, url, str(number), str(share), str(self.seconds), str(raw / f"{number}.jsonl")]
            started.append(self._start([sys.executable, "-m", "examples.main_job.producers", *given]))
        return started

    def start_console(self) -> str:
        """`penstock serve` on a free port; returns its address."""
        command = [sys.executable, "-m", "penstock.cli", "serve", "--url", self.url, "--port", "0", "--json"]
        command += ["--buffer", f"orders={self.buffer}"]
        with (self.folder / "console.log").open("ab") as log:
            process = self._start(command, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        return str(json.loads(process.stdout.readline())["url"])

    def _start(self, command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        self.processes.append(subprocess.Popen(command, **how))
        return self.processes[-1]

    def clear_up(self) -> None:
        """Leaves nothing running, however the story ended."""
        for process in self.processes:
            if process.poll() is not None:
                continue
            if process.stdout is not None:  # the console, which closes its journal when it is asked to end
                process.terminate()
                process.communicate()
                continue
            process.kill()
            process.wait()

    def watch(self, journal: penstock.Journal, done: threading.Event) -> None:
        """Notes every quarter second how far everybody is, for the picture."""
        orders, handled = journal.topic("orders"), journal.topic("handled")
        with suppress(penstock.errors.Closed):  # an interrupted story
            ended = False
            while not ended:
                ended = done.wait(0.25)  # and once more at the end
                at = time.monotonic() - self.began
                self.moments.append(chart.Moment(at, orders.latest, counted(journal), handled.latest))

    def wait(
        self, until: Callable[[], bool], *alive: subprocess.Popen[bytes], journal: penstock.Journal | None = None
    ) -> None:
        deadline = time.monotonic() + PATIENCE
        while not until():
            if journal is not None and time.monotonic() - self.said > SILENCE:
                self.tell_progress(journal, alive[0].pid)
            for process in alive:
                if process.poll():
                    log = (self.folder / "pipeline.log").read_text(errors="replace")
                    sys.exit(f"a part of the job ended with code {process.returncode}:\n{log[-3000:]}")
            if time.monotonic() > deadline:
                sys.exit(f"waited {PATIENCE:.0f} s for nothing; what the pipeline said: {self.folder / 'pipeline.log'}")
            time.sleep(0.05)


def counted(journal: penstock.Journal) -> int:
    """Returns the number of orders that the slowest flow has counted."""
    orders = journal.topic("orders")
    return min(orders.cursor(f"pipeline/{flow}") or 0 for flow in FLOWS)


def tell(story: Story, journal: penstock.Journal) -> bool:
    """The story, from the first order to the proof."""
    orders = journal.topic("orders")
    orders.configure()
    desk = Desk(journal)
    done = threading.Event()
    total = story.orders // 4 * 4
    story.say(f"a journal in {story.url}: {total:,} orders will come, from three processes and through a buffer")
    story.say(f"the console is open for as long as this runs: {story.start_console()}")
    pipeline = story.start_pipeline()
    story.say("Spark is starting: revenue by half hour, a state for every customer, alerts for large orders")
    producers = story.start_producers()
    watcher = threading.Thread(target=story.watch, args=(journal, done), daemon=True)
    watcher.start()
    worker = desk.queue.worker(desk.handle, concurrency=2).start()

    story.wait(lambda: counted(journal) > 0, pipeline, *producers, journal=journal)
    pipeline.kill()
    pipeline.wait()
    behind = orders.latest - counted(journal)
    story.mark(
        f"Spark is killed (kill -9) in the middle of a batch: {counted(journal):,} orders counted, {behind:,} wait"
    )
    story.say(f"Spark is killed (kill -9) in the middle of it: {counted(journal):,} orders behind it, work in hand")
    pipeline = story.start_pipeline()
    story.mark("Spark is started again: it takes up the batch that the kill broke off")
    story.wait(lambda: all(process.poll() == 0 for process in producers), pipeline, *producers, journal=journal)
    story.wait(lambda: orders.latest >= total, pipeline, journal=journal)
    story.mark(f"all sold: {orders.latest:,} orders stored, a quarter of them through the buffer")
    story.say(f"all sold: {orders.latest:,} orders stored")
    story.wait(lambda: counted(journal) >= total, pipeline, journal=journal)
    story.mark(f"Spark has caught up: {counted(journal):,} orders counted, each once")
    pipeline.terminate()
    if pipeline.wait(PATIENCE):
        sys.exit(f"the pipeline did not end well; see {story.folder / 'pipeline.log'}")
    story.say("the pipeline has caught up, and was stopped between two batches (SIGTERM)")

    story.wait(lambda: len(desk.queue) == 0)
    dead = journal.queue(str(POLICY["dead_letter"]))
    story.say(f"{desk.failures:,} calls failed; {len(dead):,} alerts were given up after three: dead letters")
    desk.fixed = True
    redriven = desk.queue.redrive()
    story.wait(lambda: len(desk.queue) == 0)
    handled = journal.topic("handled").latest
    story.mark(f"the cause is fixed: {redriven:,} dead letters are sent back, {handled:,} alerts handled in all")
    story.say(f"the cause is fixed, {redriven:,} dead letters are sent back: {handled:,} alerts handled in all")
    worker.stop()
    done.set()
    watcher.join(PATIENCE)

    sealed = seal(journal, "orders", lake=str(story.folder / "lake"), master=story.master)
    size = sealed.bytes / 1024
    story.say(f"history is sealed: {sealed.events:,} orders are Parquet now ({size:,.0f} KiB), the rest is hot")
    story.say()
    checks = list(proof.prove(journal, story.folder / "raw", story.folder / "lake", redriven))
    story.totals = proof.totals(journal, story.folder / "raw", redriven)
    for check in checks:
        story.say(f"{'✓' if check.holds else '✗ NOT SO:'} {check.claim} ({check.found})")
    return all(check.holds for check in checks)


def shown_command() -> str:
    """How the `penstock` of this interpreter is called from here: by its path, unless a shell would find the same."""
    script = Path(sys.executable).with_name("penstock")
    if shutil.which("penstock") == str(script):
        return "penstock"
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.main_job", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the result goes")
    parser.add_argument("--orders", type=int, default=20_000, help="how many orders are sold")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long the producers take for them")
    parser.add_argument("--master", help="Spark's master, for the pipeline and for sealing (which needs no Spark)")
    given = parser.parse_args()
    folder = given.out / "main-job"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Handlers fail here on purpose; their tracebacks would drown the story.
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    story = Story(folder, given.orders, given.seconds, given.master)
    try:
        with penstock.open(story.url) as journal:
            proven = tell(story, journal)
    finally:
        story.clear_up()
    raw = proof.raw_orders(folder / "raw")
    cents = sum(order["cents"] for order in raw)
    story.say()
    verdict = "proven, every one counted exactly once" if proven else "THE BOOKS DO NOT BALANCE"
    story.say(f"{len(raw):,} orders, {cents / 100:,.2f} in all: {verdict}")
    picture, page = chart.draw(proof.windows(raw), story.moments, story.events, story.totals, story.lines, folder)
    penstock_here = shown_command()
    print(f"""
The picture: {picture} (and {page})
Look around:
  {penstock_here} pipelines --url {story.url}
  {penstock_here} tail revenue -n 5 --url {story.url}
  {penstock_here} queues --url {story.url}
  {penstock_here} serve --url {story.url}
Next: docs/quickstart.md, docs/pipelines.md""")
    return 0 if proven else 1


if __name__ == "__main__":
    sys.exit(main())
