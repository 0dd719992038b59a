"""`penstock work module:tasks`, and flow control from the command line."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from cli.commandline import Cli
from penstock.core.consuming.processes import Supervisor
from waiting import DEADLINE

JOBS = """
from pathlib import Path

import penstock

tasks = penstock.Tasks()
empty = penstock.Tasks()


@tasks.task(queue="mail")
def send(to: str) -> str:
    with open("sent", "a") as file:
        file.write(to + "\\n")
    follow_up.push(to, days=3)
    return to


@tasks.task(queue="later")
async def follow_up(to: str, days: int) -> None:
    with open("followed", "a") as file:
        file.write(f"{to} {days}\\n")
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli_jobs.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_jobs", raising=False)
    return tmp_path


def test_work_runs_the_tasks_of_all_queues(cli: Cli, jobs: Path) -> None:
    for name in ("ada", "bob"):
        cli("push", "mail", f'{{"kwargs": {{"to": "{name}"}}}}', "--kind", "send")
    cli("work", "cli_jobs:tasks", "--until-empty")
    assert (jobs / "sent").read_text().split() == ["ada", "bob"]
    cli("work", "cli_jobs:tasks", "--until-empty")
    assert sorted((jobs / "followed").read_text().splitlines()) == ["ada 3", "bob 3"]


BUSY = """
import os
import time

import penstock

tasks = penstock.Tasks()


@tasks.task(queue="busy")
def work(number: int) -> None:
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} ")
    deadline = time.monotonic() + 60
    while len(set(open("pids").read().split())) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)  # until another process has begun, too
"""


def test_several_processes_share_the_work(cli: Cli, jobs: Path) -> None:
    (jobs / "cli_busy.py").write_text(BUSY)
    for number in range(4):
        cli("push", "busy", f'{{"args": [{number}]}}', "--kind", "work")
    cli("work", "cli_busy:tasks", "--processes", "2", "--until-empty", "--log-level", "warning")
    pids = (jobs / "pids").read_text().split()
    assert len(pids) == 4 and len(set(pids)) == 2


def _note(path: str, seconds: float, code: int) -> None:
    """What a process of these tests does."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()} ")
    time.sleep(seconds)
    sys.exit(code)


def test_a_change_of_a_source_file_starts_a_worker_again(jobs: Path) -> None:
    said: list[str] = []
    begun = jobs / "begun"

    def wait(seconds: float) -> bool:
        count = len(begun.read_text().split()) if begun.exists() else 0
        if count == 1 and not said:
            (jobs / "cli_jobs.py").write_text(JOBS + "\n# changed\n")
        time.sleep(0.05)
        return count >= 2

    assert Supervisor(_note, [(str(begun), DEADLINE, 0)], said.append, jobs).run(wait) == 0
    assert said == ["a source file has changed: starting again"]


def test_a_killed_process_has_a_successor_and_one_that_cannot_begin_ends_all(tmp_path: Path) -> None:
    said: list[str] = []
    pids = tmp_path / "pids"

    def wait(seconds: float) -> bool:
        found = pids.read_text().split() if pids.exists() else []
        if len(found) == 1 and not said:
            os.kill(int(found[0]), signal.SIGKILL)
        time.sleep(0.05)
        return len(found) == 2

    assert Supervisor(_note, [(str(pids), DEADLINE, 0)], said.append).run(wait) == 0
    assert len(said) == 1 and "was killed by signal 9: starting another one" in said[0]
    calls = [(str(pids), DEADLINE, 0), (str(pids), 0, 4)]
    assert Supervisor(_note, calls, said.append).run(lambda seconds: time.sleep(0.05) is not None) == 4


def test_a_call_is_shown_by_its_id(cli: Cli, jobs: Path) -> None:
    headers = ("--header", "reply-to=mail.results", "--header", "keep-result=3600")
    pushed = cli("push", "mail", '{"kwargs": {"to": "ada"}}', "--kind", "send", *headers, "--json").document
    assert "waiting" in cli("task", pushed["id"]).out
    cli("work", "cli_jobs:tasks", "--until-empty")
    found = cli("task", pushed["id"], "--json").document
    assert (found["state"], found["result"], found["task"], found["attempts"]) == ("done", "ada", "send", 1)
    missing = cli("task", "018bcfe5-6800-76ca-9cd3-91dd7c4312f0", code=3)
    assert "no call with the id" in missing.err


BOUND = """
import penstock

tasks = penstock.Tasks(penstock.open("proj.db"))


@tasks.task(queue="mail")
def send(to: str) -> None:
    with open("sent", "a") as file:
        file.write(to + "\\n")
"""


def test_work_uses_the_journal_that_its_tasks_were_made_with(cli: Cli, jobs: Path) -> None:
    """`penstock.open` in a module of tasks names the journal; another one is an error, not a second store."""
    for module in ("cli_bound", "cli_bound_again"):
        (jobs / f"{module}.py").write_text(BOUND)
    cli("push", "mail", '{"kwargs": {"to": "ada"}}', "--kind", "send", "--url", "proj.db", "--create")
    said = cli("work", "cli_bound:tasks", "--until-empty")
    assert (jobs / "sent").read_text() == "ada\n" and "proj.db" in said.err
    said = cli("work", "cli_bound_again:tasks", "--until-empty", "--url", "other.db", code=2)
    assert "--url names another" in said.err and not (jobs / "other.db").exists()
    cli("work", "cli_bound_again:tasks", "--until-empty", "--url", "proj.db")


@pytest.mark.parametrize("path", ["mail", "cli_jobs:send", "cli_jobs:empty", "cli_jobs:nothing", "nowhere:tasks"])
def test_what_are_no_tasks_is_a_sentence(cli: Cli, jobs: Path, path: str) -> None:
    said = cli("work", path, code=2)
    assert "Traceback" not in said.err and said.err.startswith("penstock: ")


def test_configure_sets_flow_control(cli: Cli) -> None:
    words = "--rate 10/s --rate-per-key 1/m --max-in-flight-per-key 2 --fair-by tenant --throttle 5s --breaker 5/1m"
    cli("configure", "q", *words.split())
    policy = cli("configure", "q", "--json").document
    assert (policy["rate"], policy["rate_per_key"], policy["max_in_flight_per_key"]) == ("10/s", "1/m", 2)
    assert (policy["fair_by"], policy["throttle"], policy["breaker"]) == ("tenant", 5, "5/1m")
    cli("configure", "q", "--rate", "none", "--throttle", "none", "--debounce", "1m", "--debounce-limit", "5m")
    policy = cli("configure", "q", "--json").document
    assert (policy["rate"], policy["throttle"], policy["debounce"], policy["debounce_limit"]) == (None, None, 60, 300)
    assert "is no rate" in cli("configure", "q", "--rate", "fast", code=2).err
