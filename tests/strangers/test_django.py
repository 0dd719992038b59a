"""Django's tasks on our backend, through django-tasks 0.12 (or Django 6, where Python has it).

Django's own tests of tasks are a part of the night, `django_suite.py`: it runs these here on Django 6, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django_shop_tasks as shop
import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test import modify_settings, override_settings
from django.utils import timezone

import penstock
from penstock.integrations.django.backend import TasksBackend
from penstock.integrations.django.running import TaskAttempt, workers
from penstock.integrations.django.tasks_api import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    signals,
    task_backends,
)
from penstock.integrations.opening import close_all
from server.process import ServerProcess
from waiting import eventually

NIGHTLY = pytest.mark.nightly("strangers-django")
FOLDER = Path(__file__).parent
BACKEND = "penstock.integrations.django.backend.TasksBackend"


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Callable[..., TasksBackend]]:
    """A backend on a journal of this test's, with the options it wants."""
    made: list[override_settings] = []

    def configure(**options: Any) -> TasksBackend:
        given = {"url": str(tmp_path / "shop.db"), **options}
        tasks = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": given}}
        made.append(override_settings(TASKS=tasks))
        made[-1].enable()
        return task_backends["default"]

    shop.called.clear()
    yield configure
    for one in reversed(made):
        one.disable()
    close_all()


@pytest.fixture
def backend(configured: Callable[..., TasksBackend]) -> TasksBackend:
    return configured()


def work(backend: TasksBackend, worker_id: str = "w1") -> None:
    """Runs what can be run now."""
    running = [worker.start() for worker in workers(backend, ["default", "mail"], worker_id)]

    def idle() -> bool:
        counts = [backend.queue(name).stats() for name in ("default", "mail")]
        return not any(one.ready or one.in_flight for one in counts)

    eventually(idle)
    for worker in running:
        worker.stop()


# ── enqueueing ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_task_is_enqueued_run_and_its_result_found(backend: TasksBackend) -> None:
    result = shop.add.enqueue(2, right=3)
    assert result.status == TaskResultStatus.READY
    assert (result.args, result.kwargs, result.attempts) == ([2], {"right": 3}, 0)
    assert shop.add.get_result(result.id) == result
    work(backend)
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.return_value == 5
    assert result.worker_ids == ["w1"]
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert len(backend.queue("default")) == 0


def test_a_task_goes_with_its_transaction(backend: TasksBackend) -> None:
    with transaction.atomic():
        kept = shop.add.enqueue(1, 1)
        with pytest.raises(TaskResultDoesNotExist):
            shop.add.get_result(kept.id)
    with pytest.raises(RuntimeError), transaction.atomic():
        dropped = shop.add.enqueue(2, 2)
        raise RuntimeError("no")
    assert shop.add.get_result(kept.id) == kept
    with pytest.raises(TaskResultDoesNotExist):
        shop.add.get_result(dropped.id)
    assert [event.payload["args"] for event in backend.queue("default")] == [[1, 1]]


def test_a_task_can_be_enqueued_whatever_the_transaction_does(configured: Callable[..., TasksBackend]) -> None:
    backend = configured(enqueue="at_once")
    with pytest.raises(RuntimeError), transaction.atomic():
        shop.add.enqueue(2, 2)
        raise RuntimeError("no")
    assert len(backend.queue("default")) == 1


@pytest.fixture
def outbox_table() -> Iterator[None]:
    call_command("migrate", verbosity=0)
    yield
    call_command("flush", interactive=False, verbosity=0)


def run_batch(**options: Any) -> None:
    """Runs the command, and leaves the handlers of signals as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        call_command("penstock_worker", batch=True, **options)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.usefixtures("outbox_table")
def test_a_task_in_an_outbox_is_in_the_very_transaction(configured: Callable[..., TasksBackend]) -> None:
    backend = configured(enqueue="outbox")
    later = timezone.now() + timedelta(hours=1)
    with transaction.atomic():
        kept = shop.add.using(priority=3).enqueue(1, 1)
        delayed = shop.add.using(run_after=later).enqueue(3, 3)
    with pytest.raises(RuntimeError), transaction.atomic():
        dropped = shop.add.enqueue(2, 2)
        raise RuntimeError("no")
    alone = shop.add.enqueue(4, 4)
    with pytest.raises(TaskResultDoesNotExist):
        shop.add.get_result(kept.id)  # a relay has not moved it yet
    run_batch()
    assert [backend.get_result(one.id).status for one in (kept, alone)] == [TaskResultStatus.SUCCESSFUL] * 2
    assert [event.kind for event in backend.states.read(key=kept.id)] == ["enqueued", "started", "successful"]
    assert backend.get_result(delayed.id).task.run_after == later
    assert backend.queue("default").stats().delayed == 1
    with pytest.raises(TaskResultDoesNotExist):
        shop.add.get_result(dropped.id)


@NIGHTLY
@pytest.mark.usefixtures("outbox_table")
def test_a_worker_relays_the_outbox_while_it_works(configured: Callable[..., TasksBackend]) -> None:
    backend = configured(enqueue="outbox")
    worker = worker_process(backend)
    try:
        results = [shop.add.enqueue(number, 0).id for number in range(5)]
        eventually(lambda: all(found and found.is_finished for found in (backend.find(id)[1] for id in results)))
    finally:
        worker.terminate()
        assert worker.wait(60) == 0


def test_an_outbox_without_its_table_is_named(configured: Callable[..., TasksBackend]) -> None:
    backend = configured(enqueue="outbox")
    with modify_settings(INSTALLED_APPS={"remove": "penstock.integrations.outbox.django"}):
        (found,) = backend.check()
    assert found.hint == "add 'penstock.integrations.outbox.django' to INSTALLED_APPS, and migrate"
    assert backend.check() == []


def test_a_signal_says_that_a_task_is_enqueued_when_it_is(backend: TasksBackend) -> None:
    seen: list[str] = []

    def receiver(task_result: Any, **_: object) -> None:
        seen.append(shop.add.get_result(task_result.id).id)

    signals.task_enqueued.connect(receiver)
    try:
        with transaction.atomic():
            result = shop.add.enqueue(1, 1)
            assert seen == []
        assert seen == [result.id]
    finally:
        signals.task_enqueued.disconnect(receiver)


def test_a_task_that_is_to_run_later_is_a_delayed_message(backend: TasksBackend) -> None:
    later = timezone.now() + timedelta(hours=1)
    result = shop.add.using(run_after=later).enqueue(1, 1)
    assert backend.get_result(result.id).task.run_after == later
    work(backend)
    assert backend.queue("default").stats().delayed == 1
    (waiting,) = backend.queue("default").messages("delayed")
    assert backend.queue("default").run_now([waiting.seq]) == 1
    work(backend)
    assert backend.get_result(result.id).return_value == 2


def test_tasks_of_a_higher_priority_run_first(backend: TasksBackend) -> None:
    for priority in (0, -100, 100, 0):
        shop.add.using(priority=priority).enqueue(priority, 0)
    work(backend)
    assert [left for left, _ in shop.called] == [100, 0, 0, -100]


def test_tasks_are_enqueued_run_and_found_in_an_event_loop(backend: TasksBackend) -> None:
    result = asyncio.run(shop.add_later.aenqueue(4, 5))
    work(backend)
    found = asyncio.run(shop.add_later.aget_result(result.id))
    assert found.return_value == 9
    asyncio.run(result.arefresh())
    assert result == found


def test_a_queue_that_the_settings_do_not_name_is_refused(backend: TasksBackend) -> None:
    with pytest.raises(InvalidTask, match="'reports' is not valid"):
        shop.add.using(queue_name="reports").enqueue(1, 1)


def test_a_queue_that_is_full_refuses_a_task_and_its_result_says_so(backend: TasksBackend) -> None:
    backend.queue("default").configure(max_size=1)
    shop.add.enqueue(1, 1)
    with pytest.raises(penstock.errors.QueueFull), transaction.atomic():
        result = shop.add.enqueue(2, 2)
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is penstock.errors.QueueFull


@override_settings(USE_TZ=False)
def test_times_have_no_zone_where_the_settings_want_none(backend: TasksBackend) -> None:
    result = shop.add.using(run_after=datetime(2020, 1, 1)).enqueue(1, 1)
    work(backend)
    result.refresh()
    assert result.finished_at.tzinfo is None
    assert abs(datetime.now() - result.finished_at) < timedelta(hours=1)
    assert backend.get_result(result.id).task.run_after == datetime(2020, 1, 1)


# ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_task_that_raises_failed_and_can_be_redriven(backend: TasksBackend) -> None:
    result = shop.fail.enqueue(1)
    work(backend)
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is ValueError
    assert result.errors[0].traceback.endswith("ValueError: failure 1\n")
    queue = backend.queue("default")
    assert queue.stats().failed == 1
    assert queue.redrive() == 1
    work(backend, "w2")
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, "at last")
    assert result.worker_ids == ["w1", "w2"]


def test_a_task_is_tried_again_where_the_options_say_so(configured: Callable[..., TasksBackend]) -> None:
    backend = configured(retry=penstock.Retry.immediate(), max_attempts=3)
    twice = shop.fail.enqueue(2)
    work(backend)
    twice.refresh()
    assert (twice.return_value, twice.attempts, len(twice.errors)) == ("at last", 3, 2)
    shop.called.clear()
    for_ever = shop.fail.enqueue(9)
    work(backend)
    for_ever.refresh()
    assert (for_ever.status, for_ever.attempts, len(for_ever.errors)) == (TaskResultStatus.FAILED, 3, 3)


def test_a_task_that_leaves_or_returns_what_has_no_json_failed(backend: TasksBackend) -> None:
    left, returned = shop.leave.enqueue(), shop.give_an_object.enqueue()
    work(backend)
    assert backend.get_result(left.id).errors[0].exception_class is SystemExit
    assert backend.get_result(returned.id).errors[0].exception_class is TypeError


def test_a_task_knows_its_result_and_its_attempt(backend: TasksBackend) -> None:
    result = shop.attempts.enqueue()
    work(backend)
    result.refresh()
    assert result.return_value == [result.id, 1]


def test_a_worker_that_is_late_changes_nothing(backend: TasksBackend) -> None:
    result, queue = shop.meanwhile.enqueue(), backend.queue("default")
    first = queue.take(consumer="slow")

    def overtake() -> None:
        (second,) = queue.claim(min_idle=0, consumer="fast")
        with second:
            TaskAttempt(backend, "fast", second).run()

    shop.called.append(overtake)
    assert first is not None
    TaskAttempt(backend, "slow", first).run()
    with pytest.raises(penstock.errors.StaleDelivery):
        first.ack()
    result.refresh()
    assert result.return_value == "begun 2 times"
    assert result.worker_ids == ["slow", "fast"]


def test_a_task_with_an_outcome_does_not_run_again_after_a_crash(backend: TasksBackend) -> None:
    result, queue = shop.add.enqueue(1, 1), backend.queue("default")
    failed = shop.leave.enqueue()
    for _ in range(2):  # the worker died when the outcome was recorded, and the message not settled
        TaskAttempt(backend, "w1", queue.take()).run()
    (again,) = queue.claim(min_idle=0, limit=2)
    with again:
        TaskAttempt(backend, "w2", again).run()
    assert shop.called == [(1, 1)]
    assert backend.get_result(result.id).worker_ids == ["w1"]
    assert backend.get_result(failed.id).worker_ids == ["w1"]
    assert (len(queue), queue.stats().failed) == (0, 1)


def test_a_task_that_ends_all_its_workers_failed(backend: TasksBackend) -> None:
    result, queue = shop.add.enqueue(1, 1), backend.queue("default")
    queue.take()
    for _ in range(3):
        (delivery,) = queue.claim(min_idle=0)
    TaskAttempt(backend, "w4", delivery).run()
    result.refresh()
    assert shop.called == []
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class_path == "penstock.integrations.django.running.WorkerDied"
    assert queue.stats().failed == 1


def test_receivers_that_fail_change_no_outcome(backend: TasksBackend) -> None:
    def receiver(**_: object) -> None:
        raise RuntimeError("a receiver failed")

    all_signals = (signals.task_enqueued, signals.task_started, signals.task_finished)
    for one in all_signals:
        one.connect(receiver)
    try:
        result = shop.add.enqueue(1, 2)
        work(backend)
    finally:
        for one in all_signals:
            one.disconnect(receiver)
    result.refresh()
    assert (result.status, result.return_value, result.errors) == (TaskResultStatus.SUCCESSFUL, 3, [])


def test_connections_to_databases_are_closed_between_tasks(backend: TasksBackend) -> None:
    results = [shop.ask_the_database.enqueue() for _ in range(2)]
    work(backend)
    assert [backend.get_result(one.id).return_value for one in results] == [1, 1]
    first, second = shop.called
    assert first is not second
    for one in (first, second):
        with pytest.raises(Exception, match="closed database"):
            one.execute("select 1")


def test_a_message_that_is_no_task_and_a_task_that_is_gone_fail(backend: TasksBackend) -> None:
    queue = backend.queue("default")
    queue.push({"to": "ada"})
    gone = shop.add.enqueue(1, 1)
    path = shop.add.module_path
    del shop.add
    try:
        work(backend)
        with pytest.raises(ImportError):
            backend.get_result(gone.id)
        _, record = backend.find(gone.id)
    finally:
        shop.add = sys.modules[__name__].ADD
    assert record is not None
    assert (record.task, record.status) == (path, "FAILED")
    assert record.errors[0].exception_class_path == "builtins.ImportError"
    assert [failure.event.kind for failure in queue.failures()] == ["message", path]


ADD = shop.add


@pytest.mark.parametrize("kind", ["local", pytest.param("served", marks=NIGHTLY)])
def test_a_killed_workers_task_goes_to_another_worker(
    kind: str, tmp_path: Path, configured: Callable[..., TasksBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", token := "a-token-that-may-only-write")
    with ServerProcess(tmp_path / "shop.db", f"write {token}") as server:
        backend = configured(lease=1.0) if kind == "local" else configured(lease=1.0, url=server.url)
        result = shop.hang.enqueue(str(tmp_path))
        killed = worker_process(backend)
        eventually((tmp_path / "begun-1").exists)
        assert shop.hang.get_result(result.id).status == TaskResultStatus.RUNNING
        killed.kill()
        killed.wait()
        other = worker_process(backend)
        eventually((tmp_path / "begun-2").exists)
        # A worker that is told to stop finishes what it has begun.
        other.send_signal(signal.SIGTERM)
        (tmp_path / "go-2").touch()
        assert other.wait(60) == 0
        result.refresh()
        assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2, 2)
        assert len(set(result.worker_ids)) == 2
        close_all()  # before the server ends


def worker_process(backend: TasksBackend) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "JOURNAL": str(backend.given.url), "ENQUEUE": backend.given.enqueue}
    environ |= {"DATABASE": connections["default"].settings_dict["NAME"], "DJANGO_SETTINGS_MODULE": "django_settings"}
    environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "django", "penstock_worker", "--concurrency", "2"]
    return subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)


# ── settings and the command ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urls": "x"}, "unknown option 'urls': did you mean 'url'"),
        ({"colour": 1}, "unknown option 'colour': there are url, "),
        ({"url": ""}, "needs 'url'"),
        ({"enqueue": "later"}, "is one of on_commit, at_once, outbox, not 'later'"),
        ({"database": "orders"}, "names 'orders', which is not in DATABASES"),
    ],
)
def test_wrong_options_are_named(
    configured: Callable[..., TasksBackend], options: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidTaskBackend, match=said):
        configured(**options)


def test_checks_name_queues_that_a_journal_cannot_have(backend: TasksBackend) -> None:
    backend.queues = {"default", "e mail"}
    (found,) = backend.check()
    assert "'django.e mail' cannot be used" in found.msg


def test_the_command_names_what_it_cannot_find(backend: TasksBackend) -> None:
    with pytest.raises(CommandError, match="doesn't exist"):
        call_command("penstock_worker", backend="mail")
    with pytest.raises(CommandError, match="no queue 'reports' of this backend"):
        call_command("penstock_worker", queue_name="default,reports", batch=True)
    with pytest.raises(CommandError, match="concurrency must be"):
        call_command("penstock_worker", concurrency=0, batch=True)


def test_the_command_runs_a_batch(backend: TasksBackend) -> None:
    results = [shop.add.using(queue_name=name).enqueue(1, 1) for name in ("default", "mail")]
    run_batch(queue_name="mail")
    assert [backend.get_result(one.id).is_finished for one in results] == [False, True]


def test_each_thread_has_a_backend_and_the_process_one_journal(backend: TasksBackend) -> None:
    found: list[TasksBackend] = []
    thread = threading.Thread(target=lambda: found.append(task_backends["default"]))
    thread.start()
    thread.join()
    assert found[0] is not backend
    assert found[0].journal is backend.journal


def test_a_result_that_is_not_there_is_said_so(backend: TasksBackend) -> None:
    for id in ("123", "", "x" * 1000, 123):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(id)


def test_results_are_kept_as_long_as_the_options_say(configured: Callable[..., TasksBackend]) -> None:
    backend = configured(keep_results=timedelta(hours=1))
    shop.add.enqueue(1, 1)
    assert backend.states.settings.max_age == 3600
    assert backend.states.settings.by_key


def test_the_tasks_are_events_of_the_journal(backend: TasksBackend) -> None:
    result = shop.add.enqueue(1, 1)
    work(backend)
    states = [event.kind for event in backend.states.read(key=result.id)]
    assert states == ["enqueued", "started", "successful"]
    assert next(backend.states.read(key=result.id)).recorded_at <= datetime.now(UTC)
