"""How a running flow counts its batches, without a session: Spark's answers change between two questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import penstock
from penstock.spark import flow, topic
from penstock.spark.pipeline.flows import BoundFlow
from penstock.spark.pipeline.progress import RunningFlow

ROWS = 300


class Busy:
    """A query of which some batches have ended, and one more does just after its newest progress was asked for."""

    def __init__(self, ended: int) -> None:
        self.recentProgress: list[dict[str, Any]] = [self._ended(batch) for batch in range(ended)]
        self._asked = False

    @property
    def lastProgress(self) -> dict[str, Any]:
        newest = self.recentProgress[-1]
        if not self._asked:
            self._asked = True
            self.recentProgress.append(self._ended(len(self.recentProgress)))
        return newest

    def _ended(self, batch: int) -> dict[str, Any]:
        return {
            "timestamp": f"2026-01-01T00:00:0{batch}.000Z",
            "batchId": batch,
            "sink": {},
            "sources": [{"numInputRows": ROWS, "endOffset": "{}"}],
            "durationMs": {"addBatch": 1, "triggerExecution": 5},
        }


@pytest.mark.parametrize("ended", [1, 3], ids=["one at a time", "several before the first look"])
def test_a_batch_that_ends_between_two_questions_is_counted_once(tmp_path: Path, ended: int) -> None:
    penstock.open(tmp_path / "shop.db").close()

    @flow(source=topic("orders"), target=topic("copies"))
    def copy(orders: DataFrame) -> DataFrame:
        return orders

    running = RunningFlow(BoundFlow(copy, "shop", f"sqlite:{tmp_path / 'shop.db'}"), "shop", "once")
    running.started(Busy(ended))  # type: ignore[arg-type]
    for _ in range(3):
        running.refresh()
    assert (running.status.rows, running.status.batch) == ((ended + 1) * ROWS, ended)
