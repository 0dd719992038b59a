"""From a buffer into a journal: exactly once, however often it is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import penstock
from penstock.buffer import Consumer, Metadata, Producer, drain
from penstock.core.events import Draft
from penstock.errors import Corrupt, OutOfOrder
from penstock.objects.store import ObjectStore, open_store

from .conftest import MANIFEST, Buffer
from .faults import FaultyStore, Killed


@pytest.fixture
def topic(tmp_path: Path):
    with penstock.open(f"{tmp_path}/journal.db") as journal:
        yield journal.topic("events")


def payloads(topic) -> list[bytes]:
    return [bytes(event.payload) for event in topic.read()]


def test_every_entry_becomes_an_event_in_order(buffer: Buffer, topic):
    buffer.fill(5)
    report = drain(buffer.consumer(), topic, until_empty=True)
    assert payloads(topic) == [f"data{n}-{half}".encode() for n in range(5) for half in "ab"]
    assert (report.batches, report.entries, report.skipped, report.fenced) == (5, 10, 0, None)
    assert buffer.length() == 0


def test_events_carry_the_kind_the_producers_time_and_the_metadata(memory_buffer: Buffer, topic):
    ranges = (Metadata(0, 1_000, b"from a"), Metadata(2, 2_000, b"\xff\xfe"), Metadata(3, 3_000, b""))
    memory_buffer.enqueue("ingest/x.batch", [b"0", b"1", b"2", b"3"], ranges)
    memory_buffer.enqueue("ingest/y.batch", [b"4"])
    drain(memory_buffer.consumer(), topic, kind="reading", until_empty=True)
    events = list(topic.read())
    assert {event.kind for event in events} == {"reading"}
    assert [event.occurred_at.timestamp() for event in events[:4]] == [1, 1, 2, 3]
    assert [dict(event.headers) for event in events] == [
        {"metadata": "from a"},
        {"metadata": "from a"},
        {"metadata-base64": "//4="},
        {},
        {},
    ]


def test_a_draft_function_decides_what_an_entry_becomes(memory_buffer: Buffer, topic):
    memory_buffer.enqueue("ingest/x.batch", [b"k1=5"], (Metadata(0, 1, b"m"),))

    def make(entry: bytes, metadata: Metadata | None) -> Draft:
        key, _, value = entry.decode().partition("=")
        return Draft("set", {"value": int(value), "by": metadata.payload.decode()}, key=key)

    drain(memory_buffer.consumer(), topic, draft=make, until_empty=True)
    (event,) = topic.read()
    assert (event.kind, event.key, event.payload) == ("set", "k1", {"value": 5, "by": "m"})


def test_what_was_appended_and_not_acknowledged_is_skipped(memory: ObjectStore, topic):
    """The drain dies after the transaction and before the manifest write."""
    buffer = Buffer(memory)
    buffer.fill(3)
    dying = FaultyStore(memory)
    consumer = Consumer(dying, gc_interval=None)

    def die(act):
        raise Killed

    dying.on("put_trail", die)
    with pytest.raises(Killed):
        drain(consumer, topic, until_empty=True, ahead=1, concurrency=1)
    appended = len(payloads(topic))
    assert appended >= 2
    assert buffer.length() == 3
    again = drain(buffer.consumer(), topic, until_empty=True)
    assert len(payloads(topic)) == 6
    assert again.entries == 6 - appended
    assert buffer.length() == 0


def test_a_buffer_is_the_same_one_behind_another_url(memory: ObjectStore, topic):
    """What was appended through one endpoint, and not acknowledged, is not appended again through another."""
    Buffer(memory).fill(3)
    here, there = FaultyStore(memory), FaultyStore(memory)
    here.identity, there.identity = "s3://bucket at http://one", "s3://bucket at http://two"

    def die(act):
        raise Killed

    here.on("put_trail", die)
    with pytest.raises(Killed):
        drain(Consumer(here, gc_interval=None), topic, until_empty=True, ahead=1, concurrency=1)
    drain(Consumer(there, gc_interval=None), topic, until_empty=True)
    assert payloads(topic) == [f"data{n}-{half}".encode() for n in range(3) for half in "ab"]


def test_a_buffer_s_id_that_is_damaged_is_said(memory_buffer: Buffer, topic):
    memory_buffer.store.put(f"{MANIFEST}.id", b"")
    with pytest.raises(Corrupt, match="id"):
        drain(memory_buffer.consumer(), topic, until_empty=True)


def test_two_drains_at_once_append_every_batch_once(memory: ObjectStore, topic):
    buffer = Buffer(memory)
    buffer.fill(40)
    first = buffer.consumer()
    reached = threading.Event()
    taken_over = threading.Event()

    def slow(entry: bytes, metadata: Metadata | None) -> Draft:
        if entry == b"data5-a":
            reached.set()
            taken_over.wait(30)
        return Draft("entry", entry)

    reports = []
    zombie = threading.Thread(daemon=True, target=lambda: reports.append(drain(first, topic, draft=slow)))
    zombie.start()
    reached.wait(30)
    second = buffer.consumer()
    drain(second, topic, until_empty=True)
    taken_over.set()
    zombie.join(30)
    assert payloads(topic) == [f"data{n}-{half}".encode() for n in range(40) for half in "ab"]
    assert reports[0].fenced is not None


def test_a_failing_journal_keeps_the_batch(memory_buffer: Buffer, topic):
    memory_buffer.fill(2)

    def refuse(entry: bytes, metadata: Metadata | None) -> Draft:
        raise ValueError("no such entry")

    consumer = memory_buffer.consumer()
    with pytest.raises(ValueError, match="no such entry"):
        drain(consumer, topic, draft=refuse, until_empty=True)
    assert payloads(topic) == []
    assert memory_buffer.length() == 2
    drain(consumer, topic, until_empty=True)
    assert len(payloads(topic)) == 4


def test_a_manifest_that_began_anew_is_noticed(memory: ObjectStore, topic):
    buffer = Buffer(memory)
    buffer.fill(5)
    drain(buffer.consumer(), topic, until_empty=True)
    memory.delete([MANIFEST])
    anew = Buffer(memory)
    anew.enqueue("ingest/new.batch", [b"new"])
    with pytest.raises(OutOfOrder, match="began again"):
        drain(anew.consumer(), topic, until_empty=True)
    drain(anew.consumer(), topic, name="after the move", until_empty=True)
    assert payloads(topic)[-1] == b"new"


def test_buffers_and_topics_do_not_share_their_progress(memory: ObjectStore, topic):
    one, two = Buffer(memory), Buffer(open_store("memory://another-buffer"))
    one.fill(2)
    two.fill(2)
    drain(one.consumer(), topic, until_empty=True)
    drain(two.consumer(), topic, until_empty=True)
    assert len(payloads(topic)) == 8
    three = Buffer(open_store(f"memory://{'long' * 80}"))
    three.fill(1)
    assert drain(three.consumer(), topic, until_empty=True).entries == 2


DRAINER = """
import sys
import penstock
from penstock.buffer import Consumer, drain
with penstock.open(sys.argv[1]) as journal, Consumer(sys.argv[2], gc_interval=None) as consumer:
    print("draining", flush=True)
    drain(consumer, journal.topic("events"), poll=0.002)
"""


@pytest.mark.slow
def test_a_drain_that_is_killed_again_and_again_appends_every_entry_once(tmp_path: Path):
    journal, url = f"{tmp_path}/journal.db", f"file://{tmp_path}/buffer"
    rng = random.Random(7)
    expected: list[bytes] = []

    def drained() -> bool:
        with penstock.open(journal, read_only=True) as opened:
            return len(opened.topic("events")) > 0

    with Producer(url, flush_interval=0.001) as producer:
        for round_ in range(3):
            process = subprocess.Popen([sys.executable, "-c", DRAINER, journal, url], stdout=subprocess.PIPE)
            process.stdout.readline()
            until = time.monotonic() + rng.uniform(0.05, 0.15)
            while time.monotonic() < until:
                entries = [f"{len(expected) + n}".encode() for n in range(rng.randrange(1, 20))]
                expected += entries
                producer.produce(entries)
                time.sleep(0.001)
            while round_ == 0 and not drained():
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
            process.stdout.close()
    with penstock.open(journal) as opened, Consumer(url, gc_interval=None) as consumer:
        topic = opened.topic("events")
        before = len(topic)
        drain(consumer, topic, until_empty=True)
        assert payloads(topic) == expected
        assert before > 0
