"""Overload, the short form: everything that was acknowledged is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from torture.overload import crowd, many


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file"])
def test_a_crowd_of_threads_and_many_topics_and_cursors_lose_nothing(tmp_path: Path, scheme: str) -> None:
    with penstock.open(f"{scheme}:{tmp_path / 'store'}", durability="process") as journal:
        assert crowd(journal, 200) == []
        assert many(journal, 300, 2000) == []
