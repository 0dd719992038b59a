"""Celery 5.7.0 with a journal as its broker and result backend.

The integration tests that kombu's authors wrote for all transports are a part of the night, `kombu_suite.py`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import celery_shop as shop
import kombu
import pytest
from celery import Celery, chain, chord, group
from kombu.asynchronous.hub import Hub

import penstock
from penstock.integrations.celery.transport import Binding, Bindings, dedup_of, eta_of, safe_name
from penstock.integrations.opening import close_all
from server.process import ServerProcess
from waiting import DEADLINE, eventually

NIGHTLY = pytest.mark.nightly("strangers-celery")
FOLDER = Path(__file__).parent


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"penstock://{tmp_path}/shop.db"


class Client:
    """A connection with a consumer of some queues, and what it has received."""

    def __init__(self, connection: kombu.Connection, *queues: kombu.Queue, **options: Any) -> None:
        self.connection = connection
        self.received: list[kombu.Message] = []
        self.consumer = kombu.Consumer(connection, list(queues), on_message=self.received.append, **options)
        self.consumer.consume()

    @property
    def bodies(self) -> list[object]:
        return [message.decode() for message in self.received]

    def drain(self, count: int) -> list[kombu.Message]:
        """Waits until so many messages have come in all."""

        def came() -> bool:
            if len(self.received) < count:
                with suppress(TimeoutError):
                    self.connection.drain_events(timeout=0.1)
            return len(self.received) >= count

        eventually(came)
        return self.received

    def drain_all(self) -> list[kombu.Message]:
        """What comes at once."""
        try:
            while True:
                self.connection.drain_events(timeout=0.05)
        except TimeoutError:
            return self.received


@contextmanager
def client(url: str, *queues: str | kombu.Queue, **options: Any) -> Iterator[Client]:
    named = [one if isinstance(one, kombu.Queue) else kombu.Queue(one, routing_key=one) for one in queues]
    prefetch = {"prefetch_count": options.pop("prefetch_count", 0)}
    with kombu.Connection(url, transport_options=options) as connection:
        yield Client(connection, *named, **prefetch)


def publish(url: str, queue: str, *bodies: object, **options: Any) -> None:
    with kombu.Connection(url) as connection, connection.channel() as channel:
        for body in bodies:
            kombu.Producer(channel).publish(body, routing_key=queue, **options)


def journal_of(url: str) -> penstock.Journal:
    return penstock.open(url.removeprefix("penstock://"))


# ── the transport ────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_message_is_an_event_that_other_programs_can_read(url: str) -> None:
    publish(url, "celery", {"to": "ada"}, headers={"task": "shop.send"})
    with journal_of(url) as journal:
        (event,) = journal.topic("celery").read()
        assert event.kind == "shop.send"
        assert event.payload["body"] == '{"to": "ada"}'
    publish(url, "celery", b"\xff\x00", content_type="application/data", content_encoding="binary")
    with client(url, "celery") as one:
        assert [message.body for message in one.drain(2)][1] == b"\xff\x00"


def test_no_more_is_delivered_than_may_be_unacknowledged(url: str) -> None:
    publish(url, "celery", *range(5))
    with client(url, "celery", prefetch_count=2) as one, client(url, "celery") as other:
        assert len(one.drain_all()) == 2
        assert other.drain_all()[0].decode() == 2
        one.received[0].ack()
        assert len(one.drain_all()) == 2  # the other consumer has the rest
        assert len(other.received) == 3


@contextmanager
def event_loop(one: Client) -> Iterator[Hub]:
    """A hub that the connection's messages are delivered from."""
    hub = Hub()
    hub.call_repeatedly(0.01, lambda: None)  # an end to every pause
    one.connection.register_with_event_loop(hub)
    try:
        yield hub
    finally:
        one.connection.close()
        hub.close()


def turns(hub: Hub, condition: Callable[[], object]) -> None:
    """Turns of the event loop until the condition holds."""

    def turned() -> object:
        hub.run_once()
        return condition()

    eventually(turned)


def test_an_event_loop_delivers_no_more_than_may_be_unacknowledged(url: str) -> None:
    with client(url, "celery", prefetch_count=2) as one, journal_of(url) as journal, event_loop(one) as hub:
        queue = journal.queue("celery")
        for _ in range(5):
            hub.run_once()  # it waits before anything is there
        publish(url, "celery", *range(5))
        turns(hub, lambda: len(one.received) == 2)
        for _ in range(5):
            hub.run_once()
        assert (one.bodies, queue.stats().in_flight, queue.stats().ready) == ([0, 1], 2, 3)
        acknowledging = threading.Thread(target=one.received[0].ack)
        acknowledging.start()
        turns(hub, lambda: len(one.received) == 3)
        acknowledging.join()
        assert one.bodies == [0, 1, 2]


def test_a_message_that_comes_while_the_event_loop_is_busy_is_kept_and_given_back_in_the_end(url: str) -> None:
    with client(url, "celery", visibility_timeout=0.3) as one, journal_of(url) as journal:
        queue = journal.queue("celery")
        with event_loop(one) as hub:
            turns(hub, lambda: True)
            publish(url, "celery", "x")
            eventually(lambda: queue.stats().in_flight == 1)
            time.sleep(0.6)  # the loop does not turn for two leases
            assert queue.stats().in_flight == 1
            one.consumer.cancel()
            hub.run_once()
            assert (one.received, queue.stats().ready) == ([], 1)
            one.consumer.consume()
            hub.run_once()
            hub.run_once()
            publish(url, "celery", "y")
        assert queue.stats().ready == 2
        assert [delivery.attempt for delivery in queue.take_many(2)] == [1, 1]


def test_a_connection_goes_on_with_the_next_of_several_urls(url: str) -> None:
    with kombu.Connection(["penstock+http://127.0.0.1:1", url]) as connection:
        connection.ensure_connection(max_retries=3, interval_start=0, interval_step=0)
        kombu.Producer(connection.channel()).publish("x", routing_key="celery")
        kombu.Queue("celery")(connection.default_channel).declare()
    with journal_of(url) as journal:
        assert journal.queues() == ["celery"]


def test_messages_of_a_higher_priority_come_first(url: str) -> None:
    for priority in (0, 9, 5):
        publish(url, "celery", priority, priority=priority)
    with client(url, "celery") as one:
        one.drain(3)
        assert one.bodies == [9, 5, 0]


def test_leases_are_renewed_while_a_message_is_worked_on(url: str) -> None:
    publish(url, "celery", "slow")
    with client(url, "celery", visibility_timeout=0.3) as one:
        (message,) = one.drain(1)
        with journal_of(url) as journal:
            queue, until = journal.queue("celery"), time.monotonic() + 1
            while time.monotonic() < until:
                assert queue.take() is None
                time.sleep(0.01)
            message.ack()
            assert len(queue) == 0


def test_a_connection_that_ends_gives_its_messages_back(url: str) -> None:
    publish(url, "celery", "first", "second")
    with client(url, "celery") as one:
        one.drain(2)
        one.received[0].ack()
    with client(url, "celery") as one:
        (message,) = one.drain(1)
        assert message.decode() == "second"
        assert message.delivery_info["redelivered"] is False  # nothing has gone wrong with it


def test_a_message_of_a_dead_consumer_comes_again_and_says_so(url: str) -> None:
    publish(url, "celery", "x")
    with journal_of(url) as journal:
        assert journal.queue("celery").take(lease=0.05) is not None
        with client(url, "celery") as one:
            (message,) = one.drain(1)
            assert message.delivery_info["redelivered"] is True


def test_a_late_acknowledgement_is_no_error(url: str) -> None:
    publish(url, "celery", "x")
    with client(url, "celery") as one, journal_of(url) as journal:
        (message,) = one.drain(1)
        (overtaken,) = journal.queue("celery").claim(min_idle=0)
        message.ack()
        overtaken.ack()


def test_rejected_messages_stay_in_the_journal_failed(url: str) -> None:
    publish(url, "celery", "bad", "again")
    with client(url, "celery") as one:
        bad, again = one.drain(2)
        bad.reject()
        again.requeue()
        assert one.drain(3)[2].decode() == "again"
        assert one.received[2].delivery_info["redelivered"] is True
    with journal_of(url) as journal:
        (failure,) = journal.queue("celery").failures()
        assert failure.error == "rejected"


def test_what_is_no_message_of_kombus_is_set_aside(url: str) -> None:
    with journal_of(url) as journal:
        journal.queue("celery", priority=True).push({"order": 1})
        publish(url, "celery", "good")
        with client(url, "celery") as one:
            one.drain(1)
            assert one.bodies == ["good"]
        assert journal.queue("celery").stats().failed == 1


def test_a_time_before_which_a_task_must_not_run_is_a_delay_of_its_queue(url: str) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    publish(url, "celery", "later", headers={"id": "1", "eta": later.isoformat()})
    with client(url, "celery") as one, journal_of(url) as journal:
        assert one.drain_all() == []
        (waiting,) = journal.queue("celery").messages("delayed")
        assert waiting.due is not None
        assert abs(waiting.due - later) < timedelta(milliseconds=2)
        journal.queue("celery").run_now([waiting.seq])
        assert one.drain(1)[0].headers["eta"] == later.isoformat()
    assert eta_of("2026-01-01T00:00:00") == datetime(2026, 1, 1, tzinfo=UTC)
    assert eta_of("tomorrow") is None


def test_what_a_task_sends_again_when_it_runs_again_has_one_name() -> None:
    link = {"id": "second", "task": "add"}
    assert dedup_of(link, "celery#7") == dedup_of({**link, "eta": "2026-01-01"}, "celery#7")
    assert dedup_of(link, "celery#7") != dedup_of(link, "celery#8")  # another message of the same task
    assert dedup_of(link, "celery#7") != dedup_of({**link, "retries": 1}, "celery#7")
    assert dedup_of(link, None) is None  # a program may send the same id twice
    assert len(dedup_of({"id": "x" * 1000}, "celery#7") or "") < 400


def test_a_message_past_its_expiration_is_not_delivered(url: str) -> None:
    publish(url, "celery", "old", expiration=0.001)
    publish(url, "celery", "new", expiration=3600)
    time.sleep(0.01)
    with client(url, "celery") as one:
        one.drain(1)
        assert one.bodies == ["new"]


def test_a_fanout_exchange_of_another_process_reaches_every_queue(url: str) -> None:
    exchange = kombu.Exchange("news", type="fanout")
    with client(url, kombu.Queue("a", exchange), kombu.Queue("b", exchange)) as one:
        program = (
            "import kombu, penstock.integrations.celery\n"
            f"with kombu.Connection({url!r}) as c:\n"
            "    kombu.Producer(c.channel()).publish('hello', exchange='news')\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True)
        one.drain(2)
        assert one.bodies == ["hello", "hello"]


def test_bindings_are_read_anew_when_compaction_has_removed_some(url: str) -> None:
    with journal_of(url) as journal:
        seen, other = Bindings(journal), Bindings(journal)
        bindings = [Binding("e", "direct", "k", None, f"q{number}") for number in range(5)]
        for binding in bindings:
            other.bind(binding)
        assert seen.of("e") == bindings
        for number in range(4):
            other.unbind(f"q{number}")
            other.bind(bindings[number])
        other.unbind("q0")
        journal.topic("kombu-bindings").compact_keys()
        assert {one.queue for one in seen.of("e")} == {"q1", "q2", "q3", "q4"}
        assert {one.queue for one in Bindings(journal).of("e")} == {"q1", "q2", "q3", "q4"}


def test_a_temporary_queue_goes_with_its_consumer_or_when_it_is_abandoned(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = kombu.Exchange("events", type="topic")
    temporary = kombu.Queue("watcher", exchange, routing_key="#", auto_delete=True, expires=0.01)
    with client(url, temporary) as one, journal_of(url) as journal:
        assert journal.queues() == ["watcher"]
        one.consumer.cancel()
        assert journal.queues() == []
        assert Bindings(journal).of("events") == []
        killed = kombu.Connection(url)  # it never says that it ends
        killed.channel()
        temporary(killed.default_channel).declare()
        monkeypatch.setattr("penstock.integrations.celery.transport.ABANDONED", 0.02)
        producer = kombu.Producer(one.connection, exchange=exchange)
        producer.publish("tick", routing_key="tick")
        assert journal.queues() == ["watcher"]
        time.sleep(0.05)
        producer.publish("tick", routing_key="tick")
        assert journal.queues() == []
        producer.publish("tick", routing_key="tick")
        killed.release()


def test_a_consumer_that_was_slow_gets_its_temporary_queue_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.integrations.celery.transport.ABANDONED", 0.02)
    exchange = kombu.Exchange("control", type="fanout")
    temporary = kombu.Queue("slow", exchange, expires=0.01, message_ttl=3600)
    with client(url, temporary) as one, kombu.Connection(url) as connection, journal_of(url) as journal:
        producer = kombu.Producer(connection, exchange=exchange)
        producer.publish("lost")
        time.sleep(0.05)
        producer.publish("lost")
        assert journal.queues() == []
        assert one.drain_all() == []
        assert journal.queue("slow", create=False).policy.ttl == 3600
        producer.publish("heard")
        one.drain(1)
        assert one.bodies == ["heard"]


def test_a_queue_that_is_unbound_gets_no_more(url: str) -> None:
    exchange = kombu.Exchange("news", type="direct")
    queue = kombu.Queue("news", exchange, routing_key="a")
    with client(url, queue) as one, kombu.Connection(url) as connection:
        bound = queue(one.consumer.channel)
        bound.bind_to(exchange, "b")
        bound.unbind_from(exchange, "a")
        for routing_key in "ab":
            kombu.Producer(connection, exchange=exchange).publish(routing_key, routing_key=routing_key)
        one.drain(1)
        assert one.drain_all()[1:] == []
        assert one.bodies == ["b"]


def test_a_forked_process_publishes_on_a_connection_of_its_parent(url: str) -> None:
    program = (
        "import kombu, os, penstock.integrations.celery\n"
        f"producer = kombu.Producer(kombu.Connection({url!r}).channel())\n"
        "producer.publish('parent', routing_key='celery')\n"
        "if (child := os.fork()) == 0:\n"
        "    producer.publish('child', routing_key='celery')\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "producer.publish('parent', routing_key='celery')\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=DEADLINE)
    with client(url, "celery") as one:
        one.drain(3)
        assert one.bodies == ["parent", "child", "parent"]


def test_purging_leaves_what_is_worked_on(url: str) -> None:
    publish(url, "celery", *range(30))
    with client(url, "celery", prefetch_count=1) as one:
        (message,) = one.drain(1)
        assert one.consumer.purge() == 29
        message.ack()
        assert one.drain_all() == [message]


def test_names_that_a_journal_does_not_allow_are_kept_apart() -> None:
    assert safe_name("celery") == "celery"
    assert safe_name("celery@host.celery.pidbox").startswith("celery-host.celery.pidbox-")
    names = ["a b", "a-b", "a@b", "..", ".", "x" * 300, "x" * 301]
    assert len({safe_name(name) for name in names}) == len(names)


# ── a real worker ────────────────────────────────────────────────────────────────────────────────────────────────────
class Worker:
    """`celery worker` in processes of its own, which can all be killed at once."""

    def __init__(self, url: str, pool: str = "prefork") -> None:
        self._url, self._pool = url, pool
        self.start()

    def start(self) -> None:
        environ = {**os.environ, "BROKER": self._url}
        environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "celery", "-A", "celery_shop", "worker", "-P", self._pool, "-c", "2"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([*command, "-l", "ERROR"], env=environ, start_new_session=True, **quiet)

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(DEADLINE)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()


@pytest.fixture
def app(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """The app of `celery_shop`, on a journal of this test's."""
    monkeypatch.setattr(shop.app.conf, "broker_url", url)
    monkeypatch.setattr(shop.app.conf, "result_backend", url)
    shop.app.set_default()
    vars(shop.app._local).clear()
    shop.app.amqp._producer_pool = shop.app._pool = None
    yield shop.app
    shop.app.close()
    vars(shop.app._local).clear()
    shop.app.amqp._producer_pool = shop.app._pool = None


def check_canvas(folder: Path) -> None:
    """Results, chains, groups, chords, retries, delays and the worker's remote control."""
    assert chain(shop.add.s(1, 2), shop.add.s(3), shop.add.s(4)).apply_async().get(timeout=DEADLINE) == 10
    assert group(shop.add.s(n, n) for n in range(4)).apply_async().get(timeout=DEADLINE) == [0, 2, 4, 6]
    parts = [shop.add.s(n, 1) for n in range(5)]
    assert chord(parts, shop.total.s()).apply_async().get(timeout=DEADLINE) == 15
    nested = chain(shop.add.s(1, 1), group(shop.add.s(1), shop.add.s(2)), shop.total.s())
    assert nested.apply_async().get(timeout=DEADLINE) == 7
    assert shop.retry_until.delay(2).get(timeout=DEADLINE) == 2
    assert shop.add.apply_async((2, 3), countdown=0.2, priority=3).get(timeout=DEADLINE) == 5
    (answer,) = shop.app.control.inspect(limit=1, timeout=DEADLINE).ping().values()
    assert answer == {"ok": "pong"}
    (queues,) = shop.app.control.inspect(limit=1, timeout=DEADLINE).active_queues().values()
    assert [queue["name"] for queue in queues] == ["celery"]
    revoked = shop.note.apply_async((0, str(folder)), countdown=0.3)
    assert shop.app.control.revoke(revoked.id, reply=True, timeout=DEADLINE, limit=1)
    with pytest.raises(Exception, match="revoked"):
        revoked.get(timeout=DEADLINE)


def test_tasks_chains_and_chords_run_and_a_killed_workers_task_goes_to_the_next(
    app: Celery, url: str, tmp_path: Path
) -> None:
    with Worker(url) as worker:
        check_canvas(tmp_path)
        left = shop.hang.delay(str(tmp_path))
        eventually((tmp_path / "begun-0").exists)
        worker.kill()
        worker.start()
        eventually((tmp_path / "begun-1").exists)
        time.sleep(1.5)  # longer than a lease: it is renewed, so no other run begins
        (tmp_path / "go").touch()
        assert left.get(timeout=DEADLINE) == 1
        assert sorted(path.name for path in tmp_path.glob("begun-*")) == ["begun-0", "begun-1"]
        with journal_of(url) as journal:
            eventually(lambda: journal.queue("celery").stats().in_flight == 0)
            assert len(journal.queue("celery")) == journal.queue("celery").stats().failed == 0


@NIGHTLY
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_every_pool_runs_everything(app: Celery, url: str, tmp_path: Path, pool: str) -> None:
    with Worker(url, pool) as worker:
        check_canvas(tmp_path)
        assert worker.stop() == 0
    with journal_of(url) as journal:
        assert journal.queues() == ["celery"]  # the queues of remote control went with the worker


@NIGHTLY
def test_a_served_journal_is_a_broker_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", token := "a-token-that-may-only-write")
    with ServerProcess(tmp_path / "shop.db", f"write {token}") as server:
        served = f"penstock+{server.url}"
        for name in ("broker_url", "result_backend"):
            monkeypatch.setattr(shop.app.conf, name, served)
        vars(shop.app._local).clear()
        shop.app.amqp._producer_pool = shop.app._pool = None
        with Worker(served) as worker:
            check_canvas(tmp_path)
            assert worker.stop() == 0
        shop.app.close()
        close_all()


@NIGHTLY
def test_no_message_is_lost_or_copied_by_workers_that_are_killed(app: Celery, url: str, tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}: kills are drawn from it")
    chance = random.Random(seed)
    with journal_of(url) as journal:
        queue = journal.queue("celery", priority=True, max_attempts=100, dedup_window=3600, feed=True)
        single = [shop.note.delay(number, str(tmp_path), 0.05) for number in range(60)]
        chains = [
            chain(shop.note.s(1000 + number, str(tmp_path), 0.05), *[shop.add.s(1)] * 4).apply_async()
            for number in range(10)
        ]
        chords = [
            chord([shop.note.s(2000 + 10 * number + part, str(tmp_path), 0.05) for part in range(5)], shop.total.s())
            for number in range(5)
        ]
        bodies = [one.apply_async() for one in chords]
        with Worker(url) as worker:
            for _ in range(8):
                time.sleep(1 + 2 * chance.random())
                worker.kill()
                worker.start()
            assert [one.get(timeout=DEADLINE) for one in single] == list(range(60))
            assert [one.get(timeout=DEADLINE) for one in chains] == [1004 + number for number in range(10)]
            expected = [sum(2000 + 10 * number + part for part in range(5)) for number in range(5)]
            assert [one.get(timeout=DEADLINE) for one in bodies] == expected
            eventually(lambda: len(queue) == 0)
            assert worker.stop() == 0
        pushed = sum(1 for _ in journal.topic("celery.feed").read(kind="pushed"))
        assert pushed == 60 + 10 * 5 + 5 * 6  # every message once, however often its task was begun
        assert queue.stats().failed == 0
