"""Large writes as files: what tasks and the commit cost, how many bytes pass the driver, how fast Spark loads.

python -m benchmarks spark_bulk
"""

from __future__ import annotations

import os
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count as counted
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

import penstock.spark
from benchmarks.harness import Table
from benchmarks.spark_rows import events, write_topic
from penstock.api import local
from penstock.core.journal.sealed.segments import NewSegment, SegmentKeys
from penstock.core.local.bulk import list_sealed
from penstock.core.protocol.bulk import SealedQuery
from penstock.limits import MAX_POSITION
from penstock.spark.places import perfect_hash
from penstock.spark.sink import StagedShare, TopicTarget

EVENTS = 1_000_000
SEGMENTS = 10_000
ROUNDS = 3
NOTES = """
Events of 100 bytes of JSON text with 20,000 keys. *Files*: the topic has a lake, so that tasks write files and the commit refers to them.
*Blocks*: it has none. Seconds of CPU are those of the process that does the work; loading counts the JVM and all workers, both ways in turn.
Run again with `python -m benchmarks spark_bulk`.
"""


def rows(start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """What Spark hands to a task: record batches of 10,000 rows."""
    for at in range(start, stop, 10_000):
        numbers = range(at, min(at + 10_000, stop))
        payloads = [
            f'{{"customer":"c{n % 20_000:05}","amount":{n % 8999 + 1000},"sku":"{n * 7919:052x}"}}' for n in numbers
        ]
        kinds, keys = ["paid" if n % 3 else "placed" for n in numbers], [f"c{n % 20_000}" for n in numbers]
        yield pa.RecordBatch.from_pydict({"kind": kinds, "payload": payloads, "key": keys})


def target(folder: Path, lake: bool) -> TopicTarget:
    given = {
        "url": f"sqlite:{folder / 'shop.db'}",
        "topic": "orders",
        **({"lake": str(folder / "lake")} if lake else {}),
    }
    penstock.open(folder / "shop.db").close()
    return TopicTarget(given, from_arrow_schema(next(rows(0, 1)).schema), again=False)


class Cost(msgspec.Struct):
    """What a write has cost: seconds of CPU of the task and of the commit, bytes of the task's message and its files."""

    task: float
    commit: float
    message: int
    files: int


def cost(folder: Path, lake: bool) -> Cost:
    """The cost of a write, in a process of its own, where nothing else takes time."""
    command = [sys.executable, "-m", "benchmarks.spark_bulk", "files" if lake else "blocks", str(folder)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(found.stdout, type=Cost)


def write_alone(folder: Path, lake: bool) -> None:
    """Prints the cost of a write."""
    data = list(rows(0, EVENTS))
    writing = target(folder, lake)
    begun = time.process_time()
    share = writing.stage(iter(data), "job", 0)
    task = time.process_time() - begun
    begun = time.process_time()
    writing.publish([share], None, 0)
    commit = time.process_time() - begun
    files = sum(path.stat().st_size for path in (folder / "lake").rglob("*.parquet*"))
    sys.stdout.buffer.write(msgspec.json.encode(Cost(task, commit, len(pickle.dumps(share)), files)))


def measure_costs(table: Table, folder: Path) -> None:
    rounds = [{lake: cost(fresh(folder), lake) for lake in (False, True)} for _ in range(ROUNDS)]
    commit = statistics.median(one[True].commit for one in rounds)
    before = statistics.median(one[False].commit for one in rounds)
    said = f"{commit:.3f} s of CPU; as blocks {before:.2f} s"
    table.row("the commit of a million events as files", said, "≤ 0.1 s", commit <= 0.1)
    task = statistics.median(one[True].task for one in rounds)
    ratio = statistics.median(one[True].task / one[False].task for one in rounds)
    table.row("the task that writes a million events as files", f"{task:.2f} s of CPU, {ratio:.2f} × as blocks")
    share = rounds[0][True].message / rounds[0][True].files
    table.row("bytes of the files that pass the driver", f"{share:.3%}", "≤ 1 %", share <= 0.01)


_numbers = counted()


def fresh(folder: Path) -> Path:
    """A folder that the benchmark removes at its end."""
    made = folder / f"{next(_numbers)}"
    made.mkdir()
    return made


def measure_references(table: Table, folder: Path) -> None:
    """A commit of very many segments, in a process of its own, so that its memory is its own."""
    base = [sys.executable, "-m", "benchmarks.spark_bulk", "references"]
    found = [
        list(map(float, subprocess.run([*base, str(fresh(folder))], check=True, stdout=subprocess.PIPE).stdout.split()))
        for _ in range(ROUNDS)
    ]
    took, grown, planned, newest, missing, store = map(statistics.median, zip(*found, strict=True))
    said = f"{took:.2f} s of CPU, {grown:.0f} MB of memory"
    table.row(f"a commit of {SEGMENTS:,} segments", said, "≤ 1 s, ≤ 100 MB", took <= 1 and grown <= 100)
    table.row(f"the records of {SEGMENTS:,} segments in the store", f"{store:.0f} MB")
    table.row(f"find the files of {SEGMENTS:,} segments, and where their rows are", f"{planned:.2f} s of CPU")
    said = f"{newest * 1000:.1f} ms of CPU; all events of a key that no file has, {missing * 1000:.0f} ms"
    table.row(f"find a key's newest event behind {SEGMENTS:,} segments", said, "≤ 1 ms", newest <= 0.001)


def commit_references(folder: Path) -> None:
    """Prints the seconds of CPU of the commit, how many MB the process grows by, and what the references cost later."""
    writing = target(folder, lake=True)
    now = round(time.time() * 1000)
    place = folder / "lake" / "orders" / "_segments" / "job.0"
    place.mkdir(parents=True)
    shares = [_share(place, number, now) for number in range(SEGMENTS)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    writing.publish(shares, None, 0)
    took = time.process_time() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    with penstock.open(folder / "shop.db") as journal:
        assert len(journal.topic("orders")) == SEGMENTS * EVENTS
        begun = time.process_time()
        found = list_sealed(local(journal, "a benchmark").backend, "orders", SealedQuery(0, MAX_POSITION, True))
        perfect_hash([one.paths[0].rpartition("/")[2] for one in found])
        planned = time.process_time() - begun
        journal.topic("orders").append("placed", {}, key="d1")
        looked = []
        for look in (journal.topic("orders").position_of, lambda key: list(journal.topic("orders").read(key=key))):
            look("d0")
            begun = time.process_time()
            look("d1")
            looked.append(time.process_time() - begun)
        store = sum(path.stat().st_size for path in folder.glob("shop.db*"))
    sys.stdout.write(f"{took} {grown} {planned} {looked[0]} {looked[1]} {store / 1e6}")


def _share(place: Path, number: int, now: int) -> StagedShare:
    """What a task says of a file of a million events, of which only the size is there."""
    sizes = 40_000_000, 2_000_000
    path = place / f"{now}.{number:032x}-0.parquet"
    for suffix, size in zip(("", ".keys"), sizes, strict=True):
        with Path(f"{path}{suffix}").open("wb") as file:
            file.truncate(size)
    pieces = tuple((sizes[0] * part // 100, part * 7919) for part in range(1, 101))
    lake = place.parents[2]
    keys = SegmentKeys(sizes[1], 1, "c0", "c9")
    encoded = msgspec.Raw(msgspec.msgpack.encode(pieces))
    made = NewSegment(
        str(lake), str(path.relative_to(lake)), EVENTS, sizes[0], 1, 0, 0, encoded, ("paid", "placed"), (), None, keys
    )
    return StagedShare("job", f"{number:032x}", events=EVENTS, segments=msgspec.msgpack.encode([made]))


def measure_tasks(table: Table, folder: Path) -> None:
    """Two tasks at once, each in a process of its own, beside one alone."""

    def run(tasks: int) -> float:
        """Events for each second of CPU of the slowest task, times the number of tasks."""
        with ThreadPoolExecutor(tasks) as pool:
            costs = list(pool.map(lambda _: cost(fresh(folder), True), range(tasks)))
        return tasks * EVENTS / max(one.task for one in costs)

    ratio = statistics.median(run(2) / run(1) for _ in range(ROUNDS))
    table.row("two tasks that write files, beside one", f"{ratio:.2f} × the events", "≥ 1.8 ×", ratio >= 1.8)


def measure_loading(table: Table, folder: Path) -> None:
    """Loading from Spark: what all of its processes take, both ways in turn."""
    spark = penstock.spark.session("benchmark", master="local[2]")
    frame = events(spark, 2 * EVENTS).persist()
    frame.count()

    def load(lake: bool) -> tuple[float, float]:
        place = fresh(folder)
        (place / "shop").mkdir()
        before, begun = cpu_of_all(), time.perf_counter()
        write_topic(frame, str(place / "shop" / "shop.db"), **({"lake": str(place / "lake")} if lake else {}))
        return cpu_of_all() - before, time.perf_counter() - begun

    found = [(load(False), load(True)) for _ in range(ROUNDS + 1)][1:]
    cpu, clock = (statistics.median(blocks[at] / files[at] for blocks, files in found) for at in (0, 1))
    said = f"{cpu:.2f} × the events for a second of CPU, {clock:.2f} × by the clock"
    table.row("load two million events from Spark as files, beside blocks", said, "≥ 1.5 ×", clock >= 1.5)
    penstock.spark.stop()


def cpu_of_all() -> float:
    """The seconds of CPU that this process, those it has started, and theirs have taken so far."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks.get(pid, 0) for pid in mine) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    table = Table("spark_bulk", "Large writes as files", NOTES, rounds=ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        measure_costs(table, Path(folder))
        measure_references(table, Path(folder))
        measure_tasks(table, Path(folder))
        measure_loading(table, Path(folder))
    table.save()


if __name__ == "__main__":
    if sys.argv[1] == "references":
        commit_references(Path(sys.argv[2]))
    else:
        write_alone(Path(sys.argv[2]), sys.argv[1] == "files")
