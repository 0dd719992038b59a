"""Producers and consumers that die, restart and overlap, over a store that fails, delays and loses answers.

What must hold, whatever the seed: the entries of every resolved ticket reach an exactly-once sink, in manifest order,
and none twice; only the owner of the newest epoch moves the frontier; nothing named, now or later, is collected.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from penstock.buffer import Batch, Consumer, Producer
from penstock.core.clock import ManualClock
from penstock.core.observe.metrics import Registry
from penstock.errors import Closed, Fenced, PenstockError, StorageError
from penstock.objects.store import ObjectStore, open_store

from .audit import Audit
from .azure_emulator import azurite
from .faults import FaultyStore, Killed, Rates

GRACE = 600


class Sink:
    """Takes each sequence once, with its entries, atomically; a repeated one is skipped, a gap is a loss."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last: int | None = None
        self.entries: list[bytes] = []
        self.gaps: list[str] = []
        self.repeats = 0

    def take(self, batch: Batch) -> None:
        with self._lock:
            due = 0 if self.last is None else self.last + 1
            if batch.sequence < due:
                self.repeats += 1
                return
            if batch.sequence > due:
                self.gaps.append(f"{batch.sequence} came, {due} was due")
            self.entries += batch.entries
            self.last = batch.sequence


class World:
    """Everything that acts on one buffer during a test."""

    def __init__(self, store: ObjectStore, seed: int, rates: Rates, pace: float) -> None:
        self.audit = Audit(store)
        self.random = random.Random(seed)
        self.rates = rates
        self.pace = pace  # the longest a producer waits between calls
        self.clock = ManualClock()
        self.sink = Sink()
        self.tickets: list[tuple[str, object]] = []
        self.unexpected: list[BaseException] = []
        self._born = Counter[str]()
        self._threads: list[threading.Thread] = []
        self._overs: list[threading.Event] = []
        self.consumers: list[threading.Thread] = []
        self._stop = threading.Event()

    def start(self, kind: str, name: str) -> tuple[FaultyStore, threading.Event]:
        """A new life of the actor `name`, and what ends it."""
        self._born[name] += 1
        life = f"{name}.{self._born[name]}"
        store = FaultyStore(self.audit.view(life), self.rates, seed=self.random.randrange(1 << 30))
        over = threading.Event()
        self._overs.append(over)
        work = {"producer": self._produce, "reader": self._read, "runner": self._run}[kind]
        thread = threading.Thread(
            daemon=True, target=self._live, args=(work, store, life, over, self.random.randrange(1 << 30))
        )
        self._threads.append(thread)
        if kind != "producer":
            self.consumers.append(thread)
        thread.start()
        return store, over

    def _live(self, work, store: FaultyStore, life: str, over: threading.Event, seed: int) -> None:
        try:
            work(store, life, over, random.Random(seed))
        except Killed:
            pass
        except BaseException as error:
            self.unexpected.append(error)

    def _produce(self, store: FaultyStore, life: str, over: threading.Event, rng: random.Random) -> None:
        producer = Producer(
            store, flush_interval=0.001, flush_bytes=rng.choice([1, 60, 4000]), clock=self.clock, gc_grace=GRACE,
            max_buffered=50, metrics=Registry(),
        )  # fmt: skip
        n = 0
        try:
            while not (over.is_set() or self._stop.is_set()):
                ids = [f"{life}:{n + k}" for k in range(rng.randrange(1, 4))]
                n += len(ids)
                try:
                    ticket = producer.produce([each.encode() for each in ids], timeout=0.2)
                except PenstockError:
                    continue
                self.tickets.extend((each, ticket) for each in ids)
                if rng.random() < 0.5:
                    time.sleep(rng.uniform(0, self.pace))
            if not store.dead:
                producer.close(timeout=300)
        finally:
            producer._pipeline.give_up()
            producer._pipeline.stop()

    def _consumer(self, store: FaultyStore, over: threading.Event) -> Consumer | None:
        while not (over.is_set() or self._stop.is_set()):
            try:
                return Consumer(
                    store, after=self.sink.last, gc_interval=0.01, gc_grace=GRACE, clock=self.clock, metrics=Registry()
                )
            except StorageError:
                continue
            except Fenced:
                return None
        return None

    def _read(self, store: FaultyStore, life: str, over: threading.Event, rng: random.Random) -> None:
        consumer = self._consumer(store, over)
        if consumer is None:
            return
        try:
            while not (over.is_set() or self._stop.is_set()):
                try:
                    self._read_some(consumer, rng)
                except StorageError:
                    continue
                except (Fenced, Closed):
                    return
        finally:
            consumer._collector.stop()

    def _read_some(self, consumer: Consumer, rng: random.Random) -> None:
        batch = consumer.next_batch()
        if batch is None:
            time.sleep(0.001)
            return
        self.sink.take(batch)
        while True:
            try:
                if rng.random() < 0.5:
                    consumer.ack(batch.sequence)
                else:
                    consumer.ack_through(batch.sequence)
                return
            except StorageError:
                continue

    def _run(self, store: FaultyStore, life: str, over: threading.Event, rng: random.Random) -> None:
        consumer = self._consumer(store, over)
        if consumer is None:
            return
        ender = threading.Thread(daemon=True, target=lambda: (over.wait(60), consumer.stop()))
        ender.start()
        try:
            while not (over.is_set() or self._stop.is_set()):
                try:
                    if consumer.run(self.sink.take, concurrency=3, ahead=5, poll=0.001, ack_interval=0.002).fenced:
                        return
                except StorageError:
                    continue
        finally:
            over.set()
            ender.join(60)
            consumer._collector.stop()

    def end(self) -> None:
        """Lets everybody alive finish in a store that works, then consumes what is left."""
        self._stop.set()
        for over in self._overs:
            over.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "an actor did not end"
        last = Consumer(
            self.audit.view("last"), after=self.sink.last, gc_interval=None, gc_grace=GRACE, clock=self.clock,
            metrics=Registry(),
        )  # fmt: skip
        last.run(self.sink.take, until_empty=True)
        last.collect_garbage()
        last.close()

    def check(self) -> None:
        assert not self.unexpected, self.unexpected
        assert not self.audit.violations, self.audit.violations[:5]
        assert not self.sink.gaps, self.sink.gaps[:5]
        consumed = Counter(entry.decode() for entry in self.sink.entries)
        assert not [each for each, times in consumed.items() if times > 1]
        resolved = {each for each, ticket in self.tickets if ticket.done() and ticket.exception() is None}
        assert resolved <= consumed.keys()
        assert consumed.keys() <= {each for each, _ in self.tickets}
        order: dict[str, int] = {}
        for entry in self.sink.entries:
            life, _, n = entry.decode().partition(":")
            assert int(n) > order.get(life, -1), f"{life} came out of order"
            order[life] = int(n)
        assert self.audit.manifest().count == 0


def play(world: World, steps: int, pause: float, entries: int) -> None:
    """Some seeded steps, and then as long as it takes to have consumed this many entries under way."""
    rng = world.random
    alive = {name: world.start("producer", name) for name in ("p1", "p2", "p3")}
    alive["c1"] = world.start("reader", "c1")
    for _ in range(steps):
        time.sleep(rng.uniform(0, pause))
        world.clock.advance(rng.choice([0, 1, 30, 100]))
        action = rng.random()
        if action < 0.35:  # a producer dies, in the middle of whatever it does, and comes back
            name = rng.choice(["p1", "p2", "p3"])
            store, over = alive[name]
            store.dead = True
            over.set()
            alive[name] = world.start("producer", name)
        elif action < 0.6:  # the consumer dies and another takes its place
            store, over = alive["c1"]
            store.dead = True
            over.set()
            alive["c1"] = world.start(rng.choice(["reader", "runner"]), "c1")
        elif action < 0.8:  # another takes over while the first still believes it is the one
            alive["c1"] = world.start(rng.choice(["reader", "runner"]), "c1")
    deadline = time.monotonic() + 300
    while len(world.sink.entries) < entries or world.audit.dequeues < 2:
        assert time.monotonic() < deadline, "nothing moves"
        if not any(thread.is_alive() for thread in world.consumers):
            alive["c1"] = world.start("reader", "c1")
        time.sleep(0.01)
    for store, _ in alive.values():
        store.rates = Rates()


@pytest.fixture
def deaths_are_silent(monkeypatch: pytest.MonkeyPatch):
    """Threads of a process that was killed say nothing either."""
    original = threading.excepthook

    def hook(args):
        if not issubclass(args.exc_type, Killed):
            original(args)

    monkeypatch.setattr(threading, "excepthook", hook)


AT_NIGHT = pytest.mark.nightly("crashes")
ROUGH = Rates(fail=0.08, lose=0.08, delay=0.3, stale=0.3)


def suite(store: ObjectStore, seed: int, steps: int, pause: float, entries: int, pace: float = 0.003) -> World:
    world = World(store, seed, ROUGH, pace)
    try:
        play(world, steps, pause, entries)
    finally:
        world.end()
    world.check()
    return world


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=AT_NIGHT) for seed in range(2, 6))])
def test_nothing_is_lost_or_doubled_in_memory(memory: ObjectStore, seed: int, deaths_are_silent):
    world = suite(memory, seed, steps=25, pause=0.04, entries=200)
    assert world.audit.epochs > 1


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=AT_NIGHT) for seed in range(1, 3))])
def test_nothing_is_lost_or_doubled_in_a_directory(tmp_path, seed: int, deaths_are_silent):
    suite(open_store(f"file://{tmp_path}"), seed, steps=20, pause=0.06, entries=100)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly("emulators"))])
def test_nothing_is_lost_or_doubled_on_s3(emulator, seed: int, deaths_are_silent):
    suite(open_store(emulator.bucket(), emulator.options), seed, steps=8, pause=0.2, entries=20, pace=0.15)


if azurite():

    @pytest.mark.nightly("emulators")
    @pytest.mark.parametrize("seed", range(2))
    def test_nothing_is_lost_or_doubled_on_azure(azure, seed: int, deaths_are_silent):
        suite(open_store(azure.container(), azure.options), seed, steps=12, pause=0.15, entries=40, pace=0.05)
