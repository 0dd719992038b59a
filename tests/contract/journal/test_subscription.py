"""Following a topic: history, then live, without a gap or a duplicate, in threads, event loops and other processes."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from journals import DEADLINE, Place, eventually, on, only

from penstock import Draft, Journal, Subscription, Topic
from penstock.errors import Closed, ConfigError, Lagged, PositionTrimmed

InThreads = Callable[..., threading.Thread]


def take(subscription: Subscription, count: int) -> list[int]:
    """The positions of the next events, however long they take to come."""
    taken = []
    while len(taken) < count:
        start = time.monotonic()
        event = subscription.next(DEADLINE)
        assert event is not None, f"only {taken} of {count} events came"
        assert time.monotonic() - start < DEADLINE - 1, "it came because the wait ended: the wake-up was lost"
        taken.append(event.seq)
    return taken


# history, then live


def test_history_comes_first_and_then_what_is_appended(topic: Topic, in_threads: InThreads) -> None:
    topic.append_many([Draft("k", n) for n in range(5)])
    with topic.subscribe() as subscription:
        assert take(subscription, 5) == [1, 2, 3, 4, 5]
        assert subscription.next(0) is None and subscription.position == 5
        in_threads(lambda: [topic.append("k") for _ in range(3)])
        assert take(subscription, 3) == [6, 7, 8]


def test_a_topic_that_does_not_exist_yet_can_be_followed(journal: Journal, in_threads: InThreads) -> None:
    with journal.topic("later").subscribe() as subscription, journal.topic("later").subscribe("latest") as other:
        assert subscription.next(0.01) is None
        in_threads(journal.topic("later").append, "k")
        assert take(subscription, 1) == take(other, 1) == [1]


@pytest.mark.parametrize("start", ["oldest", "middle", "latest"])
def test_no_gap_and_no_duplicate_while_others_append(place: Place, in_threads: InThreads, start: str) -> None:
    journal = place.open(durability="process")
    topic = journal.topic("orders")
    topic.append_many([Draft("k")] * 50)
    total, over = 50 + 4 * 60, threading.Barrier(5)

    def write(worker: int) -> None:
        chance = random.Random(worker)
        over.wait(DEADLINE)
        left = 60
        while left:
            size = min(left, chance.randrange(1, 4))
            topic.append_many([Draft("k", worker)] * size)
            left -= size

    for worker in range(4):
        in_threads(write, worker)
    over.wait(DEADLINE)
    after: Any = {"oldest": 0, "middle": 25, "latest": "latest"}[start]
    with topic.subscribe(after, buffer=3) as subscription:
        first = subscription.position
        assert take(subscription, total - first) == list(range(first + 1, total + 1))
        assert subscription.next(0) is None


def test_many_subscribers_each_get_everything(topic: Topic, in_threads: InThreads) -> None:
    got: list[list[int]] = [[] for _ in range(8)]
    ready = threading.Barrier(9)

    def follow(mine: list[int]) -> None:
        with topic.subscribe() as subscription:
            ready.wait(DEADLINE)
            mine.extend(take(subscription, 100))

    threads = [in_threads(follow, mine) for mine in got]
    ready.wait(DEADLINE)
    for _ in range(20):
        topic.append_many([Draft("k")] * 5)
    for thread in threads:
        thread.join(DEADLINE)
    assert got == [list(range(1, 101))] * 8


def test_threads_that_share_a_subscription_share_its_events(topic: Topic, in_threads: InThreads) -> None:
    got: list[int] = []
    subscription = topic.subscribe()
    threads = [in_threads(lambda: got.extend(event.seq for event in subscription)) for _ in range(4)]
    for _ in range(100):
        topic.append_many([Draft("k")] * 10)
    eventually(lambda: len(got) >= 1000)
    subscription.close()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(got) == list(range(1, 1001))


def test_a_timeout_gives_nothing_and_costs_nothing(topic: Topic) -> None:
    with topic.subscribe() as subscription:
        for timeout in (0, 0.001, 0.02):
            assert subscription.next(timeout) is None
        with pytest.raises(ConfigError):
            subscription.next(-1)
        topic.append("k")
        assert take(subscription, 1) == [1]


@pytest.mark.parametrize(
    "options", [{"after": -1}, {"after": "oldest"}, {"after": None}, {"buffer": 0}, {"buffer": 1.5}, {"on_lag": "skip"}]
)
@on("memory")
def test_bad_options_are_refused(topic: Topic, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        topic.subscribe(**options)


# lag


def test_a_slow_subscriber_falls_back_to_reading_the_log(topic: Topic) -> None:
    with topic.subscribe(buffer=2) as subscription:
        assert subscription.next(0) is None
        topic.append_many([Draft("k")] * 5000)
        assert take(subscription, 5000) == list(range(1, 5001)) and subscription.missed == 0


def test_raise_tells_a_slow_subscriber_where_it_was_and_goes_on_telling(topic: Topic) -> None:
    topic.append("k")
    with topic.subscribe(buffer=2, on_lag="raise") as subscription:
        assert take(subscription, 1) == [1] and subscription.next(0) is None
        topic.append_many([Draft("k")] * 2)
        assert take(subscription, 2) == [2, 3]
        topic.append_many([Draft("k")] * 10)
        for _ in range(3):  # it cannot be missed
            with pytest.raises(Lagged) as lagged:
                subscription.next(DEADLINE)
            assert lagged.value.last_seq == 3
        with topic.subscribe(lagged.value.last_seq) as again:
            assert take(again, 10) == list(range(4, 14))


def test_lag_does_not_concern_history(topic: Topic) -> None:
    topic.append_many([Draft("k")] * 3000)
    for on_lag in ("raise", "drop"):
        with topic.subscribe(buffer=2, on_lag=on_lag) as subscription:
            assert take(subscription, 3000) == list(range(1, 3001)) and subscription.missed == 0


def test_drop_skips_to_the_newest_and_counts_exactly(topic: Topic) -> None:
    with topic.subscribe("latest", buffer=5, on_lag="drop") as subscription:
        topic.append_many([Draft("k")] * 5)
        assert take(subscription, 5) == [1, 2, 3, 4, 5] and subscription.missed == 0
        topic.append_many([Draft("k")] * 25)
        assert take(subscription, 5) == [26, 27, 28, 29, 30] and subscription.missed == 20
        topic.append_many([Draft("k")] * 6)
        assert take(subscription, 5) == [32, 33, 34, 35, 36] and subscription.missed == 21


def test_what_is_dropped_and_what_comes_add_up_under_load(topic: Topic, in_threads: InThreads) -> None:
    with topic.subscribe("latest", buffer=10, on_lag="drop") as subscription:
        in_threads(lambda: [topic.append_many([Draft("k")] * 7) for _ in range(200)])
        got: list[int] = []
        while subscription.position < 1400:
            event = subscription.next(DEADLINE)
            assert event is not None
            got.append(event.seq)
    assert got == sorted(set(got)) and len(got) + subscription.missed == 1400


def test_drop_counts_what_compaction_took_and_holes_are_no_events(topic: Topic) -> None:
    with topic.subscribe("latest", buffer=2, on_lag="drop") as subscription:
        assert subscription.next(0) is None
        topic.append_many([Draft("k", key="a") for _ in range(10)])
        topic.compact(4)
        assert take(subscription, 2) == [9, 10] and subscription.missed == 8
        topic.append_many([Draft("k", key="a") for _ in range(5)] + [Draft("k")] * 3)
        topic.compact_keys()  # 11 to 14 are superseded, 15 to 18 are left
        assert take(subscription, 2) == [17, 18] and subscription.missed == 10


def test_a_subscriber_below_what_was_compacted_is_told(topic: Topic) -> None:
    topic.append_many([Draft("k")] * 3)
    with topic.subscribe() as subscription:
        assert take(subscription, 3) == [1, 2, 3]
        topic.append_many([Draft("k")] * 5)
        topic.compact(6)
        with pytest.raises(PositionTrimmed) as trimmed:
            subscription.next(DEADLINE)
        assert trimmed.value.oldest == 7
    with topic.subscribe() as fresh:
        assert take(fresh, 2) == [7, 8]


# closing


def test_closing_from_another_thread_ends_the_iteration(topic: Topic, in_threads: InThreads) -> None:
    topic.append("k")
    for waiting in (lambda s: list(s), lambda s: s.next(), lambda s: asyncio.run(_all(s))):
        subscription = topic.subscribe()
        follower = in_threads(waiting, subscription)
        eventually(lambda subscription=subscription: subscription.position == 1)
        time.sleep(0.005)
        subscription.close()
        follower.join(DEADLINE)
        assert not follower.is_alive()
        assert subscription.next() is None and list(subscription) == []
        subscription.close()


async def _all(subscription: Subscription) -> list[int]:
    return [event.seq async for event in subscription]


def test_closing_drops_what_was_read_ahead(topic: Topic) -> None:
    topic.append_many([Draft("k")] * 10)
    subscription = topic.subscribe()
    assert subscription.next(0) is not None
    subscription.close()
    assert subscription.next(0) is None


def test_closing_the_journal_wakes_its_subscribers(place: Place, in_threads: InThreads) -> None:
    journal = place.open()
    topic = journal.topic("orders")
    waiting = threading.Semaphore(0)

    def follow() -> None:
        with topic.subscribe() as subscription, pytest.raises(Closed):
            waiting.release()
            subscription.next()

    threads = [in_threads(follow) for _ in range(3)]
    for _ in threads:
        waiting.acquire()
    journal.close()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


# event loops


def test_a_subscription_can_be_iterated_asynchronously(topic: Topic) -> None:
    topic.append_many([Draft("k")] * 3)

    async def follow(count: int) -> list[int]:
        got = []
        with topic.subscribe() as subscription:
            async for event in subscription:
                got.append(event.seq)
                if len(got) == count:
                    return got
        return got

    async def work() -> None:
        followers = [asyncio.ensure_future(follow(50)) for _ in range(3)]
        for _ in range(47):
            await asyncio.sleep(0)
            await topic.submit("k")
        assert await asyncio.gather(*followers) == [list(range(1, 51))] * 3
        with topic.subscribe(50) as subscription:
            assert await subscription.next_async(0.01) is None
            waiting = asyncio.ensure_future(subscription.next_async())
            await asyncio.sleep(0.01)
            assert not waiting.done()
            topic.append("k")
            event = await asyncio.wait_for(waiting, DEADLINE)
            assert event is not None and event.seq == 51

    asyncio.run(work())


def test_an_asynchronous_wait_can_be_cancelled(topic: Topic) -> None:
    async def work() -> None:
        with topic.subscribe() as subscription:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(subscription.next_async(), 0.005)
            topic.append("k")
            event = await subscription.next_async(DEADLINE)
            assert event is not None and event.seq == 1

    asyncio.run(work())
    assert not topic.journal._core.hub.signal("orders")._waiters


# other journals and processes


@only(second_open=True)
def test_another_journal_of_this_process_wakes_a_subscriber(place: Place, in_threads: InThreads) -> None:
    here, there = place.open(), place.open()
    here.topic("t").append("k")
    with here.topic("t").subscribe() as subscription:
        assert take(subscription, 1) == [1]
        in_threads(lambda: [there.topic("t").append("k") for _ in range(3)])
        assert take(subscription, 3) == [2, 3, 4]
    assert here.topic("t").append("k").seq == 5 and there.topic("t").append("k").seq == 6


FOLLOWER = """
    import sys, time
    import penstock
    journal = penstock.open(sys.argv[1], read_only=sys.argv[2] == "read_only")
    with journal.topic("t").subscribe() as subscription:
        for event in subscription:
            now = time.time()
            print(event.seq, now - event.payload, flush=True)
            if event.kind == "end":
                break
    journal.close()
"""


@pytest.mark.parametrize("mode", ["writable", "read_only"])
@only(on_disk=True, reads_beside_writer=True)
def test_another_process_is_woken_within_a_few_milliseconds(place: Place, mode: str) -> None:
    if mode == "writable" and not place.kind.shared:
        mode = "read_only"
    journal = place.open(durability="process")
    topic = journal.topic("t")
    topic.append("k", time.time())
    command = [sys.executable, "-c", textwrap.dedent(FOLLOWER), place.url, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline().startswith("1 ")
        delays = []
        for n in range(30):
            time.sleep(0.01)
            receipt = topic.append("end" if n == 29 else "k", time.time())
            seq, delay = follower.stdout.readline().split()
            assert int(seq) == receipt.seq
            delays.append(float(delay))
        assert follower.wait(DEADLINE) == 0
    # A quarter of them, so that a machine that is busy with something else does not matter.
    assert sorted(delays)[7] < 0.05, f"woken after {sorted(delays)[7] * 1000:.1f} ms"


IDLE = """
    import json, resource, sys, threading, time
    import penstock
    journal = penstock.open(sys.argv[1], read_only=sys.argv[2] == "read_only")
    subscription = journal.topic("t").subscribe("latest")
    threading.Thread(target=subscription.next, daemon=True).start()
    while not subscription._signal._waiters:
        time.sleep(0.01)
    time.sleep(0.1)
    def used():
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime
    before, start = used(), time.monotonic()
    time.sleep(1)
    print(json.dumps((used() - before) / (time.monotonic() - start)))
"""


@pytest.mark.slow
@only(on_disk=True, reads_beside_writer=True)
def test_an_idle_subscriber_costs_under_one_percent_of_a_core(place: Place) -> None:
    journal = place.open()
    journal.topic("t").append("k")
    journal.topic("t").subscribe().close()
    if not place.kind.shared:
        journal.close()
    command = [sys.executable, "-c", textwrap.dedent(IDLE), place.url, "writable" if place.kind.shared else "read_only"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert json.loads(done.stdout) < 0.01, f"{json.loads(done.stdout):.2%} of a core"


def test_an_idle_journal_costs_nothing(place: Place) -> None:
    journal = place.open()
    journal.topic("t").append("k")

    def used() -> float:
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(0.3)
        after = resource.getrusage(resource.RUSAGE_SELF)
        return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)

    assert min(used() for _ in range(3)) < 0.05, "also threads of this process that end are counted, now and then"
    watcher = journal._core.hub._watcher
    assert watcher is None or not watcher.is_alive()
