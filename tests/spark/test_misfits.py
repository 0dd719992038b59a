"""Where `badRecords` meets queues, filters, servers reading again: every misfit is there once, or the read fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StructType

import penstock
from penstock import Draft
from penstock.core.local.backend import LocalJournal
from penstock.errors import ConfigError, QueueFull
from penstock.remote.backend import RemoteJournal
from penstock.spark.source import PenstockSource

COLUMNS = StructType().add("seq", "long").add("n", "integer")
PERMISSIVE = StructType().add("seq", "long").add("n", "integer").add("_corrupt_record", "string")


@pytest.fixture
def journal(url: str) -> Iterator[penstock.Journal]:
    """Nine events; 1, 4 and 7, of the kind bad and all with one key, do not fit `n INT`."""
    with penstock.open(url, durability="process") as journal:
        drafts = [Draft("good", {"n": n}) if n % 3 else Draft("bad", {"n": "x"}, key="k") for n in range(9)]
        journal.topic("orders").append_many(drafts)
        yield journal


def source(place: dict[str, str], **options: str) -> PenstockSource:
    return PenstockSource({"topic": "orders", "payloadSchema": "n INT", **place, **options})


def rows(reader: Any, shares: Any = None) -> list[int]:
    shares = reader.partitions() if shares is None else shares
    return [seq for share in shares for batch in reader.read(share) for seq in batch.column("seq").to_pylist()]


def put(journal: penstock.Journal, name: str) -> list[str]:
    return [event.headers["penstock-seq"] for event in journal.topic(name).read()]


def test_a_batch_that_is_read_again_puts_nothing_again(journal: penstock.Journal, place: dict[str, str]) -> None:
    """As after a kill between reading and the commit, also when a person was faster than the second read."""
    queue = journal.queue("misfits")
    for there in (3, 0, 0):
        reader: Any = source(place, badRecords="misfits").streamReader(COLUMNS)  # every time a new process
        assert rows(reader, reader.partitions({"orders": 0}, {"orders": 9})) == [2, 3, 5, 6, 8, 9]
        assert len(queue) == there
        while (message := queue.take()) is not None:  # one at a time: they have one key
            message.ack()


def test_a_full_queue_ends_the_read_and_takes_all_or_nothing(journal: penstock.Journal, place: dict[str, str]) -> None:
    queue = journal.queue("misfits", max_size=3)
    queue.push("other")
    reader = source(place, badRecords="misfits").reader(COLUMNS)
    with pytest.raises(QueueFull, match=r"holds 1 messages of at most 3; 3 more do not fit"):
        rows(reader)
    assert len(queue) == 1
    for message in queue.take_many(1):
        message.ack()
    for _ in range(2):
        assert rows(reader) == [2, 3, 5, 6, 8, 9]  # what is there already needs no room
    assert len(queue) == 3


def test_only_rows_that_pass_the_filters_are_bad_records(journal: penstock.Journal, place: dict[str, str]) -> None:
    permissive = source(place, badRecords="misfits", kinds="good", mode="PERMISSIVE").reader(PERMISSIVE)
    assert rows(permissive) == [2, 3, 5, 6, 8, 9] and "misfits" not in journal.topics()
    both = source(place, badRecords="misfits", keys="k", mode="PERMISSIVE", startingOffsets="1").reader(PERMISSIVE)
    assert rows(both) == [4, 7] and put(journal, "misfits") == ["4", "7"]


def test_targets_that_would_lose_or_repeat_records_are_refused(
    journal: penstock.Journal, place: dict[str, str]
) -> None:
    for asked in ({}, {"topic": "a,orders"}):
        with pytest.raises(ConfigError, match="this query reads 'orders'"):
            source(place, badRecords="orders", **asked).reader(COLUMNS)
    with pytest.raises(ConfigError, match=r"this query reads 'orders\.bad'"):
        named = {"topicPattern": "orders.*", "badRecords": "orders.bad", "payloadSchema": "n INT"}
        PenstockSource({**place, **named}).reader(COLUMNS)
    journal.queue("slow", throttle=60)
    journal.queue("calm", debounce=60)
    journal.topic("latest").configure(by_key=True)
    for name, why in (("slow", "a throttle"), ("calm", "a debounce"), ("latest", "the newest event of every key")):
        with pytest.raises(ConfigError, match=f"badRecords: (queue|topic) '{name}' .*{why}"):
            rows(source(place, badRecords=name).reader(COLUMNS))
        assert len(journal.topic(name)) == 0


def test_a_queue_that_was_dropped_is_not_made_again(
    journal: penstock.Journal, place: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when that happens after a look at the list of queues."""
    journal.queue("misfits").drop()
    for kind in (LocalJournal, RemoteJournal):
        monkeypatch.setattr(kind, "queues", lambda self: ["misfits"])
    assert rows(source(place, badRecords="misfits").reader(COLUMNS)) == [2, 3, 5, 6, 8, 9]
    monkeypatch.undo()
    assert journal.queues() == [] and put(journal, "misfits") == ["1", "4", "7"]
