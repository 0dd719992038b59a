"""No commit does work in proportion to the store: what must touch many rows goes in steps. Counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

import penstock
from growth.counting import Counter, _Counted
from growth.world import EACH, LARGE, SMALL, build, in_memory, small_parts
from penstock import Journal, ManualClock
from penstock.core.engine.memory import MemoryEngine
from penstock.core.journal import locating
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.journal.upkeep import by_key, dropping, retention, thinning
from penstock.core.queue import upkeep as queue_upkeep
from penstock.core.queue.operations import push, repair

ACTS: dict[str, Callable[[Journal], object]] = {
    "maintain": lambda journal: journal.maintain(),
    "configure": lambda journal: journal.topic("window").configure(dedup_window=30 * 86_400),
    "compact": lambda journal: journal.topic("compact").compact(journal.topic("compact").latest),
    "compact(force)": lambda journal: journal.topic("compact").compact(journal.topic("compact").latest, force=True),
    "compact(sealed)": lambda journal: journal.topic("rebuilt").compact(journal.topic("rebuilt").latest),
    "compact_keys": lambda journal: journal.topic("compact_keys").compact_keys(),
    "reindex": lambda journal: journal.topic("reindex").reindex(),
    "Queue.move": lambda journal: journal.queue("moved").move(journal.queue("jobs")),
    "Queue.redrive": lambda journal: journal.queue("lost").redrive(),
    "Queue.purge": lambda journal: journal.queue("waiting").purge(),
    "Queue.drop": lambda journal: journal.queue("waiting").drop(),
    "drop_topic": lambda journal: (journal.drop_topic("log", force=True), journal.maintain()),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_commit_asks_as_much_of_a_large_store(act: str, tmp_path: Path) -> None:
    small, large = [largest_commit(size, ACTS[act], tmp_path / str(size)) for size in (SMALL, LARGE)]
    assert 0 < large <= 3 * small + 32, f"{small} calls and rows in the small store, {large} in the large one"


def test_a_compaction_in_many_commits_reads_the_cursors_once() -> None:
    clock, counter = ManualClock(), Counter()
    with (
        small_parts(),
        patch.object(retention, "RETENTION_BLOCKS", 1),
        penstock.open(in_memory(), clock=clock) as journal,
    ):
        build(journal, LARGE, clock)
        log, alike = journal.topic("log"), journal.topic("compact")
        consumers = len(log.consumers())
        with counter.counting():
            without, _ = counter.cost(lambda: alike.compact(LARGE - EACH).removed)
            cost, removed = counter.cost(lambda: log.compact(LARGE - EACH).removed)
    assert removed == LARGE - EACH and consumers > 100
    assert cost.rows <= without.rows + consumers + 32


def largest_commit(size: int, act: Callable[[Journal], object], lake: Path) -> int:
    """The engine calls and rows of the commit that makes the most of them."""
    most = 0
    write = MemoryEngine.write

    class Noted(_Counted):
        def __exit__(self, *exc: object) -> object:
            nonlocal most
            most = max(most, self._counter.calls + self._counter.rows)
            return super().__exit__(*exc)

        def delete_range(self, start: bytes, stop: bytes) -> None:
            self._counter.rows += sum(1 for _ in self._tx.scan(start, stop))
            self._tx.delete_range(start, stop)

    def noted(engine: MemoryEngine, *, sync: bool = True) -> Noted:
        return Noted(write(engine, sync=sync), Counter())

    clock = ManualClock()
    with (
        small_parts(),
        patch.object(dropping, "_STEP_ROWS", 32),
        patch.object(retention, "RETENTION_BLOCKS", 8),
        patch.object(by_key, "RETENTION_BLOCKS", 8),
        patch.object(thinning, "RETENTION_BLOCKS", 8),
        patch.object(locating, "_STEP_ROWS", 16),
        patch.object(push, "FORGET_STEP", 32),
        patch.object(repair, "MOVE_STEP", 8),
        patch.object(queue_upkeep, "CLEAR_ROWS", 32),
        penstock.open(in_memory(), clock=clock) as journal,
    ):
        build(journal, size, clock)
        seal_topic(journal._core, "rebuilt", lake=str(lake), file_events=EACH * 16)
        with patch.object(MemoryEngine, "write", noted):
            act(journal)
    return most
