"""The suite due-work-harness 0.7.0 on queues, transactions, tasks and the outbox.

It runs a transition again and again: a worker dies after each commit and after each external call, the reply to each
commit is lost. Every history must end where normal operation ends. A history that does not is a finding, declared
beside it. Run: crash histories, process histories, and all proofs of fenced ownership (profile B).

Left out: the profiles that look at queries of a database (index use, replicas, read costs), which a journal has none
of; the races of two database connections; D to F, which are about an application's own retention and product state.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from due_work_harness import (
    CallableDelivery,
    ExternalCall,
    HandoffHistory,
    Host,
    assert_crash_at_every_commit_converges,
)
from due_work_harness.crash_histories import assert_pinned_outcomes
from due_work_harness.host import hosted
from due_work_harness.process_histories import (
    ProcessHistory,
    assert_pinned_process_outcomes,
    assert_process_deaths_converge,
    fault_environment,
    fault_happened,
)
from due_work_harness.profiles.bounded_ownership import FENCED_OWNERSHIP_PROOFS, FencedOwnership
from due_work_harness.worker_death import CommitWorker, LostCommitReplies

import penstock
import penstock.cli
from penstock import Delivery, Journal, Queue, Topic, outbox
from penstock.core.engine.sqlite import SqliteWrite
from penstock.errors import OutcomeUnknown, StaleDelivery
from waiting import DEADLINE

NIGHTLY = pytest.mark.nightly("strangers-due-work")
LEASE = 30.0


# ── a host: commits of the store and of the database beside it ───────────────────────────────────────────────────────
@contextmanager
def watching(before: Callable[[], None], committed: Callable[[], None]) -> Iterator[None]:
    """Calls `committed` after each commit of this thread. Housekeeping has a thread of its own, and is not counted."""
    begin, end, here = SqliteWrite.__enter__, SqliteWrite.__exit__, get_ident()

    def enter(write: SqliteWrite) -> SqliteWrite:
        if get_ident() == here:
            before()
        return begin(write)

    def leave(write: SqliteWrite, kind: type[BaseException] | None, *rest: object) -> None:
        end(write, kind, *rest)
        if kind is None and get_ident() == here:
            committed()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteWrite, "__enter__", enter)
        patch.setattr(SqliteWrite, "__exit__", leave)
        patch.setattr(AppConnection, "watchers", [*AppConnection.watchers, (before, committed)])
        yield


class AppConnection(sqlite3.Connection):
    """A connection of the program's own database, whose commits are counted too."""

    watchers: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def commit(self) -> None:
        for before, _ in self.watchers:
            before()
        wrote = self.in_transaction
        super().commit()
        for _, committed in self.watchers if wrote else ():
            committed()


@contextmanager
def killer(kill_after: int | None) -> Iterator[CommitWorker]:
    worker = CommitWorker(kill_after)
    with watching(worker.refuse_if_dead, worker.committed):
        yield worker


@contextmanager
def reply_breaker(lose_at: int | None) -> Iterator[LostCommitReplies]:
    replies = LostCommitReplies(lose_at, lambda count: OutcomeUnknown(f"the reply to commit {count} was lost"))
    with watching(lambda: None, replies.committed):
        yield replies


@pytest.fixture(autouse=True)
def host() -> Iterator[Host]:
    packages = frozenset({"penstock"})
    with hosted(Host(production_packages=packages, worker_killer=killer, reply_breaker=reply_breaker)) as made:
        yield made


# ── a shop ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class Provider:
    """Somebody else's system: it remembers what it was asked for."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, mail: object) -> None:
        self.sent.append(mail)


class Shop:
    """A store, opened by one process after the other."""

    def __init__(self, folder: Path) -> None:
        self.url = folder / "shop.db"
        self.app = folder / "app.sqlite"
        self.clock = penstock.ManualClock()
        self.provider = Provider()
        self._opened: list[penstock.Journal] = []
        self.journal = self.process()
        self.journal.queue("mails", lease=LEASE)
        self.journal.queue("bills", lease=LEASE)

    def process(self) -> penstock.Journal:
        """Opens the store again: what a process that died had open is never used again."""
        self._opened.append(penstock.open(self.url, clock=self.clock))
        self.journal = self._opened[-1]
        return self.journal

    def restart(self) -> None:
        """Begins a new process after the leases of the one before have ended."""
        self.clock.advance(LEASE + 1)
        self.process()

    def database(self) -> AppConnection:
        return sqlite3.connect(self.app, factory=AppConnection)

    def close(self) -> None:
        for journal in self._opened:
            with suppress(penstock.errors.PenstockError):
                journal.close()


class Shops:
    """A new shop for each history of a test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self.all: list[Shop] = []

    def __call__(self) -> Shop:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        self.all.append(Shop(folder))
        return self.all[-1]

    def recover(self) -> None:
        """Begins the newest shop's process again and works until nothing is left."""
        shop = self.all[-1]
        shop.restart()
        work_all(shop)


@pytest.fixture
def shops(tmp_path: Path) -> Iterator[Shops]:
    made = Shops(tmp_path)
    yield made
    for shop in made.all:
        shop.close()


def work(shop: Shop) -> None:
    """Sends a mail and acknowledges it: what most handlers do."""
    with Queue.receive(shop.journal.queue("mails")) as delivery:
        if delivery is not None:
            shop.provider.send(delivery.payload)


def work_once(shop: Shop) -> None:
    """The same, with what was sent noted in the journal under the message's position before it is acknowledged."""
    with Queue.receive(shop.journal.queue("mails")) as delivery:
        if delivery is not None:
            shop.journal.topic("sent").append("sent", delivery.payload, dedup=str(delivery.event.seq))


def bill(shop: Shop) -> None:
    """Takes, appends, pushes and acknowledges in one commit."""
    with Journal.transaction(shop.journal) as tx:
        delivery = tx.take("bills")
        if delivery is not None:
            tx.append("orders", "billed", delivery.payload, key="1")
            tx.push("mails", delivery.payload)
            tx.ack(delivery)


def relay(shop: Shop) -> None:
    """Moves what is in the outbox, if the program has one."""
    if shop.app.exists():
        moving = outbox.Relay(shop.journal, shop.database)
        moving.drain()
        moving.stop()


def work_all(shop: Shop) -> None:
    relay(shop)
    while len(shop.journal.queue("bills")):
        bill(shop)
    while len(shop.journal.queue("mails")):
        work_once(shop)


def state(shop: Shop) -> dict[str, Any]:
    journal = shop.process()
    return {
        "orders": [(event.kind, event.payload) for event in journal.topic("orders").read()],
        "sent": [event.payload for event in journal.topic("sent").read()],
        "provider": list(shop.provider.sent),
        "left": len(journal.queue("mails")) + len(journal.queue("bills")),
    }


def delivery(shops: Shops) -> CallableDelivery:
    return CallableDelivery(name="penstock", recover=shops.recover)


# ── crash histories ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_transaction_survives_any_death(shops: Shops) -> None:
    def place(shop: Shop) -> None:
        with Journal.transaction(shop.journal) as tx:
            tx.append("orders", "placed", 1, key="1")
            tx.push("bills", 1)

    history = HandoffHistory(name="place an order", arrange=shops, transition=place, observe=state)
    assert_crash_at_every_commit_converges(delivery(shops), history)


def test_two_commits_in_a_row_are_found_to_be_no_handoff(shops: Shops) -> None:
    """The control: a push apart from its event is lost, and the harness sees it."""

    def place(shop: Shop) -> None:
        Topic.append(shop.journal.topic("orders"), "placed", 1, key="1")
        Queue.push(shop.journal.queue("mails"), 1)

    history = HandoffHistory(name="place an order in two commits", arrange=shops, transition=place, observe=state)
    whole = {"orders": [("placed", 1)], "sent": [1], "provider": [], "left": 0}
    lost = {**whole, "sent": []}
    outcomes = {"worker died after commit 1": lost, "the reply to commit 1 was lost": lost}
    assert_pinned_outcomes(delivery(shops), history, delivered=whole, outcomes=outcomes)


def pushed(shops: Shops, queue: str) -> Callable[[], Shop]:
    def arrange() -> Shop:
        shop = shops()
        shop.journal.queue(queue).push(1)
        return shop

    return arrange


def test_a_message_that_is_taken_and_answered_in_one_transaction_survives_any_death(shops: Shops) -> None:
    history = HandoffHistory(name="bill", arrange=pushed(shops, "bills"), transition=bill, observe=state)
    assert_crash_at_every_commit_converges(delivery(shops), history)


@NIGHTLY
def test_a_handler_whose_effect_has_a_dedup_key_survives_any_death(shops: Shops) -> None:
    history = HandoffHistory(name="send", arrange=pushed(shops, "mails"), transition=work_once, observe=state)
    assert_crash_at_every_commit_converges(delivery(shops), history)


def test_a_handler_with_a_foreign_effect_repeats_it_after_a_death_and_loses_nothing(shops: Shops) -> None:
    """At least once: the declared finding of every queue that acknowledges after the work."""

    def recover() -> None:
        shop = shops.all[-1]
        shop.restart()
        while len(shop.journal.queue("mails")):
            work(shop)

    def provided(shop: Shop) -> tuple[int, int]:
        return len(shop.provider.sent), state(shop)["left"]

    calls = (ExternalCall(Provider, "send"),)
    history = HandoffHistory(
        name="send", arrange=pushed(shops, "mails"), transition=work, observe=provided, external_calls=calls
    )
    twice = {"worker died after external call 1": (2, 0)}
    assert_pinned_outcomes(
        CallableDelivery(name="penstock", recover=recover), history, delivered=(1, 0), outcomes=twice
    )


def outboxed(shops: Shops) -> Callable[[], Shop]:
    def arrange() -> Shop:
        shop = shops()
        database = shop.database()
        outbox.create(database)
        database.execute("CREATE TABLE bought (id INTEGER PRIMARY KEY)")
        database.commit()
        database.close()
        return shop

    return arrange


def buy(shop: Shop) -> None:
    database = shop.database()
    database.execute("INSERT INTO bought DEFAULT VALUES")
    outbox.append(database, "orders", "bought", 1, key="1")
    outbox.push(database, "mails", 1)
    database.commit()
    database.close()


def bought(shop: Shop) -> dict[str, Any]:
    database = shop.database()
    rows = database.execute("SELECT count(*) FROM bought").fetchone()
    waiting = outbox.lag(database).waiting
    database.close()
    return {**state(shop), "bought": rows, "waiting": waiting}


def test_rows_of_an_outbox_survive_any_death_of_the_program(shops: Shops) -> None:
    history = HandoffHistory(name="buy", arrange=outboxed(shops), transition=buy, observe=bought)
    assert_crash_at_every_commit_converges(delivery(shops), history)


@NIGHTLY
def test_rows_of_an_outbox_survive_any_death_of_the_relay(shops: Shops) -> None:
    def arrange() -> Shop:
        shop = outboxed(shops)()
        for _ in range(2):
            buy(shop)
        return shop

    history = HandoffHistory(name="relay", arrange=arrange, transition=relay, observe=bought)
    assert_crash_at_every_commit_converges(delivery(shops), history)


# ── fenced ownership ─────────────────────────────────────────────────────────────────────────────────────────────────
def ownership(shop: Shop) -> FencedOwnership:
    """A message's lease: the row is its position, the token the delivery's."""
    queue = shop.journal.queue("mails", lease=LEASE)

    def claim() -> Any:
        taken = Queue.take(queue)
        return None if taken is None else (taken.event.seq, taken.token)

    def owner(token: Any, act: Callable[[Delivery], object]) -> bool:
        try:
            act(queue.delivery(token))
        except StaleDelivery:
            return False
        return True

    def observe(seq: int) -> Any:
        found = next((one for one in queue.messages() if one.event.seq == seq), None)
        return None if found is None else (found.state, found.attempts, found.deadline, found.error)

    return FencedOwnership(
        name="a message",
        make_claimable=lambda: queue.push(1).seq,
        claim=claim,
        fenced_write=lambda seq, token: owner(token, Delivery.ack),
        other_fenced_writes={
            "nack": lambda seq, token: owner(token, lambda taken: Delivery.nack(taken, error="again")),
            "dead": lambda seq, token: owner(token, lambda taken: Delivery.nack(taken, dead=True)),
            "release": lambda seq, token: owner(token, Delivery.release),
        },
        renew_lease=lambda seq, token: owner(token, lambda taken: Delivery.extend(taken, LEASE * 2)),
        expire_lease=lambda seq: shop.clock.advance(LEASE + 1),
        # There is no sweep: a message whose lease has ended is ready wherever it is looked at.
        reclaim_stalled=lambda seq: Queue.messages(queue, "ready", after=seq - 1, limit=1) or None,
        release_unchanged=lambda seq, token: owner(token, Delivery.release),
        observe=observe,
    )


@pytest.mark.parametrize("proof", FENCED_OWNERSHIP_PROOFS, ids=lambda proof: proof.__name__)
def test_a_lease_is_fenced(shops: Shops, proof: Callable[[FencedOwnership], None]) -> None:
    proof(ownership(shops()))


# ── process histories: a real worker of tasks, which really dies ─────────────────────────────────────────────────────
MODULE = """
import os
import penstock
from due_work_harness.process_histories import die_here, fault_fires
from penstock.core.engine.sqlite import SqliteWrite
from penstock.errors import OutcomeUnknown

journal = penstock.open("shop.db")
journal.queue("mails", lease=1)
tasks = penstock.Tasks(journal)

@tasks.task(queue="mails")
def send(number):
    die_here("before the effect")
    with open("effects", "a") as file:
        file.write(f"{number}\\n")
    die_here("after the effect")

commits, end = 0, SqliteWrite.__exit__

def leave(write, kind, *rest):
    global commits
    end(write, kind, *rest)
    if kind is None:
        commits += 1
        die_here(f"commit {commits}")
        if fault_fires(f"the reply to commit {commits} was lost"):
            raise OutcomeUnknown("the reply was lost")

if "push" in os.environ:
    send.push(1)
else:
    SqliteWrite.__exit__ = leave
"""
COMMITS = range(1, 5)


@NIGHTLY
def test_a_worker_of_tasks_may_die_or_lose_a_reply_anywhere(tmp_path: Path) -> None:
    numbers = itertools.count()

    def work(folder: Path, point: str | None) -> int:
        faults = fault_environment(point, folder / "fault")
        environ = {**os.environ, "PYTHONPATH": str(folder), **faults}
        command = [sys.executable, "-m", penstock.cli.__name__, "work", "shop:tasks", "--until-empty"]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, timeout=DEADLINE, check=False)
        return done.returncode or (1 if fault_happened(folder / "fault") else 0)

    def run(point: str | None) -> tuple[Path, int]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        (folder / "shop.py").write_text(MODULE)
        environ = {**os.environ, "PYTHONPATH": str(folder), "push": "1"}
        subprocess.run([sys.executable, "-c", "import shop"], cwd=folder, env=environ, timeout=DEADLINE, check=True)
        return folder, work(folder, point)

    def observe(folder: Path) -> tuple[bool, int]:
        with penstock.open(folder / "shop.db") as journal:
            return (folder / "effects").exists(), len(journal.queue("mails"))

    def recover(folder: Path) -> None:
        work(folder, None)

    history = ProcessHistory(
        name="a worker of tasks",
        initial=(False, 1),
        run=run,
        observe=observe,
        recover=recover,
        death_points=("before the effect", "after the effect", *(f"commit {k}" for k in COMMITS)),
        failure_points=tuple(f"the reply to commit {k} was lost" for k in COMMITS),
    )
    assert_process_deaths_converge(history)


# ── Django's tasks, in processes that die ────────────────────────────────────────────────────────────────────────────
DJANGO = """
import sys
from pathlib import Path
import django
from django.conf import settings

act, enqueue = sys.argv[1:]
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "app.sqlite"}
options = {"url": "shop.db", "enqueue": enqueue, "lease": 1.0}
backend = {"BACKEND": "penstock.integrations.django.backend.TasksBackend", "OPTIONS": options}
settings.configure(
    DATABASES={"default": database},
    INSTALLED_APPS=["penstock.integrations.django", "penstock.integrations.outbox.django"],
    TASKS={"default": backend},
    USE_TZ=True,
)
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper
from due_work_harness.process_histories import die_here, fault_fires
from penstock.core.engine.sqlite import SqliteWrite
from penstock.errors import OutcomeUnknown
from penstock.integrations.django import tasks_api
from django_tasks import task

@task
def send(number):
    die_here("before the effect")
    with open("effects", "a") as file:
        file.write(f"{number}\\n")
    die_here("after the effect")
    return number

sys.modules["shop"] = sys.modules["__main__"]
send.func.__module__ = "shop"
if act == "prepare":
    call_command("migrate", verbosity=0)
    connection.cursor().execute("create table orders (id integer primary key)")
    sys.exit()

commits, end, commit = 0, SqliteWrite.__exit__, DatabaseWrapper._commit

def leave(write, kind, *rest):
    global commits
    end(write, kind, *rest)
    if kind is None:
        commits += 1
        die_here(f"{act}: commit {commits} of the journal")
        if fault_fires(f"{act}: the reply to commit {commits} was lost"):
            raise OutcomeUnknown("the reply was lost")

def commit_and_die(wrapper):
    commit(wrapper)
    die_here(f"{act}: commit of the database")

SqliteWrite.__exit__, DatabaseWrapper._commit = leave, commit_and_die
if act == "place":
    with transaction.atomic():
        connection.cursor().execute("insert into orders default values")
        send.enqueue(1)
else:
    call_command("penstock_worker", batch=True, reload=False)
"""


class Project:
    """A Django project in a folder, whose processes die at a point."""

    def __init__(self, folder: Path, enqueue: str) -> None:
        self._folder = folder
        self._enqueue = enqueue
        self._numbers = itertools.count()

    def act(self, home: Path, act: str, point: str | None = None) -> int:
        environ = {**os.environ, "PYTHONPATH": str(home), **fault_environment(point, home / "fault")}
        command = [sys.executable, "shop.py", act, self._enqueue]
        done = subprocess.run(command, cwd=home, env=environ, capture_output=True, timeout=DEADLINE, check=False)
        assert point is not None or done.returncode == 0, done.stderr.decode()
        return done.returncode or (1 if fault_happened(home / "fault") else 0)

    def prepare(self) -> Path:
        home = self._folder / str(next(self._numbers))
        home.mkdir()
        (home / "shop.py").write_text(DJANGO)
        self.act(home, "prepare")
        return home

    def place(self, point: str | None) -> tuple[Path, int]:
        home = self.prepare()
        return home, self.act(home, "place", point)

    def work(self, point: str | None) -> tuple[Path, int]:
        home, _ = self.place(None)
        return home, self.act(home, "work", point)

    def recover(self, home: Path) -> None:
        with penstock.open(home / "shop.db"):  # the leases of a worker that died end
            time.sleep(1.5)
        self.act(home, "work")

    def observe(self, home: Path) -> tuple[int, bool, list[str]]:
        """The orders, whether the mail went out, and the newest state of each task."""
        database = sqlite3.connect(home / "app.sqlite")
        ((orders,),) = database.execute("select count(*) from orders").fetchall()
        database.close()
        with penstock.open(home / "shop.db") as journal:
            states = {event.key: event.kind for event in journal.topic("django-results").read()}
        return orders, (home / "effects").exists(), sorted(states.values())

    def placing(self) -> ProcessHistory[tuple[int, bool, list[str]]]:
        """An order is placed, by a process that may die at the commit of its database."""
        return ProcessHistory(
            name="place an order",
            initial=(0, False, []),
            run=self.place,
            observe=self.observe,
            recover=self.recover,
            death_points=("place: commit of the database",),
        )


@NIGHTLY
def test_a_task_that_is_enqueued_through_the_outbox_survives_any_death(tmp_path: Path) -> None:
    assert_process_deaths_converge(Project(tmp_path, "outbox").placing())


@NIGHTLY
def test_a_task_that_is_enqueued_after_the_commit_is_lost_by_a_death_between(tmp_path: Path) -> None:
    """The declared finding of `enqueue="on_commit"`, as with every backend that enqueues after the commit."""
    history = Project(tmp_path, "on_commit").placing()
    lost = {"died at place: commit of the database": (1, False, [])}
    assert_pinned_process_outcomes(history, delivered=(1, True, ["successful"]), outcomes=lost)


@NIGHTLY
def test_djangos_worker_may_die_or_lose_a_reply_anywhere(tmp_path: Path) -> None:
    project = Project(tmp_path, "on_commit")
    history = ProcessHistory(
        name="work",
        initial=(1, False, ["enqueued"]),
        run=project.work,
        observe=project.observe,
        recover=project.recover,
        death_points=("before the effect", "after the effect", *(f"work: commit {k} of the journal" for k in COMMITS)),
        failure_points=tuple(f"work: the reply to commit {k} was lost" for k in COMMITS),
    )
    assert_process_deaths_converge(history)
