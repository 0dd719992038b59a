"""The indexer lets others have the interpreter every few hundred rows: counted, because time depends on the machine."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

import penstock
from penstock import Draft
from penstock.journal.blocks import Block, Columns
from penstock.journal.index import runs as index_rows
from penstock.journal.index.runs import STEP_ROWS, Row, in_order, parts_of
from penstock.local.journal import LocalJournal


@pytest.mark.parametrize("sizes", [[], [0], [1], [5000], [700, 1, 0, 256, 257], [40] * 60])
def test_sorted_parts_are_merged_in_order_a_few_at_a_time(sizes: list[int]) -> None:
    chance = random.Random(3)
    rows: list[list[Row]] = [
        sorted((chance.randrange(2000).to_bytes(4) + n.to_bytes(4) + at.to_bytes(4),) for at in range(size))
        for n, size in enumerate(sizes)
    ]
    wanted = sorted(row for part in rows for row in part)
    parts = [pages for part in rows for pages in parts_of(part)]
    assert max((sum(map(len, pages)) for pages in parts), default=0) <= index_rows.SORT_ROWS
    windows = list(in_order(parts))
    assert [row for window in windows for row in window] == wanted
    assert max((len(window) for window in windows), default=0) <= 4 * STEP_ROWS + 32 * len(parts)


def test_building_and_merging_runs_pauses_after_every_few_hundred_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open("memory:") as journal:
        assert isinstance(journal, LocalJournal)
        topic = journal.topic("orders")
        since_pause, most = 0, 0
        columns_of = index_rows.columns_of

        def counted(block: Block, rows: Sequence[int], texts: dict[str, list[str | None]] | None = None) -> Columns:
            nonlocal since_pause, most
            since_pause += len(rows)
            most = max(most, since_pause)
            return columns_of(block, rows, texts)

        def pause() -> None:
            nonlocal since_pause
            since_pause = 0

        monkeypatch.setattr(index_rows, "columns_of", counted)
        monkeypatch.setattr(journal._core.indexer, "_breathe", pause)
        for _ in range(9):
            topic.append_many([Draft("e", number, key=f"k{number % 300}") for number in range(3000)])
            journal._core.indexer.index("orders", thorough=True)
        assert STEP_ROWS <= most <= 2 * STEP_ROWS
        assert len(list(topic.read(key="k7"))) == 90
