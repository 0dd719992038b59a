"""Everything the first line can say, on a journal to which it really happened: also that its disk is nearly full."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pytest

import penstock
from penstock.core.clock import ManualClock
from penstock.core.observe.pipelines import FlowStatus, report
from server.serving import Served, serving
from waiting import eventually

PROGRAM = """
import os, subprocess, sys
import penstock
from server.serving import serving

folder = sys.argv[1]
with penstock.open(f"{folder}/shop.db") as journal, serving(journal) as served:
    journal.topic("orders").append("placed", {"n": 1})
    page = served.get("/").data.decode()
    assert "All is well" in page, page
    with open(f"{folder}/ballast", "wb") as ballast:
        while os.statvfs(folder).f_bavail * 4096 > 2 << 20:
            ballast.write(bytes(1 << 20))
            ballast.flush()
    with serving(journal) as again:
        page = again.get("/").data.decode()
        assert "the disk is nearly full: " in page and "of 64.0 MiB are free" in page, page
        assert 'penstock_findings{kind="disk",subject="",detail=""} 1' in again.get("/metrics").data.decode()
    check = [sys.executable, "-m", "penstock.cli", "check", "--url", f"{folder}/shop.db"]
    said = subprocess.run(check, capture_output=True, text=True)
    assert said.returncode == 1 and "the disk is nearly full" in said.stdout, said
"""


def test_a_disk_that_is_nearly_full_is_said_by_the_console_the_metrics_and_check(tmp_path: Path) -> None:
    """On a file system of 64 MiB, in a mount namespace of the program's own."""
    mount = f"mount -t tmpfs -o size=64m tmpfs {tmp_path}"
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {tried.stderr.strip()}")
    command = f'{mount} && exec "$0" "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def first_line(served: Served) -> dict[str, str]:
    """What the first line of the overview says, and where each part of it leads."""
    page = served.get("/").data.decode()
    line = page.partition('id="health"')[2].partition("</section>")[0]
    links = [part.partition(">") for part in line.split("<a href=")[1:]]
    return {unescape(says.partition("<")[0]): unescape(href.split('"')[1]) for href, _, says in links}


def test_each_thing_that_is_wrong_leads_to_a_page_that_shows_it() -> None:
    clock = ManualClock(int(time.time() * 1000))
    with penstock.open("memory:", clock=clock) as journal:
        letters = journal.queue("letters", max_attempts=1, dead_letter="letters.dead")
        failing = journal.queue("failing", max_attempts=1)
        for queue in (letters, failing):
            queue.push("x")
            delivery = queue.take()
            assert delivery is not None
            delivery.nack(error="no")
        journal.queue("still").push("x")
        journal.queue("still").pause()
        journal.queue("slow", ttl=100).push("x")
        clock.advance(60)
        report(
            journal,
            [FlowStatus(pipeline="shop", flow="revenue", state="waiting", restarts=1, started_at=datetime.now(UTC))],
        )
        journal.topic("orders").append("placed")

        def leave(events: list[penstock.Event]) -> None:
            raise SystemExit("no such table")

        worker = journal.topic("orders").worker("billing", leave).start()
        eventually(lambda: not worker.alive)
        with pytest.raises(SystemExit):
            worker.stop()
        with serving(journal) as served:
            said = first_line(served)
            assert list(said) == [
                "pipeline shop/revenue is restarting, for the 2nd time",
                "worker orders:billing gave up: SystemExit: no such table",
                "1 dead letter from letters",
                "1 message of failing failed",
                "still is paused: 1 message is ready",
                "the oldest message of slow waits for 1 min; messages expire after 1.7 min",
            ]
            for says, href in said.items():
                path, _, part = href.partition("#")
                answer = served.get(path)
                assert answer.status == 200 and (not part or f'id="{part}"' in answer.data.decode()), says


def test_check_console_deep_health_metrics_and_alerts_agree_about_dead_workers(tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1000))
    with penstock.open(tmp_path / "shop.db", clock=clock) as journal:
        emails = journal.queue("emails")
        emails.push_many(range(49))
        emails.take(consumer="mailer")
        with serving(journal) as served:
            well = served.ask("GET", "/healthz/deep")
            assert (well.status, well.json) == (200, {"status": "ok", "findings": []})
        clock.advance(61)
        says = "no consumer processes emails: 49 messages wait, the oldest for 1 min"
        with serving(journal) as served:
            assert first_line(served) == {says: "/queues/emails?group=default&tab=workers"}
            deep = served.ask("GET", "/healthz/deep")
            assert deep.status == 503 and [one["says"] for one in deep.json["findings"]] == [says]
            metrics = served.get("/metrics").data.decode()
            assert 'penstock_findings{kind="unattended",subject="emails",detail="default"} 1' in metrics
            alerts = (Path(__file__).parents[2] / "deploy" / "alerts.yaml").read_text()
            assert 'expr: penstock_findings{kind="unattended"} > 0' in alerts
            check = [sys.executable, "-m", "penstock.cli", "check", "--url", served.url]
            said = subprocess.run(check, capture_output=True, text=True, check=False)
            assert said.returncode == 1 and f"WARNING - {says}" in said.stdout
            other = subprocess.run([*check, "--queue", "orders"], capture_output=True, text=True, check=False)
            assert says not in other.stdout


def test_the_first_line_and_each_row_have_the_colour_of_their_gravest_problem() -> None:
    clock = ManualClock(int(time.time() * 1000))
    with penstock.open("memory:", clock=clock) as journal:
        journal.queue("waits").push("x")
        clock.advance(90)
        with serving(journal) as served:
            page = served.get("/queues").data.decode()
            assert 'class="health warning"' in page and 'data-key="waits/default" class="warning"' in page
        failing = journal.queue("failing", lease=3600)
        failing.push_many(range(11))
        failing.take(consumer="worker")
        for delivery in failing.take_many(10):
            delivery.nack(delay=60, error="down")
        journal.queue("fine").push("x")
        with serving(journal) as served:  # the amber problem is not hidden, and the line is red for the other
            page = served.get("/queues").data.decode()
            assert 'class="health alert"' in page and 'data-key="waits/default" class="warning"' in page
            assert 'data-key="failing/default" class="alert"' in page and 'data-key="fine/default">' in page
