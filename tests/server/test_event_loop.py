"""One event loop serves all clients: what waits (a gate, the store, a writer that is behind) waits elsewhere."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Draft
from penstock.api import local
from penstock.core.journal.writer import WriteRequest
from penstock.core.protocol.openapi import OPERATIONS
from penstock.core.protocol.operation import SSE
from penstock.errors import Backpressure
from penstock.server.limits import Limits
from server.serving import Served, serving
from server.test_roles import World
from waiting import DEADLINE, eventually

SIXTY = 60
"""Requests at once: more than a pool of threads has."""

WRITES: dict[str, Callable[[Served], Any]] = {
    "append one": lambda at: at.post("/v1/topics/t/events", {"kind": "k"}),
    "append many": lambda at: at.post("/v1/topics/t/events", [{"kind": "k", "dedup": "a"}, {"kind": "k"}]),
    "append to several": lambda at: at.post("/v1/append", [{"topic": "t", "kind": "k"}]),
    "push": lambda at: at.post("/v1/queues/q/messages", {"payload": 1}),
    "take": lambda at: at.post("/v1/queues/q/take", {}),
    "ack": lambda at: at.post("/v1/queues/q/ack", {"tokens": ["x"]}),
    "ack and take": lambda at: at.post("/v1/queues/q/deliveries/x/next", {}),
}
COMMITTED = {200, 201, 409}
"""The statuses of writes that have had their turn; a delivery that is not held is found out only then."""


def in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Barrier:
    """A gate that lets nobody through until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.waiting = 0

    def __call__(self, draft: Draft) -> None:
        self.waiting += 1
        assert self._open.wait(DEADLINE)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def barrier(journal: penstock.Journal) -> Iterator[Barrier]:
    found = Barrier()
    for name in ("slow", "slow-queue"):
        journal.topic(name).gate(found)
    yield found
    found.open()


@contextmanager
def writer_held(journal: penstock.Journal) -> Iterator[None]:
    """The writer is busy, and as many submissions wait for it as it takes."""
    writer, held, end = local(journal, "a test")._core.writer, threading.Event(), threading.Event()

    def hold(commit: object) -> None:
        held.set()
        assert end.wait(DEADLINE)

    thread = threading.Thread(target=lambda: writer.run(WriteRequest(hold)))
    thread.start()
    assert held.wait(DEADLINE)
    waiting = [journal.topic("before").submit("k") for _ in range(writer.capacity - writer.pending())]
    try:
        yield
    finally:
        end.set()
        thread.join()
        for ticket in waiting:
            ticket.result(DEADLINE)


# ── gates ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_while_gates_wait_every_other_request_is_answered(
    journal: penstock.Journal, served: Served, barrier: Barrier
) -> None:
    journal.queue("slow-queue")
    journal.queue("q").push(1)
    slow = [
        lambda: served.post("/v1/topics/slow/events", {"kind": "k"}),
        lambda: served.post("/v1/topics/slow/events", [{"kind": "k", "headers": {"a": "b"}}] * 3),
        lambda: served.post("/v1/append", [{"topic": "slow", "kind": "k"}]),
        lambda: served.post("/v1/queues/slow-queue/messages", {"payload": 1}),
    ]
    with ThreadPoolExecutor(SIXTY) as pool:
        held = [pool.submit(slow[number % len(slow)]) for number in range(SIXTY)]
        eventually(lambda: barrier.waiting)
        assert served.get("/healthz").status == 200
        assert served.get("/v1/topics").status == 200
        taken = served.post("/v1/queues/q/take", {}).json["deliveries"]
        assert served.post("/v1/queues/q/ack", {"tokens": [taken[0]["token"]]}).json == {"acknowledged": 1}
        assert not any(one.done() for one in held)
        barrier.open()
        assert {one.result().status for one in held} == {201}


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────
FOLLOWED = {one.name for one in OPERATIONS if SSE in one.media}
"""They read the newest block, which is in memory, where they wait for it."""
IN_TURN = sorted(OPERATIONS, key=lambda one: one.name.startswith(("drop_", "purge_")))
"""Every operation; those that take away what the others are asked about come last."""
STALL = 0.05
"""Seconds that the event loop may be away from its other clients."""


def test_no_operation_asks_the_store_or_a_gate_in_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, found = World(tmp_path), []
    engine, running = world.journal._engine, [""]

    def seen(what: str) -> None:
        if in_event_loop():
            found.append((running[0], what))

    for name in ("read", "write"):
        original = getattr(engine, name)

        def asked(*given: Any, original: Any = original, name: str = name, **options: Any) -> Any:
            seen(f"{name}s the store")
            return original(*given, **options)

        monkeypatch.setattr(engine, name, asked)
    for name in ("ledger", "jobs", "new"):
        world.journal.topic(name).gate(lambda draft: seen("asks a gate"))
    try:
        for one in IN_TURN:
            if one.name not in FOLLOWED:
                running[0] = one.name
                for target in ("ledger", "jobs", "nothing"):
                    world.ask(one, target, "admin")
    finally:
        world.close()
    assert not found


@dataclass
class Stalls:
    """The longest step of an event loop in CPU time, which no busy machine changes. A gate in it counts as endless."""

    longest: float = 0.0
    asked: int = 0

    def gate(self, draft: object) -> None:
        """Counts a call as a gate; a gate may wait for anything, so it must not be called in an event loop."""
        self.asked += 1
        if in_event_loop():
            self.longest = inf

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def timed(handle: asyncio.Handle, run: Callable[[asyncio.Handle], None] = asyncio.Handle._run) -> None:
            began = time.thread_time()
            run(handle)
            self.longest = max(self.longest, time.thread_time() - began)

        monkeypatch.setattr(asyncio.Handle, "_run", timed)

    def of(self, ask: Callable[[], object]) -> float:
        """Returns the longest step of a request, the best of five: the first request of a kind also fills caches."""
        found = []
        while len(found) < 5 and (not found or found[-1] > STALL):
            self.longest = 0.0
            ask()
            found.append(self.longest)
        return min(found)


def test_no_operation_keeps_the_event_loop_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics have gates, and thousands of events to answer with."""
    world, stalls = World(tmp_path), Stalls()
    cause = world.event.id  # type: ignore[union-attr]
    many = [Draft("paid", "x" * 300, key=f"k{n % 50}", correlation="together", cause=cause) for n in range(3000)]
    world.journal.topic("ledger").append_many(many)
    world.journal.queue("jobs").push_many(["x" * 300] * 3000)

    for name in ("ledger", "jobs", "news"):
        world.journal.topic(name).gate(stalls.gate)
    stalls.watch(monkeypatch)
    try:
        world.ask(IN_TURN[0], "", "admin")  # the first request makes the routes
        found = {
            (one.name, target): stalls.of(lambda one=one, target=target: world.ask(one, target, "admin"))
            for one in IN_TURN
            for target in ("ledger", "jobs")
        }
    finally:
        world.close()
    assert stalls.asked >= 3, "no gate was asked"
    assert not {which: seconds for which, seconds in found.items() if seconds > STALL}


def test_a_gate_or_a_computation_in_the_event_loop_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stalls = Stalls()
    stalls.watch(monkeypatch)

    async def asked() -> None:
        stalls.gate(None)

    async def computed() -> None:
        end = time.thread_time() + STALL * 1.5
        while time.thread_time() < end:
            pass

    assert stalls.of(lambda: asyncio.run(asked())) > STALL
    assert stalls.of(lambda: asyncio.run(computed())) > STALL


# ── a writer that is behind ──────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("write", WRITES)
def test_a_full_writer_answers_503_and_holds_nobody_else_up(write: str) -> None:
    with penstock.open("memory:", writer_capacity=4) as journal:
        journal.queue("q").push(1)
        with serving(journal, limits=Limits(write_timeout=0.02)) as served:
            assert WRITES[write](served).status in COMMITTED
            with writer_held(journal):
                answer = WRITES[write](served)
                assert (answer.status, answer.json["error"]) == (503, "Backpressure")
                assert int(answer.headers["Retry-After"]) >= 1
                assert served.get("/v1/topics/t/events").status == 200
            assert WRITES[write](served).status in COMMITTED


def test_a_write_waits_for_a_full_writer_and_goes_through() -> None:
    with penstock.open("memory:", writer_capacity=4) as journal:
        journal.queue("q")
        with serving(journal) as served, ThreadPoolExecutor(len(WRITES)) as pool:
            with writer_held(journal):
                waiting = [pool.submit(write, served) for write in WRITES.values()]
                assert served.get("/v1/topics").status == 200
                assert not any(one.done() for one in waiting)
            assert {one.result().status for one in waiting} <= COMMITTED
            assert len(journal.topic("t")) == 1 + 2 + 1


def test_try_submit_over_http_does_not_wait_for_a_full_writer() -> None:
    with (
        penstock.open("memory:", writer_capacity=4) as journal,
        serving(journal) as served,
        penstock.open(served.url) as remote,
    ):
        topic = remote.topic("t")
        with writer_held(journal):
            with pytest.raises(Backpressure) as refused:
                topic.try_submit("k").result(DEADLINE)
            assert refused.value.retry_after > 0
            with pytest.raises(Backpressure):
                topic.try_submit_many([Draft("k"), Draft("k")]).result(DEADLINE)
            patient = topic.submit("k")
        assert patient.result(DEADLINE).seq == 1
        assert topic.try_submit("k").result(DEADLINE).seq == 2


def test_what_is_awaited_over_http_waits_for_a_full_writer() -> None:
    with penstock.open("memory:", writer_capacity=4) as journal, serving(journal) as served:

        async def append() -> int:
            async with await penstock.aio.open(served.url) as remote:
                return (await remote.topic("t").append("k")).seq

        with ThreadPoolExecutor(1) as pool:
            with writer_held(journal):
                appended = pool.submit(asyncio.run, append())
                assert served.get("/v1/topics").status == 200
                assert not appended.done()
            assert appended.result(DEADLINE) == 1
