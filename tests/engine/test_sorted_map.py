"""The map under the engines that keep their keys in memory."""

from __future__ import annotations

from penstock.core.engine.sorted_map import CHUNK, SortedMap


def test_a_map_that_is_only_read_remembers_no_snapshot_that_was_closed() -> None:
    of: SortedMap[int] = SortedMap()
    of.put(b"a", 1)
    with of.snapshot() as kept:
        for _ in range(10 * CHUNK):
            with of.snapshot() as one:
                assert one.get(b"a") == 1
        assert len(of._open) + len(of._released) <= 2 * CHUNK + 2
        of.put(b"a", 2)
        assert kept.get(b"a") == 1 and of.get(b"a") == 2
