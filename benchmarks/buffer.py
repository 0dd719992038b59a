"""The buffer: producing, decoding, consuming, sharing one manifest, and what a manifest costs.

    python -m benchmarks buffer             # everything, about three minutes
    python -m benchmarks buffer quick       # smaller, about one

Raw is obstore putting or getting the same bytes, measured next to each other in the same run; medians of several rounds.
The S3 emulator is moto on 127.0.0.1 in a process of its own, one request at a time.
"""

from __future__ import annotations

import os
import random
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import obstore
from obstore.store import LocalStore, S3Store
from tests.buffer.emulator import Emulator

from benchmarks.harness import Table, percentile, versions
from penstock.buffer import Consumer, Metadata, Producer
from penstock.buffer.format import append, decode_arrow, encode_batch, open_batch, parse_manifest
from penstock.core.observe.metrics import Registry
from penstock.objects.store import open_store

ENTRY = 100
CALL = 100
BATCH = 16 << 20
ROUNDS = 5


def took(work: Callable[..., Any], *given: Any) -> float:
    """Seconds that work(*given) takes."""
    start = time.perf_counter()
    work(*given)
    return time.perf_counter() - start


def together(work: Callable[[int], None], count: int, threads: int) -> None:
    """Runs work(0 … count-1) on some threads."""
    numbers = iter(range(count))
    lock = threading.Lock()

    def loop() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            work(number)

    running = [threading.Thread(target=loop) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


class Place:
    """A store to measure: fresh urls, and obstore at the same place."""

    def __init__(self, name: str, folder: Path, emulator: Emulator) -> None:
        self.name = name
        self._folder = folder
        self._emulator = emulator

    @contextmanager
    def fresh(self, size: int = 0) -> Iterator[tuple[str, dict[str, Any], Any]]:
        """(url, options, obstore store) of an empty place for `size` bytes; a directory is removed afterwards."""
        if self.name == "S3 emulator":
            url, options = self._emulator.bucket(), self._emulator.options
            yield url, options, S3Store.from_url(url, config=options, client_options={"allow_http": True})
            self._emulator.forget()
        else:
            warm(self._folder, size)
            with tempfile.TemporaryDirectory(dir=self._folder) as name:
                yield f"file://{name}", {}, LocalStore(name)


def warm(folder: Path, size: int) -> None:
    """Touches as much page cache as is about to be used: the first use of memory costs a virtual machine far more."""
    chunk = bytes(16 << 20)
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(size // len(chunk) + 1):
            file.write(chunk)


def sync(folder: str, name: str) -> None:
    """Makes a file and its name durable."""
    for path in (f"{folder}/{name}", folder):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


# ── producing ──


def open_producer(url: str, options: dict[str, Any], flush_bytes: int = BATCH) -> Producer:
    return Producer(
        url, options=options, flush_bytes=flush_bytes, flush_interval=60, max_buffered=10_000, metrics=Registry()
    )


def produce_all(producer: Producer, calls: int, call: list[bytes]) -> None:
    """Every call, taken and in the manifest."""
    for _ in range(calls):
        producer.produce(call)
    producer.flush()


def put_all(raw: Any, object_: bytes, count: int) -> None:
    for n in range(count):
        obstore.put(raw, f"{n}", object_)


def put_all_durably(raw: Any, folder: str, object_: bytes, count: int) -> None:
    for n in range(count):
        obstore.put(raw, f"{n}", object_)
        sync(folder, f"{n}")


def producing(table: Table, places: list[Place], entries: int) -> None:
    call = [os.urandom(ENTRY) for _ in range(CALL)]
    object_ = encode_batch(call * (BATCH // ((4 + ENTRY) * CALL)))
    for place in places:
        count = entries if place.name == "file" else entries // 4
        objects = max(1, count * (4 + ENTRY) // len(object_))
        scale = count * (4 + ENTRY) / (objects * len(object_))
        bare, durable = [], []
        for _ in range(ROUNDS):
            with place.fresh(objects * BATCH) as (_, _, raw):
                base = took(put_all, raw, object_, objects)
            with place.fresh(2 * objects * BATCH) as (url, options, _), open_producer(url, options) as producer:
                produce_all(producer, count // CALL // 2, call)  # a producer runs for long: what counts is later
                ours = took(produce_all, producer, count // CALL, call)
            bare.append(scale * base / ours)
            if place.name == "file":
                with place.fresh(objects * BATCH) as (url, _, raw):
                    base = took(put_all_durably, raw, url.removeprefix("file://"), object_, objects)
                durable.append(scale * base / ours)
        work = f"produce {ENTRY}-byte entries in calls of {CALL}, 16 MiB batches, {place.name}"
        ratio = statistics.median(bare)
        if durable:
            same = statistics.median(durable)
            table.row(work, f"{same:.2f} × raw put + fsync", "≥ 0.7 × raw", same >= 0.7)
            table.row("… against a put that is not on disk when it returns", f"{ratio:.2f} × raw put")
        else:
            table.row(work, f"{ratio:.2f} × raw put", "≥ 0.7 × raw", ratio >= 0.7)


def handling(table: Table, entries: int) -> None:
    call = [os.urandom(ENTRY) for _ in range(CALL)]
    cpu, wall = [], []
    for number in range(ROUNDS):
        with open_producer(f"memory://bench-{number}", {}) as producer:
            before, start = time.process_time(), time.perf_counter()
            produce_all(producer, entries // CALL, call)
            cpu.append((time.process_time() - before) / entries * 1e6)
            wall.append((time.perf_counter() - start) / entries * 1e6)
    best = statistics.median(cpu)
    table.row(
        "entry handling, memory (CPU time of all threads)",
        f"{best:.2f} µs (elapsed {statistics.median(wall):.2f} µs)",
        "≤ 0.6 µs",
        best <= 0.6,
    )


def latency(table: Table, places: list[Place]) -> None:
    for place in places:
        with place.fresh() as (url, options, raw):
            base = [took(obstore.put, raw, f"raw/{n}", b"x" * ENTRY) for n in range(100)]
            with Producer(url, options=options, flush_interval=0, metrics=Registry()) as producer:
                times = [took(lambda produce: produce([b"x" * ENTRY]).result(60), producer.produce) for _ in range(100)]
        table.row(
            f"one entry, produced and waited for (two puts), {place.name}",
            f"p50 {percentile(times, 0.5) * 1e3:.1f} ms, p99 {percentile(times, 0.99) * 1e3:.1f} ms "
            f"({percentile(times, 0.5) / percentile(base, 0.5):.1f} × one raw put)",
        )


# ── decoding ──


def tight_loop(block: bytes, count: int) -> list[bytes]:
    """The least a Python loop over the lengths can do."""
    length_at = struct.Struct("<I").unpack_from
    entries = []
    append = entries.append
    offset = 0
    for _ in range(count):
        start = offset + 4
        offset = start + length_at(block, offset)[0]
        append(block[start:offset])
    return entries


def consume_iterator(data: bytes) -> int:
    count = 0
    for _ in open_batch(data):
        count += 1
    return count


def decoding(table: Table, entries: int) -> None:
    random.seed(1)
    source = os.urandom(1 << 16)
    same = encode_batch([source[n % 60_000 : n % 60_000 + ENTRY] for n in range(entries)])
    varied = encode_batch(
        [source[(at := random.randrange(60_000)) : at + random.randrange(50, 151)] for _ in range(entries)]
    )
    rows: list[tuple[str, bytes, Callable[[], Any], float | None]] = [
        ("to a list, entries of many lengths", varied, lambda: open_batch(varied).entries, 0.9),
        ("to a list, entries of one length", same, lambda: open_batch(same).entries, None),
        ("iterated, entries of one length", same, lambda: consume_iterator(same), 4),
        ("to Arrow, entries of one length", same, lambda: decode_arrow(same), 4),
        ("to Arrow, entries of many lengths", varied, lambda: decode_arrow(varied), 4),
    ]
    for work, data, ours, goal in rows:
        ratios = []
        for _ in range(ROUNDS):
            base = took(tight_loop, data, entries)
            ratios.append(base / took(ours))
        ratio = statistics.median(ratios)
        table.row(
            f"decode {entries:,} entries {work}",
            f"{ratio:.2f} × the tightest loop",
            "" if goal is None else f"≥ {goal} ×",
            None if goal is None else ratio >= goal,
        )


# ── consuming ──


def enqueue(store: Any, locations: list[str]) -> None:
    found = store.read("ingest/manifest")
    manifest = parse_manifest(found.data if found else None)
    data = append(manifest, [(location, ()) for location in locations])
    store.put_if("ingest/manifest", data, found.version if found else None)


def get_all(raw: Any, locations: list[str]) -> None:
    together(lambda n: obstore.get(raw, locations[n]).bytes(), len(locations), 8)


def consume_all(consumer: Consumer, handler: Callable[[Any], Any]) -> None:
    """Every batch, handled and out of the manifest."""
    consumer.run(handler, until_empty=True, concurrency=8, ahead=8)


def consuming(table: Table, places: list[Place], batches: int) -> None:
    object_ = encode_batch([os.urandom(ENTRY)] * (BATCH // (4 + ENTRY)))
    for place in places:
        count = batches
        lazily, touched = [], []
        for _ in range(ROUNDS):
            with place.fresh(count * BATCH) as (url, options, raw):
                store = open_store(url, options)
                locations = [f"ingest/{n}.batch" for n in range(count)]
                for location in locations:
                    store.put(location, object_)
                for handler, ratios in ((len, lazily), (attrgetter("entries"), touched)):
                    enqueue(store, locations)
                    with Consumer(url, options=options, gc_interval=None, metrics=Registry()) as consumer:
                        base = took(get_all, raw, locations)
                        ratios.append(base / took(consume_all, consumer, handler))
        ratio = statistics.median(lazily)
        work = f"consume and ack_through, 8 fetches at once, {place.name}"
        table.row(work, f"{ratio:.2f} × raw get", "≥ 0.8 × raw", ratio >= 0.8)
        table.row("… and make a list of every entry", f"{statistics.median(touched):.2f} × raw get")


# ── sharing a manifest ──


def produce_shared(producers: list[Producer], calls: int, call: list[bytes]) -> None:
    """Each producer its share of the calls, at once."""
    together(lambda n: produce_all(producers[n], calls // len(producers), call), len(producers), len(producers))


def sharing(table: Table, places: list[Place], entries: int) -> None:
    call = [os.urandom(ENTRY) for _ in range(CALL)]
    for place in places:
        calls = (entries if place.name == "file" else entries // 2) // CALL
        size = calls * CALL * (4 + ENTRY)
        ratios: list[float] = []
        rates: list[float] = []
        for _ in range(ROUNDS):
            with place.fresh(size) as (url, options, _raw), open_producer(url, options, 1 << 20) as producer:
                produce_all(producer, calls // 4, call)
                alone = took(produce_all, producer, calls, call)
            with place.fresh(size) as (url, options, _raw):
                producers = [open_producer(url, options, 1 << 20) for _ in range(8)]
                produce_shared(producers, calls // 4, call)
                ratios.append(alone / took(produce_shared, producers, calls, call))
                for each in producers:
                    each.close()
                    rates.append(each.conflict_rate)
                found = parse_manifest(open_store(url, options).get("ingest/manifest"))
                expected = calls // 8 * 8 + calls // 4 // 8 * 8
                assert sum(len(each.metadata) for each in found) == expected, "a call is missing or doubled"
        ratio = statistics.median(ratios)
        table.row(
            f"8 producers on one manifest, 1 MiB batches, {place.name}",
            f"{ratio:.2f} × one producer ({statistics.mean(rates):.0f} conflicts per 100 writes)",
            "> 0.75 ×, all resolve",
            ratio > 0.75,
        )


# ── the manifest ──


def manifest(table: Table) -> None:
    metadata = (Metadata(0, 1_700_000_000_000, b""),)
    data = append(parse_manifest(None), [(f"ingest/{n:026d}.batch", metadata) for n in range(10_000)])
    one = [("ingest/x.batch", metadata)]
    source = bytearray(data)
    ratios = []
    for _ in range(25):
        copying = took(lambda: [bytes(source) for _ in range(20)])
        appending = took(lambda: [append(parse_manifest(data), one) for _ in range(20)])
        ratios.append(appending / copying)
    ratio = statistics.median(ratios)
    table.row("append to a manifest of 10,000 entries", f"{ratio:.2f} × copying it", "≤ 1.2 ×", ratio <= 1.2)


def main() -> None:
    quick = "quick" in sys.argv[1:]
    load = f"Load average at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    notes = f"{__doc__}\n{load}; {versions('obstore', 'zstandard', 'numpy', 'moto')}."
    table = Table("buffer", "The buffer", notes)
    emulator = Emulator()
    try:
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as name:
            places = [Place("file", Path(name), emulator), Place("S3 emulator", Path(name), emulator)]
            manifest(table)
            decoding(table, 200_000 if quick else 1_000_000)
            handling(table, 500_000 if quick else 2_000_000)
            producing(table, places, 1_000_000 if quick else 4_000_000)
            latency(table, places)
            consuming(table, places, 20 if quick else 40)
            sharing(table, places, 800_000 if quick else 1_600_000)
    finally:
        emulator.stop()
    table.save()


if __name__ == "__main__":
    main()
