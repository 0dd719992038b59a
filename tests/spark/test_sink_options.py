"""Columns of a frame that say how its rows are written and delivered: as `append` and `push` take them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from without_spark import write as write_to

import penstock
from penstock.errors import ConfigError, Conflict, QueueFull

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Write = Callable[..., None]
TYPES: dict[str, pa.DataType] = {
    "kind": pa.string(),
    "payload": pa.string(),
    "key": pa.string(),
    "dedup": pa.string(),
    "correlation": pa.string(),
    "expect": pa.int64(),
    "priority": pa.int32(),
    "delay": pa.float64(),
    "not_before": pa.timestamp("us", "UTC"),
    "max_attempts": pa.int32(),
}


@pytest.fixture
def write(place: dict[str, str]) -> Write:
    """Writes rows, one list of dictionaries for each task, by the writer that Spark is given."""

    def write(*tasks: list[dict[str, Any]], types: dict[str, pa.DataType] | None = None, **options: object) -> None:
        names = {name: None for task in tasks for row in task for name in row}
        fields = pa.schema({name: {**TYPES, **(types or {})}[name] for name in names})
        write_to(place, *(pa.RecordBatch.from_pylist(task, fields) for task in tasks), **options)

    return write


def row(number: int, **options: Any) -> dict[str, Any]:
    return {"kind": "made", "payload": f'{{"n":{number}}}', **options}


def numbers(journal: penstock.Journal, topic: str = "orders") -> list[int]:
    return [event.payload["n"] for event in journal.topic(topic).read()]


# ── dedup ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_dedup_key_is_written_once_in_a_batch_across_tasks_and_across_writes(
    journal: penstock.Journal, write: Write
) -> None:
    journal.topic("orders").append("made", {"n": -1}, dedup="a")
    write([row(0, dedup="a"), row(1, dedup="b"), row(2, dedup=None)], [row(3, dedup="b"), row(4)], topic="orders")
    assert numbers(journal) == [-1, 1, 2, 4]
    write([row(5, dedup="b"), row(6, dedup="c")], topic="orders")
    assert numbers(journal) == [-1, 1, 2, 4, 6]
    assert journal.topic("orders").append("made", {"n": 7}, dedup="c").duplicate


def test_a_replay_is_known_by_its_mark_and_a_window_that_is_over_changes_nothing(
    journal: penstock.Journal, write: Write
) -> None:
    journal.topic("orders").configure(dedup_window=0)
    for _ in range(2):
        write([row(0, dedup="a"), row(1, dedup="b")], topic="orders", txnAppId="job", txnVersion=1)
    assert numbers(journal) == [0, 1], "the second is the same write, not one whose keys are forgotten by now"
    write([row(0, dedup="a")], [row(1, dedup="a")], topic="orders", txnAppId="job", txnVersion=2)
    assert numbers(journal) == [0, 1, 0], "within a write a key counts once, whatever the window"


def test_duplicates_do_not_fill_a_queue(journal: penstock.Journal, write: Write) -> None:
    work = journal.queue("work", max_size=3)
    write([row(n, dedup=f"d{n}") for n in range(3)], queue="work")
    write([row(n, dedup=f"d{n}") for n in range(3)], queue="work")
    assert len(work) == 3
    with pytest.raises(QueueFull, match="1 more do not fit"):
        write([row(n, dedup=f"d{n}") for n in range(4)], queue="work")
    assert numbers(journal, "work") == [0, 1, 2]


# ── expect ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_an_expectation_is_about_the_entity_before_the_whole_write(journal: penstock.Journal, write: Write) -> None:
    at = journal.topic("orders").append("made", {"n": -1}, key="k").seq
    write([row(0, key="k", expect=at), row(1, key="new", expect=0)], [row(2, key="k", expect=at)], topic="orders")
    assert numbers(journal) == [-1, 0, 1, 2]
    with pytest.raises(
        Conflict, match=r"entity 'k' .* is at position 4, not 1.*a row of kind 'made' with key 'k': {.n."
    ) as wrong:
        write([row(3), row(4, key="other", expect=0)], [row(5, key="k", expect=at)], topic="orders")
    assert (wrong.value.expected, wrong.value.actual) == (1, 4)
    assert numbers(journal) == [-1, 0, 1, 2] and journal.topic("orders").position_of("other") == 0
    write([row(6, key="k", expect=None)], topic="orders")
    assert len(numbers(journal)) == 5


def test_a_duplicate_expects_nothing(journal: penstock.Journal, write: Write) -> None:
    write([row(0, key="k", dedup="a", expect=0)], topic="orders")
    write([row(0, key="k", dedup="a", expect=0), row(1, key="k", dedup="b", expect=1)], topic="orders")
    assert numbers(journal) == [0, 1]


# ── delivery ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_messages_are_delivered_as_their_columns_say(journal: penstock.Journal, write: Write) -> None:
    ranked = journal.queue("ranked", priority=True)
    write([row(0, priority=1), row(1, priority=None)], [row(2, priority=7)], queue="ranked")
    assert [delivery.payload["n"] for delivery in ranked.take_many(5)] == [2, 0, 1]
    lined = journal.queue("lined")
    write([row(0), row(1, priority="front"), row(2)], types={"priority": pa.string()}, queue="lined")
    assert [delivery.payload["n"] for delivery in lined.take_many(5)] == [1, 0, 2]
    tried = journal.queue("tried")
    write([row(0, max_attempts=1), row(1)], queue="tried")
    for delivery in tried.take_many(2):
        delivery.nack()
    assert [event.payload["n"] for event in tried.failed()] == [0] and len(tried) == 1


def test_delays_count_from_the_commit_and_times_are_times(journal: penstock.Journal, write: Write) -> None:
    work = journal.queue("work")
    far, past = datetime(2126, 1, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)
    before = datetime.now(UTC)
    write([row(0, delay=3600.0), row(1, delay=0.0), row(2)], queue="work")
    write([row(3, not_before=far), row(4, not_before=past)], queue="work")
    write([row(5, delay=timedelta(hours=2))], types={"delay": pa.duration("us")}, queue="work")
    assert [delivery.payload["n"] for delivery in work.take_many(9)] == [1, 2, 4]
    due = {message.event.payload["n"]: message.due for message in work.messages("delayed")}
    assert due[3] == far and before + timedelta(hours=1) <= due[0] <= datetime.now(UTC) + timedelta(hours=1)
    assert due[5] - due[0] >= timedelta(minutes=59)


def test_a_fanout_queue_a_paused_one_and_one_with_turns(journal: penstock.Journal, write: Write) -> None:
    news = journal.queue("news", mode="fanout", priority=True)
    news.add_group("a")
    news.add_group("b")
    news.pause(group="b")
    write([row(0, priority=1), row(1, priority=2)], queue="news")
    assert [delivery.payload["n"] for delivery in news.take_many(5, group="a")] == [1, 0]
    assert news.take(group="b") is None
    news.resume(group="b")
    assert [delivery.payload["n"] for delivery in news.take_many(5, group="b")] == [1, 0]
    shared = journal.queue("shared", fair_by="key")
    write([row(0, max_attempts=1), row(1, delay=3600.0), row(2, delay=None)], queue="shared")
    assert [delivery.payload["n"] for delivery in shared.take_many(5)] == [0, 2]
    assert shared.stats().delayed == 1


def test_a_throttle_and_a_debounce_look_at_every_row(journal: penstock.Journal, write: Write) -> None:
    first = journal.queue("first", throttle=3600)
    write([row(0, key="a"), row(1, key="a"), row(2, key="b")], [row(3, key="a"), row(4)], queue="first")
    write([row(5, key="a")], queue="first")
    assert [event.payload["n"] for event in first] == [0, 2, 4]
    newest = journal.queue("newest", debounce=3600, max_size=3)
    write([row(0, key="a"), row(1, key="a", max_attempts=2)], [row(2, key="b"), row(3, key="a")], queue="newest")
    assert [event.payload["n"] for event in newest] == [2, 3] and newest.stats().delayed == 2
    assert numbers(journal, "newest") == [0, 1, 2, 3]


# ── what cannot be ───────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("options", "types", "message"),
    [
        ({"dedup": 7}, {"dedup": pa.int64()}, "column 'dedup' must be text"),
        ({"expect": "7"}, {"expect": pa.string()}, "column 'expect' must be a whole number"),
        ({"priority": 1.5}, {"priority": pa.float64()}, "column 'priority' must be a whole number"),
        ({"delay": "1h"}, {"delay": pa.string()}, "column 'delay' must be seconds"),
        ({"not_before": 7}, {"not_before": pa.int64()}, "column 'not_before' must be a timestamp"),
        ({"max_attempts": 1.0}, {"max_attempts": pa.float64()}, "column 'max_attempts' must be a whole number"),
        ({"correlation": 1}, {"correlation": pa.int64()}, "column 'correlation' must be text"),
        ({"dedup": ""}, {}, "dedup must be text that is not empty"),
        ({"dedup": "d" * 401}, {}, "dedup is 401 bytes long"),
        ({"expect": 3}, {}, "expect= of event 1 needs key="),
        ({"expect": -1, "key": "k"}, {}, "expect of event 1 must be a position"),
        ({"priority": "first"}, {"priority": pa.string()}, 'priority must be a whole number or "front"'),
        ({"priority": 1 << 40}, {"priority": pa.int64()}, "priority must fit 32 bits"),
        ({"priority": 1}, {}, "queue 'work' has no priorities.*kind 'made'"),
        ({"priority": 1, "key": "k"}, {}, "key= cannot be combined with priority=.*with key 'k'"),
        ({"delay": -1.0}, {}, "delay must be at least 0 seconds"),
        ({"delay": float("nan")}, {}, "delay must be a number of seconds"),
        ({"delay": 1.0, "key": "k"}, {}, "key= cannot be combined with delay="),
        ({"delay": 1.0, "not_before": datetime(2126, 1, 1, tzinfo=UTC)}, {}, "delay= or not_before=, not both"),
        ({"max_attempts": 0}, {}, "max_attempts must be a whole number of at least 1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_push_would_refuse_is_refused_and_nothing_is_written(
    journal: penstock.Journal, write: Write, options: dict[str, Any], types: dict[str, Any], message: str
) -> None:
    work = journal.queue("work")
    with pytest.raises(ConfigError, match=message):
        write([row(0), row(1, **options)], types=types, queue="work")
    assert len(work) == 0 and numbers(journal, "work") == []


@pytest.mark.parametrize("name", ["priority", "delay", "not_before", "max_attempts"])
def test_a_topic_does_not_understand_how_to_deliver(journal: penstock.Journal, write: Write, name: str) -> None:
    with pytest.raises(ConfigError, match=f"column '{name}' .* only a queue understands"):
        write([row(0, **{name: None})], topic="orders")


def test_a_correlation_has_one_name(journal: penstock.Journal, write: Write) -> None:
    write([row(0, correlation="c1"), row(1)], topic="orders")
    assert [event.correlation_id for event in journal.topic("orders").read()] == ["c1", None]
    with pytest.raises(ConfigError, match="say the same thing"):
        write([row(0, correlation="c1", correlation_id="c2")], types={"correlation_id": pa.string()}, topic="orders")


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_spark_writes_options(spark: SparkSession, url: str, journal: penstock.Journal) -> None:
    ranked = journal.queue("ranked", priority=True)
    frame = spark.sql("""
        SELECT payload, dedup, CAST(id % 3 AS INT) AS priority, INTERVAL '0' SECOND AS delay, 5S AS max_attempts
        FROM (SELECT id, to_json(struct(id AS n)) AS payload, concat('d', id % 50) AS dedup FROM range(0, 100, 1, 2))
    """)
    writer = frame.write.format("penstock").mode("append").options(url=url, queue="ranked")
    writer.save()
    writer.save()
    assert len(ranked) == 50
    assert [delivery.payload["n"] % 3 for delivery in ranked.take_many(50)] == sorted(
        (n % 3 for n in range(50)), reverse=True
    )
