"""Seeded schedules of a buffer's producers, consumers and collectors, and of queue workers, in one thread.

    python -m torture.simulation [--count 1000] [--minutes 5] [--seed 1]

Every call to the store is a step: the schedule, drawn from the seed, says whose step is next, what the store does with
it (fails, loses the answer, lists what was there before), how the clock goes on, and who dies or is fenced. `--seed`
alone with `--count 1` plays one schedule again. With `--everywhere`, one schedule is played again and again with a
fence, a collection and a death at each of its steps.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from unittest import mock

from greenlet import GreenletExit, getcurrent, greenlet

import penstock
from buffer.audit import Audit
from buffer.test_safety import Sink
from penstock.buffer import Consumer
from penstock.buffer.consumer import collect
from penstock.buffer.format import Mark, encode_entries
from penstock.buffer.manifest import Backoff, buffer_paths
from penstock.buffer.producer import Publisher
from penstock.core.clock import ManualClock
from penstock.core.observe.metrics import Registry
from penstock.errors import Fenced, StaleDelivery, StorageError
from penstock.limits import BUFFER_MANIFEST, BUFFER_PREFIX
from penstock.objects.store import Stored, VersionConflict
from searching import Search

GRACE = 600
INTRUSIONS = ("fence", "collect", "death")


class PlainStore:
    """Objects in a dict, with versions."""

    url = identity = "simulated://store"

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._version = 0

    def get(self, path: str) -> bytes | None:
        found = self._objects.get(path)
        return None if found is None else found[0]

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        found = self._objects.get(path)
        if found is None:
            return None
        return known if known is not None and known.version == found[1] else Stored(*found)

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._version += 1
        self._objects[path] = (bytes(data), self._version)

    def put_if(self, path: str, data: bytes, version: Any) -> Any:
        found = self._objects.get(path)
        if (None if found is None else found[1]) != version:
            raise VersionConflict(path)
        self.put(path, data)
        return self._version

    def list(self, prefix: str) -> Iterator[str]:
        return iter([path for path in self._objects if path.startswith(f"{prefix}/")])

    def delete(self, paths: Sequence[str]) -> int:
        for path in paths:
            self._objects.pop(path, None)
        return 0

    def sweep(self, prefix: str, older_than_ms: int) -> None:
        pass


class SteppedStore:
    """One actor's way to the store: before each call the schedule goes on with whomever it draws."""

    url = identity = PlainStore.url

    def __init__(self, world: World, actor: str) -> None:
        self._world = world
        self._inner = world.audit.view(actor)
        self._listed: dict[str, list[str]] = {}

    def _do(self, act: Callable[[], Any]) -> Any:
        self._world.step()
        how = self._world.rng.random() if self._world.hostile else 1.0
        if how < 0.06:
            raise StorageError("injected: refused", retryable=True)
        done = act()
        if how < 0.12:
            raise StorageError("injected: the answer was lost", retryable=True)
        return done

    def get(self, path: str) -> Any:
        return self._do(lambda: self._inner.get(path))

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        return self._do(lambda: self._inner.read(path, known))  # type: ignore[no-any-return]

    def put(self, path: str, data: bytes) -> None:
        self._do(lambda: self._inner.put(path, data))

    def put_if(self, path: str, data: bytes, version: Any) -> Any:
        return self._do(lambda: self._inner.put_if(path, data, version))

    def list(self, prefix: str) -> Iterator[str]:
        found = self._do(lambda: list(self._inner.list(prefix)))
        if self._world.hostile and self._world.rng.random() < 0.3 and prefix in self._listed:
            return iter(self._listed[prefix])
        self._listed[prefix] = found
        return iter(found)

    def delete(self, paths: Sequence[str]) -> int:
        return self._do(lambda: self._inner.delete(paths))  # type: ignore[no-any-return]

    def sweep(self, prefix: str, older_than_ms: int) -> None:
        self._do(lambda: self._inner.sweep(prefix, older_than_ms))


class World:
    """One schedule of a buffer."""

    def __init__(self, seed: int, intrusion: tuple[str, int] | None = None) -> None:
        self.rng = random.Random(seed)
        self.audit = Audit(PlainStore())
        self.clock = ManualClock()
        self.sink = Sink()
        self.hostile = True
        self.steps = 0
        self.published: set[str] = set()
        self.tried: set[str] = set()
        self._intrusion = intrusion
        self._lives: Counter[str] = Counter()
        self._actors: dict[str, greenlet] = {}
        self._thread = threading.get_ident()
        self._place = buffer_paths(BUFFER_MANIFEST, BUFFER_PREFIX)

    # ── the schedule ─────────────────────────────────────────────────────────────────────────────────────────────────
    def play(self, steps: int) -> None:
        with mock.patch.object(Backoff, "delay", return_value=0.0):  # the schedule says how long anything takes
            self._play(steps)

    def _play(self, steps: int) -> None:
        for name in ("producer 1", "producer 2", "consumer"):
            self._start(name)
        while self.steps < steps:
            self.steps += 1
            if self._intrusion is not None and self._intrusion[1] == self.steps:
                self._intrude(self._intrusion[0])
            elif self.rng.random() < 0.03:
                self._intrude(self.rng.choice(INTRUSIONS))
            if self.rng.random() < 0.1:
                self.clock.advance(self.rng.choice([0.001, 1, 100, 300]))
            name = self.rng.choice(sorted(self._actors))
            self._actors[name].switch()
            if self._actors[name].dead:
                self._start(name)
        self.hostile = False
        for name in list(self._actors):
            self._kill(name)
        self._finish()

    def step(self) -> None:
        """Called by an actor: its turn is over."""
        if threading.get_ident() == self._thread and getcurrent().parent is not None:
            getcurrent().parent.switch()

    def _start(self, name: str) -> None:
        self._lives[name] += 1
        life = f"{name}.{self._lives[name]}"
        body = self._produce if name.startswith("producer") else self._collect if name == "collector" else self._consume
        self._actors[name] = greenlet(lambda: body(life))

    def _kill(self, name: str) -> None:
        actor = self._actors.pop(name)
        if actor:
            actor.throw(GreenletExit)

    def _intrude(self, kind: str) -> None:
        if kind == "fence":  # another consumer takes over while the first still believes it is the one
            spare = f"consumer of before {self.steps}"
            self._actors[spare] = self._actors.pop("consumer")
            self._start("consumer")
        elif kind == "collect":
            self._start("collector")
        else:
            name = self.rng.choice(sorted(self._actors))
            self._kill(name)
            if name in ("producer 1", "producer 2", "consumer"):
                self._start(name)
        for name in [name for name, actor in self._actors.items() if actor.dead and "before" in name]:
            del self._actors[name]

    # ── the actors ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _produce(self, life: str) -> None:
        publisher = Publisher(
            SteppedStore(self, life), self._place, clock=self.clock, gc_grace=GRACE, pause=lambda seconds: self.step()
        )
        for number in range(1000):
            entries = [f"{life}:{number}:{row}" for row in range(self.rng.randint(1, 3))]
            self.tried.update(entries)
            mark = Mark(life, number) if self.rng.random() < 0.5 else None
            block = memoryview(encode_entries([entry.encode() for entry in entries]))
            try:
                staged = publisher.stage(block, (), len(entries), "none")
                for _ in range(self.rng.randrange(3)):
                    self.step()
                publisher.publish([staged], mark)
            except StorageError:
                continue
            self.published.update(entries)

    def _consume(self, life: str) -> None:
        try:
            consumer = Consumer(
                SteppedStore(self, life), after=self.sink.last, gc_interval=None, gc_grace=GRACE, clock=self.clock,
                metrics=Registry(),
            )  # fmt: skip
            while True:
                try:
                    batch = consumer.next_batch()
                    if batch is None:
                        self.step()
                    else:
                        self.sink.take(batch)
                        while True:
                            try:
                                (consumer.ack if self.rng.random() < 0.5 else consumer.ack_through)(batch.sequence)
                                break
                            except StorageError:
                                continue
                    if self.rng.random() < 0.1:
                        consumer.collect_garbage()
                except StorageError:
                    continue
        except (Fenced, StorageError):
            self.step()

    def _collect(self, life: str) -> None:
        """A collector beside the consumers, as from the command line."""
        with suppress(StorageError):
            collect(SteppedStore(self, life), self._place, now_ms=self.clock.now_ms(), grace_ms=GRACE * 1000)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _finish(self) -> None:
        last = Consumer(
            self.audit.view("last"), after=self.sink.last, gc_interval=None, gc_grace=GRACE, clock=self.clock,
            metrics=Registry(),
        )  # fmt: skip
        while (batch := last.next_batch()) is not None:
            self.sink.take(batch)
            last.ack(batch.sequence)
        last.close()

    def problems(self) -> list[str]:
        wrong = list(self.audit.violations) + list(self.sink.gaps)
        consumed = Counter(entry.decode() for entry in self.sink.entries)
        wrong += [f"{entry} was consumed {count} times" for entry, count in consumed.items() if count > 1]
        wrong += [f"{entry} was published and is lost" for entry in sorted(self.published - consumed.keys())]
        wrong += [f"{entry} was never produced" for entry in sorted(consumed.keys() - self.tried)]
        return wrong


def play_queue(seed: int, steps: int) -> list[str]:
    """One schedule of workers on a queue whose leases end while they work; what was found wrong."""
    rng, clock = random.Random(seed), ManualClock()
    wrong: list[str] = []
    with penstock.open("memory:", clock=clock) as journal:
        queue = journal.queue("q", lease=10, max_attempts=10**6)
        pushed: set[int] = set()
        settled: Counter[int] = Counter()
        held: list[tuple[int, Any]] = []
        owner: dict[int, int] = {}
        """Whose delivery of a message is the newest one: only that can settle it."""
        until: dict[int, float] = {}
        """Until when nobody else may be given a message."""
        for step in range(steps):
            act = rng.random()
            if act < 0.25:
                queue.push(step, key=rng.choice([None, "a", "b"]))
                pushed.add(step)
            elif act < 0.55:
                delivery = queue.take(wait=0)
                if delivery is not None:
                    if settled[delivery.payload]:
                        wrong.append(f"step {step}: {delivery.payload} was settled and is delivered again")
                    if until.get(delivery.payload, 0.0) > clock.now_ms():
                        wrong.append(
                            f"step {step}: {delivery.payload} is delivered, and its holder's lease has not ended"
                        )
                    owner[delivery.payload] = step
                    until[delivery.payload] = clock.now_ms() + 10_000
                    held.append((step, delivery))
            elif act < 0.85 and held:
                taken, delivery = held.pop(rng.randrange(len(held)))
                current = owner[delivery.payload] == taken
                how = rng.choice(["ack", "nack", "release", "extend"])
                try:
                    delivery.nack(delay=0) if how == "nack" else getattr(delivery, how)()
                    if current:
                        until[delivery.payload] = clock.now_ms() + 10_000 if how == "extend" else 0.0
                    elif how != "release":  # giving back what was lost does nothing
                        wrong.append(f"step {step}: {how} of a delivery of {delivery.payload} that was lost was taken")
                    settled[delivery.payload] += how == "ack"
                    if how == "extend":
                        held.append((taken, delivery))
                except StaleDelivery:
                    pass
            else:
                clock.advance(rng.choice([0.1, 4, 11]))
        there = [event.payload for event in queue]
        wrong += [f"{each} was settled {count} times" for each, count in settled.items() if count > 1]
        done = {each for each, count in settled.items() if count}
        if set(there) != pushed - done or len(set(there)) != len(there):
            wrong.append(f"{sorted(pushed - done - set(there))[:5]} are lost, {sorted(set(there) & done)[:5]} are back")
    return wrong


def play(seed: int, steps: int = 300, intrusion: tuple[str, int] | None = None) -> tuple[int, list[str]]:
    """Plays one schedule of a buffer; its steps, and what was found wrong."""
    world = World(seed, intrusion)
    world.play(steps)
    return world.steps, world.problems()


def main() -> int:
    search = Search("torture.simulation", __doc__, counts="schedules, a buffer's and a queue's for every seed")
    search.parser.add_argument("--everywhere", action="store_true")
    options = search.begin()
    logging.getLogger("penstock").setLevel(logging.ERROR)  # what the store refuses is tried again, and said
    played, seed = 0, options.seed
    if options.everywhere:
        for step in range(1, 301):
            for kind in INTRUSIONS:
                search.tell(play(seed, intrusion=(kind, step))[1], f"seed {seed}, a {kind} at step {step}: ")
                played += 1
    else:
        while played < options.count and not search.over() and search.found < 10:
            search.tell(play(seed)[1], f"seed {seed}: ")
            search.tell(play_queue(seed, 300), f"seed {seed}, queue: ")
            played, seed = played + 2, seed + 1
    return search.end(f"{played} schedules, seeds {options.seed} to {seed}")


if __name__ == "__main__":
    sys.exit(main())
