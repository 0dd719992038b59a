"""The indexer lets others have the interpreter every few thousand rows: counted, because times depend on machines."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

import penstock
from penstock import Draft
from penstock.core.journal.blocks import Block, Columns
from penstock.core.journal.index import runs
from penstock.core.journal.index.runs import IndexRows, merged, prefix, sorted_sources, term_rows, text_begin
from penstock.core.local.backend import LocalJournal


@pytest.mark.parametrize("sizes", [[], [0], [1], [5000], [700, 1, 0, 256, 257], [40] * 60, [1] * 300])
def test_sorted_sources_are_merged_in_order_a_few_at_a_time(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "STEP_ROWS", 256)
    monkeypatch.setattr(runs, "WINDOW_ROWS", 512)
    chance = random.Random(3)
    rows: list[IndexRows] = []
    last = 0
    for size in sizes:
        rows.append(term_rows([str(chance.randrange(500)) for _ in range(size)], range(last + 1, last + size + 1), 0))
        last += size
    wanted = sorted((term, seq) for part in rows for term, seq in zip(part.terms, part.seqs, strict=True))
    windows = list(merged(sorted_sources(rows)))
    assert [one for window in windows for one in zip(window.terms, window.seqs, strict=True)] == wanted
    assert max(map(len, windows), default=0) <= 4 * 512


def test_rows_of_one_term_that_fill_many_chunks_of_many_sources_stay_in_order() -> None:
    sources = [
        iter([term_rows(["a"] * 3, [9 * n + 3 * m + k for k in range(3)], -1) for m in range(3)]) for n in range(9)
    ]
    assert [seq for window in merged(sources) for seq in window.seqs] == list(range(81))


def test_marks_are_in_the_order_of_their_terms_and_none_begins_another() -> None:
    terms = ["a", "a\0", "a\0\0", "a\0b", "a\x01", "ab", "b", "é", "\uffff", "\U0001f600"]
    assert terms == sorted(terms)
    marks = [prefix(term) for term in terms]
    assert marks == sorted(marks)
    for one in terms:
        assert [two for two in terms if prefix(two).startswith(prefix(one))] == [one]
        for two in terms:
            assert prefix(two).startswith(text_begin(one)) == two.startswith(one)
            assert not prefix(two).startswith(text_begin(one)) or prefix(two) < text_begin(one) + b"\xff"


def test_building_and_merging_runs_pauses_after_every_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "STEP_ROWS", 256)
    monkeypatch.setattr(runs, "WINDOW_ROWS", 512)
    with penstock.open("memory:") as journal:
        assert isinstance(journal, LocalJournal)
        topic = journal.topic("orders")
        since_pause, most = 0, 0
        columns_of = runs.columns_of

        def counted(block: Block, rows: Sequence[int], texts: dict[str, list[str | None]] | None = None) -> Columns:
            nonlocal since_pause, most
            since_pause += len(rows)
            most = max(most, since_pause)
            return columns_of(block, rows, texts)

        def pause() -> None:
            nonlocal since_pause
            since_pause = 0

        monkeypatch.setattr(runs, "columns_of", counted)
        monkeypatch.setattr(journal._core.indexer, "_yield_to_others", pause)
        for _ in range(9):
            topic.append_many([Draft("e", number, key=f"k{number % 300}") for number in range(3000)])
            journal._core.indexer.index("orders", thorough=True)
        assert 256 <= most <= 512
        assert len(list(topic.read(key="k7"))) == 90
