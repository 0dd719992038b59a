"""What `compare` times: run by a process of each commit, which does one round whenever it is told to.

    python -m benchmarks.compare_work ROW        # `compare` starts it, with the sources of a commit on its path

Only names that old commits have, too: the public ones.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import penstock

PAYLOAD = {"x": "y" * 92}  # 100 bytes of JSON
EACH = 400
CLIENTS = 64


class Work(NamedTuple):
    """Operations, each done and timed alone; a round is what is done between two measurements of CPU time."""

    operation: Callable[[], object]
    before: Callable[[], object] = lambda: None
    """Done before each round, untimed."""
    each: int = EACH
    """Operations of a round."""
    times: Callable[[], list[float]] | None = None
    """A round that times its own operations."""


def one_append(journal: penstock.Journal, place: Path) -> Work:
    topic = journal.topic("t")
    return Work(lambda: topic.append("k", PAYLOAD))


def append_in_a_busy_folder(journal: penstock.Journal, place: Path) -> Work:
    """A file of the store's folder is made or removed every two seconds."""
    topic, other = journal.topic("t"), place / "other"

    def change() -> None:
        if int(time.monotonic()) // 2 % 2 == other.exists():
            other.unlink() if other.exists() else other.touch()

    return Work(lambda: topic.append("k", PAYLOAD), change)


def hundred(journal: penstock.Journal, place: Path) -> Work:
    topic = journal.topic("t")
    drafts = [penstock.Draft("k", PAYLOAD) for _ in range(100)]
    return Work(lambda: topic.append_many(drafts), each=40)


def push(journal: penstock.Journal, place: Path) -> Work:
    queue = journal.queue("q")

    def clear() -> None:
        while taken := queue.take_many(EACH):
            queue.ack_many(taken)

    return Work(lambda: queue.push(PAYLOAD), clear)


def take_ack(journal: penstock.Journal, place: Path) -> Work:
    queue = journal.queue("q")

    def once() -> None:
        delivery = queue.take(wait=0)
        assert delivery is not None
        delivery.ack()

    return Work(once, lambda: queue.push_many([PAYLOAD] * EACH))


def one_worker(journal: penstock.Journal, place: Path) -> Work:
    return working(journal, 1)


def eight_at_once(journal: penstock.Journal, place: Path) -> Work:
    return working(journal, 8)


def working(journal: penstock.Journal, concurrency: int) -> Work:
    """A worker whose handler does nothing; a time is from one message to the next."""
    queue = journal.queue("q")
    done, begun = threading.Semaphore(0), list[float]()

    def handle(delivery: penstock.Delivery) -> None:
        begun.append(time.perf_counter())
        done.release()

    queue.worker(handle, concurrency=concurrency).start()

    def round_() -> list[float]:
        begun[:] = [time.perf_counter()]
        queue.push_many([PAYLOAD] * EACH)
        for _ in range(EACH):
            done.acquire()
        return [later - earlier for earlier, later in itertools.pairwise(begun)]

    return Work(lambda: None, times=round_)


def transaction(journal: penstock.Journal, place: Path) -> Work:
    """An event and a message."""
    queue = journal.queue("q")

    def once() -> None:
        with journal.transaction() as tx:
            tx.append("t", "k", PAYLOAD)
            tx.push("q", PAYLOAD)

    def clear() -> None:
        while taken := queue.take_many(EACH):
            queue.ack_many(taken)

    return Work(once, clear)


def tail(journal: penstock.Journal, place: Path) -> Work:
    topic = journal.topic("t")
    topic.append_many([penstock.Draft("k", PAYLOAD) for _ in range(1000)])
    return Work(lambda: list(topic.read(topic.latest - 10)))


def fanout(journal: penstock.Journal, place: Path) -> Work:
    queue = journal.queue("q", mode="fanout")
    for number in range(300):
        queue.group(f"group-{number}").take()
    queue.push_many([PAYLOAD] * EACH)
    return Work(lambda: len(queue), each=20)


def crowd(journal: penstock.Journal, place: Path) -> Work:
    """As many threads as there are clients, each with its share of a round."""
    topic = journal.topic("t")

    def round_() -> list[float]:
        found: list[float] = []

        def client() -> None:
            for _ in range(EACH // 8):
                begun = time.perf_counter()
                topic.append("k", PAYLOAD)
                found.append(time.perf_counter() - begun)

        threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    return Work(lambda: None, times=round_)


def event_loop(journal: penstock.Journal, place: Path) -> Work:
    """Eight coroutines of one event loop append."""
    import penstock.aio  # which not every old commit has

    loop = asyncio.new_event_loop()
    topic = loop.run_until_complete(penstock.aio.open(place / "loop.db", durability="process")).topic("t")

    async def client(found: list[float]) -> None:
        for _ in range(EACH // 8):
            begun = time.perf_counter()
            await topic.append("k", PAYLOAD)
            found.append(time.perf_counter() - begun)

    async def all_of_them() -> list[float]:
        found: list[float] = []
        await asyncio.gather(*(client(found) for _ in range(8)))
        return found

    return Work(lambda: None, times=lambda: loop.run_until_complete(all_of_them()))


START = """
import sys, penstock
with penstock.open(sys.argv[1]) as journal:
    journal.topic("t").append("k", {"x": 1})
"""


def start(journal: penstock.Journal, place: Path) -> Work:
    words = [sys.executable, "-c", START, str(place / "start.db")]
    return Work(lambda: subprocess.run(words, check=True), each=3)


FOLLOW = """
import sys, time, penstock
with penstock.open(sys.argv[1], read_only=True) as journal:
    print(flush=True)
    for event in journal.topic("t").subscribe(after=journal.topic("t").latest):
        print(time.monotonic() - event.payload["at"], flush=True)
"""


def follow(journal: penstock.Journal, place: Path) -> Work:
    """How long after an append, begun, a process that follows the topic has the event."""
    topic = journal.topic("t")
    topic.append("k", PAYLOAD)
    follower = subprocess.Popen(
        [sys.executable, "-c", FOLLOW, str(place / "a.db")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert follower.stdout is not None
    answers = follower.stdout
    answers.readline()

    def round_() -> list[float]:
        found = []
        for _ in range(40):
            time.sleep(0.02)
            topic.append("k", {"at": time.monotonic()})
            found.append(float(answers.readline()))
        return found

    followers.append(follower)
    return Work(lambda: None, times=round_)


APPEND = """
import sys, time, penstock
with penstock.open(sys.argv[1], durability="process") as journal:
    topic = journal.topic("t")
    print(flush=True)
    while sys.stdin.readline():
        found, end = [], time.perf_counter() + 1
        while (begun := time.perf_counter()) < end:
            topic.append("k", {"x": "y" * 92})
            found.append(time.perf_counter() - begun)
        print(found, flush=True)
"""


def processes(journal: penstock.Journal, place: Path) -> Work:
    """Eight processes append for a second."""
    words = [sys.executable, "-c", APPEND, str(place / "a.db")]
    writers = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(8)
    ]
    followers.extend(writers)

    def answers() -> list[str]:
        return [one.stdout.readline() for one in writers if one.stdout is not None]

    answers()

    def round_() -> list[float]:
        for one in writers:
            assert one.stdin is not None
            one.stdin.write("\n")
        return [took for answer in answers() for took in json.loads(answer)]

    return Work(lambda: None, times=round_)


followers: list[subprocess.Popen[str]] = []
"""Processes that a row has started."""

ROWS: dict[str, tuple[Callable[[penstock.Journal, Path], Work], str]] = {
    "append, process": (one_append, "process"),
    "append, disk": (one_append, "disk"),
    "append in a folder that changes every 2 s, process": (append_in_a_busy_folder, "process"),
    "append in a folder that changes every 2 s, disk": (append_in_a_busy_folder, "disk"),
    "append_many of 100, process": (hundred, "process"),
    "push, process": (push, "process"),
    "push, disk": (push, "disk"),
    "take + ack, process": (take_ack, "process"),
    "take + ack, disk": (take_ack, "disk"),
    "a worker that does nothing, process": (one_worker, "process"),
    "a worker that does nothing, disk": (one_worker, "disk"),
    "a worker of eight that does nothing, process": (eight_at_once, "process"),
    "a worker of eight that does nothing, disk": (eight_at_once, "disk"),
    "transaction of an event and a message, process": (transaction, "process"),
    "transaction of an event and a message, disk": (transaction, "disk"),
    "read the last 10": (tail, "process"),
    "8 coroutines append, process": (event_loop, "process"),
    "64 threads append, process": (crowd, "process"),
    "64 threads append, disk": (crowd, "disk"),
    "len of a queue with 300 groups": (fanout, "process"),
    "import, open, append, close in a new process": (start, "process"),
    "8 processes append, process": (processes, "process"),
    "a follower in another process has an event": (follow, "process"),
}


class Round(NamedTuple):
    """What a round took, in seconds."""

    cpu: float
    """Of this process and of those it waited for, for one operation."""
    times: list[float]
    """From the beginning of each operation to its end."""


def cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def one_round(work: Work) -> Round:
    work.before()
    began, times = cpu(), []
    if work.times is not None:
        times = work.times()
    else:
        for _ in range(work.each):
            begun = time.perf_counter()
            work.operation()
            times.append(time.perf_counter() - begun)
    return Round((cpu() - began) / len(times), times)


@contextmanager
def prepared(row: str) -> Iterator[Work]:
    prepare, durability = ROWS[row]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        with penstock.open(place / "a.db", durability="disk" if durability == "disk" else "process") as journal:
            try:
                yield prepare(journal, place)
            finally:
                for one in followers:
                    one.kill()
                    one.wait()


def main() -> None:
    with prepared(sys.argv[1]) as work:
        one_round(work)  # the first one warms up
        sys.stdout.write(json.dumps(penstock.__file__) + "\n")
        sys.stdout.flush()
        while sys.stdin.readline():
            sys.stdout.write(json.dumps(one_round(work)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
