"""Appending whole blocks: for events that arrive as columns and have no need to be looked at one by one.

The maker of the blocks (a Spark task, in another process) leaves positions, times and ids open; they are filled in
here, when the events' place is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from penstock.journal.commit.catalog import Head
from penstock.journal.commit.checked import topic_is_full
from penstock.journal.commit.commit import Commit, next_id
from penstock.journal.storage import keys
from penstock.journal.storage.apart import stamp
from penstock.journal.storage.block import read_block, seal
from penstock.journal.storage.leaves import keep_hashes, leaves_of
from penstock.journal.storage.wire import Wire
from penstock.limits import MAX_POSITION

_LARGE = 256 << 10
"""Bytes of a block from which on it is worth a thread to make the next ones meanwhile."""
_BLOCKS_AHEAD = 3


def append_wires(commit: Commit, name: str, wires: Iterable[Wire]) -> range:
    """Adds blocks at the end of a topic; returns the positions their events have got."""
    commit.check_barrier(name)
    commit.flush()
    head = commit.ensure(name)
    recorded = max(commit.now_ms, head.recorded_ms)
    first = seq = head.latest + 1
    number = next_id(head.last_id, recorded)
    for count, value in _ahead(_values(wires, seq, recorded, number)):
        if seq + count - 1 > MAX_POSITION:
            raise topic_is_full(name, seq - 1, count)
        commit.tx.put(keys.block_key(head.number, seq), value)
        if head.settings.verified:
            block = read_block(value, name)
            keep_hashes(commit.tx, head.number, block.seqs, leaves_of(block))
        seq += count
        number += count
    if seq > first:
        commit._new_heads[name] = Head(name, head.number, head.settings, seq - 1, recorded, number - 1)
        commit.touched[name] = commit.touched.get(name, 0) + seq - first
    return range(first, seq)


def _values(wires: Iterable[Wire], seq: int, recorded: int, number: int) -> Iterator[tuple[int, bytes]]:
    """Blocks in their stored form, with how many events each has."""
    for wire in wires:
        stamp(wire, seq, recorded, number)
        yield wire.count, seal(wire)
        seq += wire.count
        number += wire.count


def _ahead(values: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The same, made in another thread while the store takes in the ones before, when they are large."""
    for count, value in values:
        yield count, value
        if len(value) >= _LARGE:
            break
    else:
        return  # most batches of a stream: a thread would cost them more than their blocks, while others wait
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, thread_name_prefix="penstock-bulk") as pool:
        coming = deque(pool.submit(next, values, None) for _ in range(_BLOCKS_AHEAD))
        while (made := coming.popleft().result()) is not None:
            coming.append(pool.submit(next, values, None))
            yield made
