"""States folded on Spark and saved in the journal: what projections in-process start from afterwards."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import penstock
import penstock.spark
from penstock import Draft, Projection, on
from penstock.api import local
from penstock.cli.main import run
from penstock.core.entity.projection import folder_of
from penstock.core.entity.states import SNAPSHOT, load_saved
from penstock.core.journal.keys import prefix_end
from penstock.errors import ConfigError
from server.serving import ADMIN, TOKENS, WRITE, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Till(Projection, name="till"):
    total: int = 0
    seen: list[int] = []

    @on("paid")
    def paid(self, event: Any) -> None:
        self.total += event.payload["amount"]
        self.seen = [*self.seen[-3:], event.seq]


class NewTill(Projection, name="till", version=2):
    count: int = 0

    @on("paid")
    def paid(self, payload: Any) -> None:
        self.count += 1


def fill(journal: penstock.Journal, count: int, seed: int = 1) -> None:
    chance = random.Random(seed)
    drafts = [
        Draft(
            chance.choice(["paid", "paid", "noted"]),
            {"amount": chance.randrange(9)},
            key=None if chance.random() < 0.05 else f"k{chance.randrange(40)}",
        )
        for _ in range(count)
    ]
    journal.topic("tills").append_many(drafts)


def saved(journal: penstock.Journal) -> dict[bytes, bytes]:
    with local(journal, "a test")._engine.read() as snap:
        return dict(snap.scan(SNAPSHOT, prefix_end(SNAPSHOT)))


def test_the_states_are_byte_for_byte_those_that_a_rebuild_in_process_saves(
    spark: SparkSession, journal: penstock.Journal
) -> None:
    fill(journal, 3000)
    topic = journal.topic("tills")
    here = topic.rebuild(Till)
    expected = saved(journal)
    told: list[tuple[int, int]] = []
    report = penstock.spark.rebuild(journal, "tills", Till, progress=lambda *done: told.append(done))
    assert report == here and told[-1] == (40, 40)
    assert saved(journal) == expected and len(expected) == 40
    with serving(journal, tokens=TOKENS) as served:
        with penstock.open(served.url, token=ADMIN) as remote:
            topic.rebuild(NewTill)
            assert penstock.spark.rebuild(remote, "tills", Till) == here and saved(journal) == expected
        with (
            penstock.open(served.url, token=WRITE) as writer,
            pytest.raises(ConfigError, match="one's role is write"),
        ):
            penstock.spark.rebuild(writer, "tills", Till)


def test_a_rebuild_from_the_command_line_takes_a_master(
    spark: SparkSession, url: str, journal: penstock.Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(journal, 300)
    here = journal.topic("tills").rebuild(Till)
    expected = saved(journal)
    journal.topic("tills").rebuild(NewTill)
    words = ["rebuild", "tills", f"{__name__}:Till", "--url", url, "--json"]
    assert run([*words, "--master", spark.sparkContext.master]) == 0
    report = {"topic": "tills", "entities": here.entities, "events": here.events, "through": here.through}
    assert json.loads(capsys.readouterr().out) == report
    assert saved(journal) == expected
    assert run([*words, "--master", "local[2]", "--whole"]) == 2 and saved(journal) == expected


def test_projections_start_from_them_and_fold_what_came_since(
    spark: SparkSession, url: str, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(journal, 500)
    topic = journal.topic("tills")
    before = topic.latest
    import penstock.spark.projection.projecting as rebuilding

    begin = rebuilding.StateSaving.begin

    def append_meanwhile(saving: Any) -> None:
        fill(journal, 100, seed=2)
        begin(saving)

    monkeypatch.setattr(rebuilding.StateSaving, "begin", append_meanwhile)
    assert penstock.spark.rebuild(url, "tills", Till).through == before
    number = topic._at.ask(lambda view: view.topic_id, 0)  # type: ignore[attr-defined]
    for n in range(40):
        key, state = f"k{n}", Till()
        with local(journal, "a test")._engine.read() as snap:
            found = load_saved(snap, number, folder_of(Till).declared, key)
        assert found is not None and found.generation <= before
        for event in topic.read(key=key):
            if event.kind == "paid":
                state.paid(event)
        assert topic.project(Till, key) == state


def test_a_fold_that_fails_leaves_what_is_saved(spark: SparkSession, journal: penstock.Journal) -> None:
    fill(journal, 100)
    journal.topic("tills").rebuild(Till)
    kept = saved(journal)
    journal.topic("tills").append("paid", {}, key="k1")
    with pytest.raises(PySparkException, match=r"in projection handler Till\.paid, for event 101"):
        penstock.spark.rebuild(journal, "tills", Till)
    assert saved(journal) == kept


def test_what_cannot_be_rebuilt_here(spark: SparkSession, journal: penstock.Journal) -> None:
    assert penstock.spark.rebuild(journal, "nothing", Till).entities == 0
    with pytest.raises(ConfigError, match=r"derived from penstock\.Projection"):
        penstock.spark.rebuild(journal, "tills", dict)  # type: ignore[arg-type]
    with penstock.open("memory:") as other:
        other.topic("tills").append("paid", {"amount": 1}, key="k")
        with pytest.raises(ConfigError, match="memory: lives in one"):
            penstock.spark.rebuild(other, "tills", Till)
