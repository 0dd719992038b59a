"""Every call for event loops that hands something out gives it back when its caller is cancelled.

Which calls these are is read from the surface: those that return something that can be closed or released.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from threading import Event as Signal
from typing import Any

import pytest

import penstock
from engines import KINDS
from penstock import Projection, aio, on
from penstock.aio import buffers, handles
from penstock.buffer import Producer
from penstock.errors import Closed, Locked
from server.serving import serving
from waiting import DEADLINE, eventually, eventually_async

HOMES = [*(kind.scheme for kind in KINDS), "served"]
GIVES_BACK = ("close", "release")
THIEF = "the cancelled one"


class Total(Projection):
    total: int = 0

    @on("placed")
    def add(self, payload: Any) -> None:
        self.total += payload


class World:
    """A journal with a message in hand and some events, and a buffer with two batches."""

    def __init__(self, home: str, folder: Path) -> None:
        self.closing = ExitStack()
        self.folder = folder
        self.home = home
        url = f"{home}:{folder / 'shop'}" if home not in ("memory", "served") else "memory:"
        if home == "served":
            store = self.closing.enter_context(penstock.open("memory:"))
            url = self.closing.enter_context(serving(store)).url
        self.other_url = url if home == "served" else url.replace("shop", "other")
        self.journal = self.closing.enter_context(penstock.open(url))
        self.topic = self.journal.topic("orders")
        self.topic.append_many([penstock.Draft("placed", n) for n in range(3)])
        self.queue = self.journal.queue("jobs")
        self.queue.push_many(range(4))
        self.queue.take(consumer="the one before")
        self.buffer = (folder / "buffer").as_uri()
        for entry in (b"one", b"two"):
            with Producer(self.buffer) as producer:
                producer.produce([entry])

    @property
    def loose(self) -> aio.AsyncQueue:
        return aio.AsyncQueue(self.queue)

    @asynccontextmanager
    async def consumer(self) -> AsyncIterator[buffers.AsyncConsumer]:
        async with await buffers.open_consumer(self.buffer, gc_interval=None) as consumer:
            yield consumer

    def thiefs(self) -> list[int]:
        return [held.seq for held in self.queue.pending() if held.consumer == THIEF]


CALLS: dict[str, Callable[[World], Awaitable[Any]]] = {
    "open": lambda w: aio.open(w.other_url),
    "open_producer": lambda w: buffers.open_producer(w.buffer),
    "open_consumer": lambda w: buffers.open_consumer(w.buffer, gc_interval=None),
    "AsyncJournal.subscribe": lambda w: aio.AsyncJournal(w.journal).subscribe(),
    "AsyncTopic.subscribe": lambda w: aio.AsyncTopic(w.topic).subscribe(),
    "AsyncTopic.watch": lambda w: aio.AsyncTopic(w.topic).watch(Total),
    "AsyncQueue.claim": lambda w: w.loose.claim(min_idle=0, limit=9, consumer=THIEF),
    "AsyncQueue.take": lambda w: w.loose.take(consumer=THIEF),
    "AsyncQueue.take_many": lambda w: w.loose.take_many(9, consumer=THIEF),
}
KEEPS_NOTHING = {
    "AsyncQueue.delivery",  # a second handle on what its holder has
}
ELSEWHERE = {
    "AsyncConsumer.next_batch",  # gives a batch, which the next call gets
    "AsyncConsumer.next_descriptors",
}


def handing_out() -> Iterator[str]:
    """The awaited calls whose answer can be closed or released."""
    types = {
        name: kind
        for module in [found for name, found in sys.modules.items() if name.startswith("penstock")]
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__.startswith("penstock")
    }
    places: list[tuple[str, Any]] = [("", aio), ("", buffers)]
    places += [(f"{name}.", kind) for module in (handles, buffers) for name, kind in vars(module).items()
               if isinstance(kind, type) and issubclass(kind, handles.AsyncHandle)]  # fmt: skip
    for prefix, place in places:
        for name, call in vars(place).items():
            if name.startswith("_") or not inspect.iscoroutinefunction(call):
                continue
            if call.__module__.partition(".")[0] != "penstock":
                continue
            answer = str(inspect.signature(call).return_annotation)
            named = [types[word] for word in re.findall(r"\w+", answer) if word in types]
            if answer == "A" or any(hasattr(kind, one) for kind in named for one in GIVES_BACK):
                yield prefix + name


def test_every_call_that_hands_something_out_is_tried_here() -> None:
    assert set(handing_out()) == CALLS.keys() | KEEPS_NOTHING


class Paced(ThreadPoolExecutor):
    """The loop's threads; a test may hold the next call before it begins, and sees what calls have returned."""

    def __init__(self) -> None:
        super().__init__(4)
        self.calls: list[Future[Any]] = []
        self.begun = Signal()
        self.go_on = Signal()
        self.go_on.set()

    def submit(self, fn: Any, /, *args: Any, **options: Any) -> Future[Any]:
        def paced() -> Any:
            self.begun.set()
            assert self.go_on.wait(DEADLINE)
            return fn(*args, **options)

        call = super().submit(paced)
        self.calls.append(call)
        return call


def is_closed(found: Any) -> bool:
    """Whether something that was handed out is closed; lists are of deliveries, which the queue is asked about."""
    if found is None or isinstance(found, list):
        return True
    if isinstance(found, penstock.Journal):
        return found.closed
    if isinstance(found, Producer):
        with suppress(Closed):
            found.produce([b"x"])
            return False
        return True
    if hasattr(found, "next_batch"):
        with suppress(Closed):
            found.next_batch()
            return False
        return True
    return bool(found._is_closed())


async def given_back(world: World, threads: Paced) -> None:
    """Nothing of what was got is held."""
    await eventually_async(lambda: all(call.done() for call in threads.calls))
    await eventually_async(lambda: all(call.cancelled() or is_closed(call.result()) for call in threads.calls))
    await eventually_async(lambda: not world.thiefs())
    if world.home != "served":

        def opens() -> bool:
            with suppress(Locked), penstock.open(world.other_url):
                return True
            return False

        await eventually_async(opens)


def in_world(home: str, folder: Path, call: str, work: Callable[[World, Paced], Awaitable[None]]) -> None:
    if call == "AsyncTopic.watch" and home == "served":
        pytest.skip("a watch is in the journal's own process")

    async def run(world: World) -> None:
        threads = Paced()
        asyncio.get_running_loop().set_default_executor(threads)
        async with asyncio.timeout(DEADLINE):
            await work(world, threads)

    world = World(home, folder)
    with world.closing:
        asyncio.run(run(world))


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_got_after_its_caller_has_gone_is_given_back(call: str, home: str, tmp_path: Path) -> None:
    async def work(world: World, threads: Paced) -> None:
        threads.go_on.clear()
        asked = asyncio.ensure_future(CALLS[call](world))
        for _ in range(3):
            await asyncio.sleep(0)
        if threads.calls:
            eventually(threads.begun.is_set)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        threads.go_on.set()
        await given_back(world, threads)

    in_world(home, tmp_path, call, work)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_on_its_way_to_a_cancelled_caller_is_given_back(call: str, home: str, tmp_path: Path) -> None:
    async def work(world: World, threads: Paced) -> None:
        for steps in range(6):  # of the loop, between the answer and the cancellation
            asked = asyncio.ensure_future(CALLS[call](world))
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # in which the writer is woken
            if threads.calls:  # the loop stands still meanwhile
                wait_for_all(threads.calls, DEADLINE)
            else:
                eventually(world.thiefs)
            for _ in range(steps):
                await asyncio.sleep(0)
            asked.cancel()
            try:
                await close(await asked)
            except asyncio.CancelledError:
                pass
            else:
                assert steps, "it was not cancelled in time"
            await given_back(world, threads)
            threads.calls.clear()

    in_world(home, tmp_path, call, work)


async def close(found: Any) -> None:
    """Gives back what a call had handed out before it was cancelled."""
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, aio.AsyncDelivery):
            await one.release()
        elif isinstance(one, aio.AsyncJournal | buffers.AsyncProducer | buffers.AsyncConsumer):
            await one.close()
        elif one is not None:
            one.close()


def test_a_cancelled_end_of_a_block_closes_its_journal(tmp_path: Path) -> None:
    async def work(world: World, threads: Paced) -> None:
        journal = await aio.open(tmp_path / "third.db")
        threads.begun.clear()
        threads.go_on.clear()
        busy = [asyncio.ensure_future(asyncio.to_thread(int)) for _ in range(4)]  # no thread is free

        async def block() -> None:
            async with journal:
                pass

        ending = asyncio.ensure_future(block())
        for _ in range(3):
            await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        threads.go_on.set()
        await asyncio.gather(*busy)
        await eventually_async(lambda: journal.closed)

    in_world("memory", tmp_path, "open", work)


def test_descriptors_that_a_cancelled_caller_asked_for_come_next(tmp_path: Path) -> None:
    async def work(world: World, threads: Paced) -> None:
        async with world.consumer() as consumer:
            threads.calls.clear()
            asked = asyncio.ensure_future(consumer.next_descriptors(1))
            await asyncio.sleep(0)
            wait_for_all(threads.calls, DEADLINE)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await eventually_async(lambda: len(threads.calls) == 2 and all(call.done() for call in threads.calls))
            batch = await consumer.next_batch()
            assert batch is not None and batch.entries == [b"one"]
            assert [found.sequence for found in await consumer.next_descriptors(5)] == [batch.sequence + 1]

    in_world("memory", tmp_path, "open_consumer", work)
