"""What a frame may bring that is not usual, and what staging leaves alone: asked of the writer's own functions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import MapType, StringType, StructType
from without_spark import write_batch

import penstock
from penstock import Projection, on
from penstock.core.events import Event
from penstock.errors import ConfigError, QueueFull
from penstock.spark import journals
from penstock.spark.projection.fold import Folded, fold_sorted
from penstock.spark.projection.shipping import Shipped, StateRows, result_schema
from penstock.spark.source import PenstockSource
from server.serving import serving

WIDE = pa.large_string()
MOMENT = 1_700_000_000_000_000
FAR = 1_700_000_000_000 * 1_000_000
"""Milliseconds taken for seconds: the year 55,840."""
KEYED = StructType().add("key", "string").add("payload", "string")


def writer(schema: StructType, **options: str) -> Any:
    return PenstockSource({"kind": "made", **options}).writer(schema, False)


def write(schema: StructType, rows: Mapping[str, pa.Array], **options: str) -> None:
    made = writer(schema, **options)
    made.commit([made.write(iter([pa.record_batch(dict(rows))]))])


# ── what Spark sends ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_texts_with_wide_offsets_in_headers_and_causes(url: str, journal: penstock.Journal) -> None:
    schema = StructType().add("payload", "string").add("headers", MapType(StringType(), StringType()))
    schema.add("cause", StructType().add("id", "string").add("correlation_id", "string"))
    cause = pa.struct([("id", WIDE), ("correlation_id", WIDE)])
    rows = {
        "payload": pa.array(["1", "2", "3"], WIDE),
        "headers": pa.array([[("a", "bcd"), ("tenant", "x")], None, [("é", "")]], pa.map_(WIDE, WIDE)),
        "cause": pa.array([{"id": "a"}, None, {"id": "b", "correlation_id": "c"}], cause),
    }
    write(schema, rows, url=url, topic="orders")
    found = [
        (event.payload, dict(event.headers), event.causation_id, event.correlation_id)
        for event in journal.topic("orders").read()
    ]
    assert found == [(1, {"a": "bcd", "tenant": "x"}, "a", "a"), (2, {}, None, None), (3, {"é": ""}, "b", "c")]


@pytest.mark.parametrize("zone", ["UTC+01:00", "Z", "PST", "Europe/Berlin"])
def test_times_in_the_zone_of_any_session(url: str, journal: penstock.Journal, zone: str) -> None:
    journal.queue("mail")
    moments = pa.array([MOMENT, None], pa.timestamp("us", zone))
    schema = StructType().add("payload", "string").add("not_before", "timestamp").add("occurred_at", "timestamp")
    rows = {"payload": pa.array(["1", "2"]), "not_before": moments, "occurred_at": moments}
    write(schema, rows, url=url, queue="mail")
    first, second = journal.topic("mail").read()
    assert first.occurred_at.timestamp() * 1_000_000 == MOMENT and second.occurred_at > first.occurred_at


@pytest.mark.parametrize("name", ["not_before", "occurred_at"])
@pytest.mark.parametrize("moment", [FAR, -FAR])
def test_a_time_that_could_not_be_read_is_not_written(
    url: str, journal: penstock.Journal, name: str, moment: int
) -> None:
    journal.queue("mail")
    rows = {"payload": pa.array(["1", "2"]), name: pa.array([MOMENT, moment], pa.timestamp("us", "UTC"))}
    with pytest.raises(ConfigError, match=f"the column '{name}' has a time outside of the years 1 to 9999 of UTC"):
        write(StructType().add("payload", "string").add(name, "timestamp"), rows, url=url, queue="mail")
    assert journal.topic("mail").latest == 0


class Seen(Projection):
    notes: list[str] = []

    @on("noted")
    def noted(self, payload: str, event: Event) -> None:
        self.notes.append(f"{payload} {event.headers.get('by')} {event.occurred_at:%H:%M}")


def test_a_projection_folds_wide_texts_and_times_of_any_zone() -> None:
    moment = pa.timestamp("us", "UTC+01:00")
    batch = pa.record_batch(
        {
            "key": pa.array(["a", "a", "b"], WIDE),
            "seq": pa.array([1, 3, 2], pa.int64()),
            "kind": pa.array(["noted"] * 3, WIDE),
            "payload": pa.array(['"one"', '"three"', '"two"'], WIDE),
            "headers": pa.array([[("by", "x")], [("by", "yy")], []], pa.map_(WIDE, WIDE)),
            "occurred_at": pa.array([MOMENT] * 3, moment),
        }
    )
    folded = fold_sorted(iter([batch]), Shipped(Seen), lambda key: Folded(key, Seen(notes=[])))
    states = {one.key: one.state for one in folded}
    assert states == {"a": Seen(notes=["one x 22:13", "three yy 22:13"]), "b": Seen(notes=["two None 22:13"])}


class Account(Projection):
    total: int = 0
    mean: Decimal = Decimal(0)
    name: str | None = None

    @on("noted")
    def noted(self, payload: int) -> None:
        self.total += payload


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("total", 9.99, "9.99 is no whole number"),
        ("total", 1 << 70, "too large"),
        ("mean", Decimal(1) / Decimal(3), "data loss"),
        ("mean", 0.5, "got float"),
        ("name", "\ud800", "surrogates"),
    ],
)
def test_a_state_that_does_not_fit_its_annotations_is_named(field: str, value: object, said: str) -> None:
    """Arrow would cut 9.99 to 9, and say of the others neither which state nor which field."""
    odd = Account()
    setattr(odd, field, value)
    with pytest.raises(ConfigError, match=f"the state of 'b' has {field}=.* does not fit .*{said}"):
        StateRows(result_schema(Account)).batch(["a", "b", "c"], [1, 2, 3], [Account(), odd, Account()])


def test_whole_numbers_of_other_types_fit() -> None:
    numbers: list[Any] = [2, 2.0, Decimal(2), True]
    made = StateRows(result_schema(Account)).batch(list("abcd"), [1, 2, 3, 4], [Account(total=n) for n in numbers])
    assert [state["total"] for state in made.column("state").to_pylist()] == [2, 2, 2, 1]


# ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("policy", [{"debounce": 60.0}, {"throttle": 60.0}])
@pytest.mark.parametrize("place", ["file", "served"])
@pytest.mark.parametrize("order", [1, -1])
def test_messages_without_keys_count_beside_those_that_merge(
    url: str, journal: penstock.Journal, policy: dict[str, Any], place: str, order: int
) -> None:
    journal.queue("mail", max_size=5, **policy)

    def shares(made: Any, count: int) -> list[Any]:
        keyed = pa.record_batch({"key": pa.array(["k"] * 9), "payload": pa.array(["1"] * 9)})
        bare = pa.record_batch({"key": pa.array([None] * count, pa.string()), "payload": pa.array(["1"] * count)})
        return [made.write(iter([batch])) for batch in (keyed, bare)[::order]]

    with serving(journal) as served:
        made = writer(KEYED, url=url if place == "file" else served.url, queue="mail")
        with pytest.raises(QueueFull, match="do not fit"):
            made.commit(shares(made, 5))
        assert journal.topic("mail").latest == 0
        made.commit(shares(made, 4))
    stats = journal.queue("mail").stats()
    assert stats.ready + stats.delayed == 5


def test_a_write_of_nothing_new_passes_where_a_queue_is_too_full(url: str, journal: penstock.Journal) -> None:
    schema = StructType().add("payload", "string").add("dedup", "string")
    rows = {"payload": pa.array(["1", "2"]), "dedup": pa.array(["a", "b"])}
    journal.queue("mail", max_size=2)
    write(schema, rows, url=url, queue="mail")
    journal.queue("mail").configure(max_size=1)
    write(schema, rows, url=url, queue="mail")
    assert journal.topic("mail").latest == 2


# ── the journal between two commits ──────────────────────────────────────────────────────────────────────────────────
def numbers(journal: penstock.Journal) -> list[int]:
    return [event.payload for event in journal.topic("copies").read()]


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_between_two_batches_other_processes_write_and_the_file_may_be_exchanged(tmp_path: Path, scheme: str) -> None:
    """What commits keep open between batches holds no other process back, and is never a file that is gone."""
    url = f"{scheme}:{tmp_path / 'shop'}"
    program = "import sys, penstock\nwith penstock.open(sys.argv[1]) as it: it.topic('copies').append('other', 7)"
    for batch in range(2):
        write_batch(url, batch, [{"kind": "n", "payload": str(batch)}], topic="copies")
        subprocess.run([sys.executable, "-c", program, url], check=True, timeout=60)
    with penstock.open(url) as journal:
        assert numbers(journal) == [0, 7, 1, 7]
    for file in tmp_path.iterdir():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    write_batch(url, 2, [{"kind": "n", "payload": "2"}], topic="copies")
    with penstock.open(url) as journal:
        assert numbers(journal) == [2]
    journals.release_journals()


def test_a_forked_process_commits_through_a_journal_of_its_own(tmp_path: Path) -> None:
    url = str(tmp_path / "shop.db")
    write_batch(url, 0, [{"kind": "n", "payload": "0"}], topic="copies")
    child = os.fork()
    if not child:
        try:
            write_batch(url, 1, [{"kind": "n", "payload": "1"}], topic="copies")
        finally:
            os._exit(0)  # as Spark ends a worker: nothing is closed
    os.waitpid(child, 0)
    write_batch(url, 2, [{"kind": "n", "payload": "2"}], topic="copies")
    with penstock.open(url) as journal:
        assert numbers(journal) == [0, 1, 2]
    journals.release_journals()
