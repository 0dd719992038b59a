"""Sweeping what large batches leave: those that were never published, and blocks that no topic holds any more."""

from __future__ import annotations

from functools import partial

from penstock.engine.contract import Engine
from penstock.journal.bulk.staging import drop, forget_removed, is_needed, published_batches, staged_batches
from penstock.journal.commit.commit import Commit
from penstock.journal.commit.request import WriteRequest
from penstock.journal.commit.writer import Writer
from penstock.limits import STAGED_SECONDS


def sweep_staged(engine: Engine, writer: Writer) -> bool:
    """Removes staged batches that are old, and blocks whose events were removed; whether anything went."""
    oldest = writer.clock.now_ms() - int(STAGED_SECONDS * 1000)
    with engine.read() as snap:  # beside the writer: mostly there is nothing to do
        old = [batch for batch, record in staged_batches(snap) if record.begun_ms < oldest]
        published = [batch for batch, record in published_batches(snap) if not is_needed(snap, batch, record, oldest)]
    swept = False
    for batch in old:  # one commit each: no caller waits long behind it
        swept = bool(writer.run(WriteRequest(partial(_drop, batch), relaxed=True))) or swept
    for batch in published:
        while writer.run(WriteRequest(partial(_forget, batch, oldest), relaxed=True)):
            swept = True
    return swept


def _drop(batch: bytes, commit: Commit) -> int:
    return drop(commit, batch)


def _forget(batch: bytes, before_ms: int, commit: Commit) -> bool:
    return forget_removed(commit, batch, before_ms)
