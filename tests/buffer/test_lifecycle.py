"""Producers and consumers that are forked, interrupted or closed while something is under way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer import Consumer, Producer
from penstock.buffer.consumer import Collector
from penstock.errors import Closed
from penstock.objects.store import ObjectStore
from waiting import DEADLINE


def in_a_child(work: Callable[[], object]) -> str:
    """What came of it in a forked child: "done", or the name of the error."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        said = "done"
        try:
            work()
        except BaseException as error:
            said = type(error).__name__
        finally:
            os.write(tell, said.encode())
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


def entries(url: str) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(url, gc_interval=None) as consumer:
        while (batch := consumer.next_batch()) is not None:
            found += batch.entries
    return found


def test_a_forked_child_sends_nothing_of_its_parents(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with Producer(url, flush_interval=3600) as producer:
        producer.produce([b"a"])
        assert in_a_child(producer.close) == "done"
        assert in_a_child(lambda: producer.produce([b"b"])) == "Closed"
        assert in_a_child(lambda: producer.flush(1)) == "Closed"
    assert entries(url) == [b"a"]


def test_a_forked_child_does_not_read_as_its_parent(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with Producer(url) as producer:
        producer.produce([b"a"])
    with Consumer(url, gc_interval=None) as consumer:
        assert in_a_child(consumer.next_batch) == "Closed"
        assert in_a_child(consumer.close) == "done"
        batch = consumer.next_batch()
        assert batch is not None and batch.entries == [b"a"]
        consumer.ack(batch.sequence)
    with pytest.raises(Closed):
        consumer.next_batch()


def test_a_close_that_was_interrupted_can_be_done_again(memory: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(memory, flush_interval=3600)
    produced = producer.produce([b"a"])

    def interrupted(timeout: float | None) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as signal:
        signal.setattr(producer._pipeline, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    producer.close()
    assert produced.done()


def test_closing_does_not_keep_the_collector_from_ending(memory: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with Producer(memory) as producer:
        producer.produce([b"a"])
    consumer = Consumer(memory, gc_interval=0.01)
    collecting, go = threading.Event(), threading.Event()
    decide = consumer._decide

    def slow(choose: Any) -> Any:
        collecting.set()
        assert go.wait(DEADLINE)
        return decide(choose)

    monkeypatch.setattr(consumer, "_decide", slow)
    assert collecting.wait(DEADLINE)
    running = consumer._collector
    assert isinstance(running, Collector)
    stop = running.stop

    def stopping() -> None:
        go.set()
        stop()

    monkeypatch.setattr(running, "stop", stopping)
    consumer.close()
    assert not running._thread.is_alive()
