"""Past one machine: producers, an object store, and a Spark cluster of a master and two workers, exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster

from buffer.emulator import Emulator
from penstock.buffer import Consumer, Producer

PRODUCERS = 3
OBJECTS = 6
ENTRIES = 50


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    running = Cluster(tmp_path / "cluster")
    yield running
    running.stop()


def test_producers_a_store_and_a_cluster_count_every_entry_once(
    emulator: Emulator, cluster: Cluster, tmp_path: Path
) -> None:
    source, target = emulator.bucket(), emulator.bucket()

    def produce(who: int, objects: range) -> None:
        with Producer(source, options=emulator.options) as producer:
            for number in objects:
                producer.produce([f"{who}:{number * ENTRIES + n}".encode() for n in range(ENTRIES)])
                producer.flush()

    for who in range(PRODUCERS):  # enough for both workers from the first batch on
        produce(who, range(OBJECTS // 2))
    job = Path(__file__).with_name("cluster_job.py")
    with (tmp_path / "job.log").open("wb") as log:
        program = subprocess.Popen(
            [sys.executable, str(job), cluster.url, source, target, str(tmp_path), json.dumps(emulator.options)],
            stdout=log,
            stderr=log,
        )
    try:
        rest = range(OBJECTS // 2, OBJECTS)
        threads = [threading.Thread(target=produce, args=(who, rest), daemon=True) for who in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (tmp_path / "enough").touch()
        assert program.wait(600) == 0, (tmp_path / "job.log").read_text()[-4000:] + cluster.logs()
    finally:
        program.kill()
        program.wait()

    assert "runs tasks on other machines" in (tmp_path / "refused").read_text()
    found: list[str] = []
    executors: set[bytes] = set()
    with Consumer(target, options=emulator.options) as consumer:
        while (batch := consumer.next_batch()) is not None:
            found += [entry.decode() for entry in batch]
            executors |= {each.payload for each in batch.metadata}
            consumer.ack(batch.sequence)
    assert sorted(found) == sorted(f"{who}:{n}" for who in range(PRODUCERS) for n in range(OBJECTS * ENTRIES))
    assert len(executors) == 2, "both workers took part"
