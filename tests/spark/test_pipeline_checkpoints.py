"""A pipeline's progress and its lock, when they are forgotten, or forgetting is cut short."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock
from buffer.emulator import Emulator
from penstock.spark.pipeline.alone import alone, checkpoint_root, forget_checkpoints
from penstock.spark.pipeline.flows import FlowGraph, Pipeline, flow, topic
from penstock.spark.pipeline.running import Runner


@flow(source=topic("orders"), target=topic("copies"))
def copies(orders: Any) -> Any:
    return orders


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/shop.db"


@pytest.fixture
def checkpoint(url: str) -> Path:
    """What Spark keeps of a query that has written a batch."""
    made = Path(checkpoint_root(url)) / "shop" / "copies"
    for name in ("offsets", "commits"):
        (made / name).mkdir(parents=True)
        (made / name / "0").write_text("v1")
    (made / "metadata").write_text('{"id":"0b5c8d0e-3f63-4f0c-8f3a-6a3b1f0c9d11"}')
    return made


@pytest.mark.parametrize("way", ["reset", "forget"])
def test_progress_that_is_half_removed_is_no_querys_any_more(
    url: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Else the query would begin anew under its id, and the journal would take its batches for those it has."""
    pipeline = Runner(Pipeline.of([copies], "shop"), url)
    remove = shutil.rmtree

    def killed(path: Path, *args: Any, **kwargs: Any) -> None:
        remove(checkpoint / "offsets")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            pipeline.reset() if way == "reset" else forget_checkpoints(url, "shop")
    assert (checkpoint / "commits").exists() and not (checkpoint / "metadata").exists()
    assert pipeline.reset() == ["copies"] and not checkpoint.exists()


def test_a_reset_of_one_flow_leaves_the_progress_of_the_others(url: str, checkpoint: Path) -> None:
    others = flow(source=topic("orders"), target=topic("others"), name="others")(lambda orders: orders)
    shutil.copytree(checkpoint, checkpoint.with_name("others"))
    again = Runner(Pipeline.of([copies, others], "shop").only(["copies"]), url)
    assert again.reset() == ["copies"] and again.reset() == []
    assert not checkpoint.exists() and (checkpoint.with_name("others") / "metadata").exists()


def test_a_pipeline_finds_the_topics_of_a_journal_in_a_bucket(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in emulator.environment.items():
        monkeypatch.setenv(name, value)
    url = f"{emulator.bucket()}/shop"
    pipeline = Pipeline.of([copies], "shop")
    assert "there is no topic 'orders'" in FlowGraph(pipeline, url).problems()[0]
    with penstock.open(url) as journal:
        journal.topic("orders").append("placed", 1)
    assert FlowGraph(pipeline, url).problems() == []
    with alone(url, "shop"):
        assert [path.name for path in tmp_path.glob("*.checkpoints/*")] == ["shop.lock"]
