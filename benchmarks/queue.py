"""Queues: push, take and acknowledge, one by one and by the hundred, threads, processes, long queues, waiting.

    python -m benchmarks queue            # all of it, about six minutes
    python -m benchmarks queue quick      # without the ten-million-message queue

Messages of 100 bytes on SQLite. A push or an acknowledgement that returned is on disk, for everybody in the table (but
Redis with everysec). Everybody takes turns, a few operations each, and between every two operations the machine does one
100-byte write+fdatasync of its own (raw): a result is the median over all turns of raw's time divided by the operation's.
Turns in which raw took more than twice what it can take are repeated: somebody else had the disk.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from benchmarks.harness import Ratio, Table, latencies, percentile
from benchmarks.queue_peers import Contestant, Penstock, line_up

PAYLOAD = "y" * 98  # 100 bytes of JSON
TURNS = 40
EACH = 10
PATIENCE = 4
"""How often, on average, a turn is repeated because somebody else had the disk."""

Times = dict[str, list[float]]


class Raw:
    """The machine's own write+fdatasync, and whether the machine has time for us."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.best = min(statistics.median(_seconds(self.once, 25)) for _ in range(20))

    def once(self) -> None:
        os.write(self._file, b"x" * 100)
        os.fdatasync(self._file)

    def disturbed(self, times: list[float]) -> bool:
        """Whether somebody else had the disk: raw took much longer than it can."""
        median = statistics.median(times)
        self.best = min(self.best, median)
        return median > 2 * self.best

    def close(self) -> None:
        os.close(self._file)


def take_turns(
    raw: Raw,
    works: dict[str, Callable[[], None]],
    turns: int,
    each: int,
    before: dict[str, Callable[[], None]] | None = None,
) -> tuple[dict[str, Ratio], Times]:
    """Ratios to raw (operations, not messages), and every operation's seconds; disturbed turns are repeated.

    `before` is done once for every operation of a turn, untimed: whoever takes must have something to take.
    """
    times: Times = {name: [] for name in works}
    ratios: dict[str, list[float]] = {name: [] for name in works}
    patience = PATIENCE * turns * len(works)
    for _ in range(turns):
        for name, work in works.items():
            while True:
                base, mine = [], []
                for _ in range(each if before else 0):
                    before[name]()
                for _ in range(each):
                    base += _seconds(raw.once, 1)
                    mine += _seconds(work, 1)
                if patience <= 0 or not raw.disturbed(base):
                    break
                patience -= 1
                time.sleep(0.02)
            times[name] += mine
            ratios[name].append(statistics.median(base) / statistics.median(mine))
    return {name: Ratio.of(found) for name, found in ratios.items()}, times


def _seconds(work: Callable[[], None], count: int) -> list[float]:
    found = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return found


def shown(ratio: Ratio, times: list[float], per: int = 1) -> str:
    rate = per / statistics.median(times)
    return f"{ratio:.2f} × raw · {rate:,.0f}/s · {latencies(times)}"


def against_peers(table: Table, raw: Raw, crowd: list[Contestant], absent: list[str]) -> None:
    penstock_ = crowd[0]
    hundred = [PAYLOAD] * 100
    many = [one for one in crowd if one.many]

    ratios, times = take_turns(raw, {one.name: _pushing(one) for one in crowd}, TURNS, EACH)
    best = max((ratios[one.name], one.name) for one in crowd[1:] if one.embedded)
    mine = ratios[penstock_.name]
    table.row("push", shown(mine, times["penstock"]), "≥ 0.8 × raw", mine >= 0.8, spread=mine.spread)
    table.row("push, beside the embedded peers", f"{mine / best[0]:.2f} × {best[1]}", "> 1", mine > best[0])
    for one in crowd[1:]:
        table.row(
            f"&nbsp;&nbsp;{one.name} {one.version}",
            shown(ratios[one.name], times[one.name]),
            spread=ratios[one.name].spread,
        )

    pushes = {one.name: _pushing(one) for one in crowd}
    ratios, times = take_turns(raw, {one.name: one.take_ack for one in crowd}, TURNS, EACH, pushes)
    best = max((ratios[one.name], one.name) for one in crowd[1:] if one.acknowledges and one.embedded)
    overall = max((ratios[one.name], one.name) for one in crowd[1:] if one.acknowledges and "everysec" not in one.name)
    mine = ratios[penstock_.name]
    table.row(
        "take + ack, one by one", shown(mine, times["penstock"]), "≥ 0.55 × raw", mine >= 0.55, spread=mine.spread
    )
    table.row(
        "take + ack, beside embedded peers that acknowledge",
        f"{mine / best[0]:.2f} × {best[1]}",
        "≥ 1.25",
        mine >= 1.25 * best[0],
    )
    table.row(
        "take + ack, beside servers too", f"{mine / overall[0]:.2f} × {overall[1]}", "≥ 1.25", mine >= 1.25 * overall[0]
    )
    for one in crowd[1:]:
        table.row(
            f"&nbsp;&nbsp;{one.name}",
            shown(ratios[one.name], times[one.name]) + ("" if one.acknowledges else " (no ack)"),
            spread=ratios[one.name].spread,
        )

    ratios, times = take_turns(raw, {one.name: _pushing_many(one, hundred) for one in many}, TURNS // 2, 4)
    best = max((ratios[one.name], one.name) for one in many[1:] if "everysec" not in one.name)
    mine = ratios[penstock_.name]
    table.row("push_many of 100", shown(mine, times["penstock"], 100), spread=mine.spread)
    table.row("push_many of 100, beside the best peer", f"{mine / best[0]:.2f} × {best[1]}", "≥ 3", mine >= 3 * best[0])
    for one in many[1:]:
        table.row(
            f"&nbsp;&nbsp;{one.name}", shown(ratios[one.name], times[one.name], 100), spread=ratios[one.name].spread
        )

    pushes = {one.name: _pushing_many(one, hundred) for one in many}
    ratios, times = take_turns(
        raw, {one.name: _taking_many(one) for one in many if one.takes_many}, TURNS // 2, 4, pushes
    )
    # Two hundred fsyncs a turn: a few turns say as much as many.
    by_hand = {one.name: _taking_many(one) for one in many if not one.takes_many}
    slow_ratios, slow_times = take_turns(raw, by_hand, 3, 1, pushes)
    ratios, times = {**ratios, **slow_ratios}, {**times, **slow_times}
    mine = ratios[penstock_.name]
    table.row("take_many + ack_many of 100", shown(mine, times["penstock"], 100), spread=mine.spread)
    for one in many[1:]:
        goal = {"Redis Streams, appendfsync always": 3.0, "Redis Streams, appendfsync everysec": 2.0}.get(one.name)
        ratio = mine / ratios[one.name]
        table.row(
            f"&nbsp;&nbsp;beside {one.name}",
            f"{ratio:.2f} × ({shown(ratios[one.name], times[one.name], 100)})",
            f"≥ {goal:g}" if goal else "",
            None if goal is None else ratio >= goal,
        )
    for line in absent:
        table.row(line, "not measured")


def _pushing(one: Contestant) -> Callable[[], None]:
    return lambda: one.push(PAYLOAD)


def _pushing_many(one: Contestant, hundred: list[str]) -> Callable[[], None]:
    return lambda: one.push_many(hundred)


def _taking_many(one: Contestant) -> Callable[[], None]:
    return lambda: one.take_ack_many(100)


# ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def threads(table: Table, folder: Path) -> None:
    """Each thread pushes a message, takes one and acknowledges it, again and again."""
    gains, shares = [], []
    for turn in range(4):
        alone = _in_threads(folder / f"one-{turn}", 1, 1.5)
        crowd = _in_threads(folder / f"sixteen-{turn}", 16, 1.5)
        gains.append(sum(crowd) / sum(alone))
        shares.append(min(crowd) / statistics.mean(crowd))
    gain, share = statistics.median(gains), min(shares)
    table.row("16 threads push, take, ack at once", f"{gain:.2f} × one thread", "≥ 2", gain >= 2)
    table.row("the thread that got least", f"{share:.0%} of its fair share", "no thread starves", share > 0.5)


def _in_threads(path: Path, count: int, duration: float) -> list[int]:
    done = [0] * count
    with penstock.open(f"sqlite:{path}") as journal:
        queue = journal.queue("jobs")
        start = threading.Barrier(count)

        def work(number: int) -> None:
            start.wait()
            end = time.perf_counter() + duration
            while time.perf_counter() < end:
                queue.push(PAYLOAD)
                delivery = queue.take()
                if delivery is not None:
                    delivery.ack()
                    done[number] += 1

        crowd = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
    return done


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────
def _consume_and_produce(url: str, number: int, count: int, results: Any) -> None:
    got = []
    with penstock.open(url) as journal:
        queue = journal.queue("jobs")
        pushed = []
        for n in range(count):
            pushed.append(queue.push(f"{number}-{n}").seq)
            delivery = queue.take()
            if delivery is not None:
                got.append((delivery.seq, delivery.payload, delivery.attempt))
                delivery.ack()
    results.put((pushed, got))


def processes(table: Table, folder: Path) -> None:
    url = f"sqlite:{folder / 'processes'}"
    with penstock.open(url) as journal:
        queue = journal.queue("jobs")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    crowd = [context.Process(target=_consume_and_produce, args=(url, number, 500, results)) for number in range(4)]
    start = time.perf_counter()
    for process in crowd:
        process.start()
    outcome = [results.get(timeout=300) for _ in crowd]
    took = time.perf_counter() - start
    for process in crowd:
        process.join()
    with penstock.open(url) as journal:
        queue = journal.queue("jobs")
        rest = [(event.seq, event.payload, 0) for event in queue]
        clean = not queue.pending()
    pushed = [seq for seqs, _ in outcome for seq in seqs]
    got = [one for _, found in outcome for one in found]
    exact = sorted(pushed) == list(range(1, 2001)) and sorted(seq for seq, _, _ in got + rest) == sorted(pushed)
    exact = exact and all(attempt == 1 for _, _, attempt in got) and clean
    table.row(
        "4 processes on one store, 2,000 pushes, takes, acks",
        f"{'exact' if exact else 'WRONG'} · {2000 / took:,.0f} rounds/s",
        "exact",
        exact,
    )


# ── long queues ──────────────────────────────────────────────────────────────────────────────────────────────────────
def long_queue(table: Table, raw: Raw, folder: Path, total: int) -> None:
    long, fresh = Penstock(folder / "long-queue"), Penstock(folder / "fresh-queue")
    batch = [PAYLOAD] * 10_000
    for _ in range(total // 10_000):
        long.push_many(batch)
    for _ in range(total * 9 // 10 // 10_000):
        long.take_ack_many(10_000)
    long.journal.maintain()
    for _ in range(5):
        fresh.push_many(batch)
    long.take_ack()
    fresh.take_ack()
    works = {"fresh": fresh.take_ack, "long": long.take_ack}
    _, times = take_turns(raw, works, TURNS * 2, EACH)
    slower = statistics.median(times["long"]) / statistics.median(times["fresh"])
    held: list[Any] = []
    takes = {"fresh": lambda: held.append(fresh.queue.take()), "long": lambda: held.append(long.queue.take())}
    _, only = take_turns(raw, takes, TURNS * 2, EACH)
    take_slower = statistics.median(only["long"]) / statistics.median(only["fresh"])
    name = f"from a queue of {total:,} after {total * 9 // 10:,} acks"
    table.row(f"take + ack {name}", f"{slower:.2f} × the time of a fresh one", "≤ 1.3", slower <= 1.3)
    table.row(f"take {name}", f"{take_slower:.2f} × the time of a fresh one", "≤ 1.3", take_slower <= 1.3)
    stats = _seconds(long.queue.stats, 200)
    table.row(f"stats() of that queue ({len(long.queue):,} messages)", f"p50 {percentile(stats, 0.5) * 1e6:,.0f} µs")
    long.close()
    fresh.close()


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────────────────
def transactions(table: Table, raw: Raw, folder: Path) -> None:
    """Consume and produce: a take, an event that it leads to, and its ack."""
    mine = Penstock(folder / "transactions")
    mine.push_many([PAYLOAD] * 4 * TURNS * EACH * PATIENCE)
    journal, queue, topic = mine.journal, mine.queue, mine.journal.topic("done")

    def one_by_one() -> None:
        with queue.receive() as delivery:
            topic.append("done", delivery.payload)

    def together() -> None:
        with journal.transaction() as tx:
            delivery = tx.take(queue)
            tx.append(topic, "done", delivery.payload)
            tx.ack(delivery)

    works = {"one by one": one_by_one, "in a transaction": together}
    ratios, times = take_turns(raw, works, TURNS, EACH)
    for name in works:
        table.row(f"take + append + ack, {name}", shown(ratios[name], times[name]), spread=ratios[name].spread)
    mine.close()


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def _wait_in_process(url: str, ready: Any, count: int, results: Any) -> None:
    with penstock.open(url) as journal:
        queue = journal.queue("jobs")
        ready.set()
        times = []
        for _ in range(count):
            delivery = queue.take(wait=60)
            times.append(time.monotonic_ns())
            assert delivery is not None
            delivery.ack()
        results.put(times)


def waiting(table: Table, folder: Path, count: int = 150) -> None:
    context = multiprocessing.get_context("spawn")
    with penstock.open(f"sqlite:{folder / 'waiting'}") as journal:
        queue = journal.queue("jobs")
        got: list[int] = []

        def consume() -> None:
            for _ in range(count):
                delivery = queue.take(wait=60)
                got.append(time.monotonic_ns())
                assert delivery is not None
                delivery.ack()

        thread = threading.Thread(target=consume)
        thread.start()
        sent, pushes = _push_now_and_then(queue, count)
        thread.join()
        within = [(there - start) / 1e6 for start, there in zip(sent, got, strict=True)]
        push = statistics.median(pushes) * 1e3
        ratio = statistics.median(within) / push
        table.row(
            "push to delivered, waiting thread",
            f"p50 {statistics.median(within):.2f} ms · p99 {percentile(within, 0.99):.2f} ms · {ratio:.2f} × the push",
            "≤ 2 × the push",
            ratio <= 2,
        )

        ready, results = context.Event(), context.Queue()
        process = context.Process(target=_wait_in_process, args=(journal.describe().location, ready, count, results))
        process.start()
        ready.wait(60)
        time.sleep(0.3)
        sent, pushes = _push_now_and_then(queue, count)
        across = [(there - start) / 1e6 for start, there in zip(sent, results.get(timeout=120), strict=True)]
        process.join()
        more = statistics.median(across) - statistics.median(pushes) * 1e3
        table.row(
            "push to delivered, waiting process",
            f"p50 {statistics.median(across):.2f} ms · p99 {percentile(across, 0.99):.2f} ms · {more:.2f} ms more than the push",
            "≤ 3 ms more",
            more <= 3,
        )


def _push_now_and_then(queue: penstock.Queue, count: int) -> tuple[list[int], list[float]]:
    sent, took = [], []
    for _ in range(count):
        time.sleep(0.012)
        sent.append(time.monotonic_ns())
        start = time.perf_counter()
        queue.push(PAYLOAD)
        took.append(time.perf_counter() - start)
    return sent, took


def main() -> None:
    quick = "quick" in sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # so that servers are stopped too
    table = Table("queue", "Queues", __doc__.split("\n\n", 2)[2])
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as name:
        folder = Path(name)
        raw = Raw(folder)
        crowd, absent = line_up(folder)
        try:
            against_peers(table, raw, crowd, absent)
        finally:
            for one in crowd:
                one.close()
        threads(table, folder)
        processes(table, folder)
        waiting(table, folder)
        for inner in ("long-queue", "fresh-queue", "transactions"):
            (folder / inner).mkdir()
        transactions(table, raw, folder)
        long_queue(table, raw, folder, 1_000_000 if quick else 10_000_000)
        raw.close()
    table.save()


if __name__ == "__main__":
    main()
