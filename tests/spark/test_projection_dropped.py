"""A projected stream whose topic is dropped and made anew: no state of the one goes on in the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import penstock
from penstock import Draft, Projection, on
from penstock.errors import PositionTrimmed
from penstock.spark import served as served_module
from penstock.spark.options import JournalLocation
from penstock.spark.projection import projecting
from penstock.spark.projection.projecting import StateKeeper, StreamFold, _source_of, keeper_of
from penstock.spark.projection.shipping import Shipped, result_schema
from server.serving import serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Total(Projection):
    amount: int = 0

    @on("added")
    def add(self, payload: Any) -> None:
        self.amount += payload


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[penstock.Journal]:
    with penstock.open(tmp_path / "shop.db", durability="process") as journal:
        add(journal, "ab", 1000)
        yield journal


@pytest.fixture(params=["file", "served"])
def url(request: pytest.FixtureRequest, journal: penstock.Journal, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"sqlite:{tmp_path / 'shop.db'}"
        return
    with serving(journal) as served:
        yield served.url


@pytest.fixture(autouse=True)
def query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projecting, "_query_of_task", lambda: "query-1")


def add(journal: penstock.Journal, keys: str, amount: int) -> None:
    journal.topic("sums").append_many([Draft("added", amount, key=key) for key in keys])


def make_anew(journal: penstock.Journal) -> None:
    journal.drop_topic("sums", force=True)
    add(journal, "aaaaa", 3)


def rows(journal: penstock.Journal) -> list[pa.RecordBatch]:
    return [batch.select(["key", "seq", "kind", "payload"]) for batch in journal.topic("sums").read_arrow()]


def planned(keeper: StateKeeper) -> StreamFold:
    return StreamFold(Shipped(Total), result_schema(Total), keeper, "sums", whole=True)


def total(journal: penstock.Journal, key: str) -> int:
    state = journal.topic("sums").project(Total, key)
    return -1 if state is None else state.amount


def test_states_folded_from_a_dropped_topic_are_not_kept_with_the_one_made_anew(
    url: str, journal: penstock.Journal
) -> None:
    fold = planned(keeper_of(JournalLocation(url)))
    read = rows(journal)
    make_anew(journal)
    with pytest.raises(
        PositionTrimmed, match="of a topic that was dropped: the topic that was made again begins after 2"
    ):
        list(fold(iter(read)))
    assert total(journal, "a") == 15
    [states] = fold(iter(rows(journal)))
    assert [state["amount"] for state in states.column("state").to_pylist()] == [15]
    assert total(journal, "a") == 15


def test_a_stream_may_be_planned_before_its_topic_is_there(url: str, journal: penstock.Journal) -> None:
    journal.drop_topic("sums")
    fold = planned(keeper_of(JournalLocation(url)))
    add(journal, "a", 5)
    assert [batch.num_rows for batch in fold(iter(rows(journal)))] == [1]


def test_states_that_are_asked_for_in_parts_of_two_topics_are_not_gone_on_with(
    journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(journal) as served:
        fold = planned(keeper_of(JournalLocation(served.url)))
        list(fold(iter(rows(journal))))
        add(journal, "ab", 1)
        read = rows(journal)
        monkeypatch.setattr(projecting, "MOST_STATES", 1)
        client, asked = served_module.client_of, []

        def dropped_after_the_first(place: JournalLocation) -> Any:
            asked.append(place)
            if len(asked) == 2:
                make_anew(journal)
            return client(place)

        monkeypatch.setattr(served_module, "client_of", dropped_after_the_first)
        with pytest.raises(PositionTrimmed):
            list(fold(iter(read)))
        assert len(asked) == 3 and fold.keeper.load(fold.wanted("query-1"), ["a", "b"]).states == {}


def test_states_of_a_stream_that_may_leave_events_out_are_its_own_only(
    spark: SparkSession, journal: penstock.Journal, tmp_path: Path
) -> None:
    """With failOnDataLoss=false it goes on behind its position in a restored backup, once that has grown so far."""
    url = str(tmp_path / "shop.db")
    partly = ({"failOnDataLoss": "false"}, {"kinds": "added"}, {"where": "payload.amount > 1"}, {"keys": "a"})
    for options in ({}, {"failOnDataLoss": "true"}, *partly):
        found = _source_of(spark.readStream.format("penstock").options(url=url, topic="sums", **options).load())
        assert found is not None and found.whole == (options not in partly), options
