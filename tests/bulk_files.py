"""Bulk writes as a Spark job does them, without Spark: tasks write files, one commit refers to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock import Journal
from penstock.core.journal.sealed.bulk import write_files
from penstock.core.journal.sealed.referring import append_segments, check_there, plan_bulk
from penstock.core.journal.sealed.segments import NewSegment
from penstock.core.local.backend import LocalJournal

Row = tuple[str, str | None, object]
"""A kind, a key and a payload."""


def local(journal: Journal) -> LocalJournal:
    assert isinstance(journal, LocalJournal)
    return journal


def written(
    journal: Journal, lake: Path, rows: Sequence[Row], *, job: str = "job", number: int = 0, attempt: str = "try"
) -> list[NewSegment]:
    """The files of one task, which nothing refers to yet."""
    core = local(journal).backend.core
    target = plan_bulk(core, "orders", str(lake))
    assert target is not None
    kinds, keys, payloads = zip(*rows, strict=True)
    given = {"kind": kinds, "key": keys, "payload": [json.dumps(payload) for payload in payloads]}
    columns = {name: pa.array(values, pa.string()) for name, values in given.items()}
    batch = pa.RecordBatch.from_pydict({"topic": pa.array(["orders"] * len(rows)), **columns})
    return list(write_files(target, [batch], (job, number, attempt), now_ms=core.clock.now_ms()))


def refer(journal: Journal, files: Sequence[NewSegment]) -> range:
    """Makes files the newest events; returns their positions."""
    check_there(files)
    return local(journal).backend.core.run(partial(_append, files))


def _append(files: Sequence[NewSegment], commit: object) -> range:
    return append_segments(commit, "orders", files)  # type: ignore[arg-type]


def bulk_append(journal: Journal, lake: Path, rows: Sequence[Row], job: str = "job") -> range:
    """Appends rows by reference."""
    return refer(journal, written(journal, lake, rows, job=job))
