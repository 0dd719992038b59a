"""A writing process is killed again and again; everything it had acknowledged must be there, and nothing half."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from penstock.core.engine.url import open_engine
from waiting import DEADLINE, eventually

END = b"\xff" * 600

WRITER = """
import os, random, sys
import penstock.engines.file as upkeep
from penstock.core.engine.url import open_engine

upkeep.GARBAGE_BYTES = 100_000  # so that kills also meet compactions and savings of the index
upkeep.INDEX_COMMITS = 40
url, oracle, durability = sys.argv[1:]
engine = open_engine(url, durability=durability)
acknowledged = os.open(oracle, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(acknowledged, b"\\n")  # a kill may have cut the number before: this one does not continue it
with engine.read() as snapshot:
    number = int(snapshot.get(b"first") or b"0")
rng = random.Random(number)
while True:
    number += 1
    with engine.write() as tx:
        tx.put(b"first", b"%d" % number)
        tx.put(b"log%012d" % number, b"%d " % number * 20)
        tx.put(b"state%d" % (number % 7), rng.randbytes(rng.choice([10, 5000])))
        tx.delete_range(b"log", b"log%012d" % (number - 50))
        tx.put(b"second", b"%d" % number)
    os.write(acknowledged, b"%d\\n" % number)
"""


@pytest.mark.parametrize("durability", ["disk", "process"])
@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file", "slatedb"])
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path, scheme: str, durability: str) -> None:
    url = f"{scheme}:{tmp_path / 'store'}"
    oracle = tmp_path / "oracle"
    oracle.touch()
    rng = random.Random(10)
    for _ in range(2):
        before = oracle.stat().st_size
        writer = subprocess.Popen([sys.executable, "-c", WRITER, url, str(oracle), durability])
        try:
            wait_for_growth(writer, oracle, before + rng.randrange(100, 1500))
        finally:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait(DEADLINE)
        check(url, int(oracle.read_bytes().split()[-1]))


def wait_for_growth(writer: subprocess.Popen[bytes], oracle: Path, size: int) -> None:
    eventually(lambda: oracle.stat().st_size >= size or writer.poll() is not None)
    assert writer.poll() is None, "the writer died by itself"


def check(url: str, acknowledged: int) -> None:
    engine = open_engine(url)
    with engine.read() as snapshot:
        found = dict(snapshot.scan(b"", END))
    engine.close()
    last = int(found[b"first"])
    assert last >= acknowledged
    assert found[b"second"] == found[b"first"]
    log = {key: value for key, value in found.items() if key.startswith(b"log")}
    assert log == {b"log%012d" % number: b"%d " % number * 20 for number in range(max(last - 50, 1), last + 1)}
    assert {key for key in found if key.startswith(b"state")} <= {b"state%d" % number for number in range(7)}


@pytest.mark.parametrize("scheme", ["sqlite", "file", "slatedb"])
def test_a_writer_killed_while_it_opens_leaves_a_store_that_opens(scheme: str, tmp_path: Path) -> None:
    url, chance = f"{scheme}:{tmp_path / 'store'}", random.Random()
    code = (
        "import sys, penstock\nprint('go', flush=True)\nfor _ in range(1000):\n"
        "    j = penstock.open(sys.argv[1]); j.topic('t').append('k'); j.close()"
    )
    latest = 0
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "go\n"
            time.sleep(chance.random() * 0.06)
            process.kill()
        with penstock.open(url) as journal:
            events = [event.seq for event in journal.topic("t").read()]
            assert events == list(range(1, len(events) + 1)) and len(events) >= latest
            latest = journal.topic("t").append("k").seq
            assert latest == len(events) + 1
