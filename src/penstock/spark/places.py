"""Positions, ids and recording times of events in files that bulk writes made, as Spark's expressions.

Such a file does not hold these values: they follow from the row's index and from the journal's record of the file. A
query may read ten thousand files, and each row needs the values of its own file: the file's number comes from a perfect
hash of its name, and the values come from arrays. So there is no join, and a query without these columns pays nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from penstock.core.events import parse_id
from penstock.core.journal.sealed.segments import SealedFiles
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

_NAME = "_metadata.file_name"
_ROW = "_metadata.row_index"
_MOST_TRIES = 100_000


def places(files: Sequence[SealedFiles]) -> dict[str, Column]:
    """Returns the columns that say the places of rows of some files, each of one segment."""
    from pyspark.sql import functions as F

    table = perfect_hash([one.paths[0].rpartition("/")[2] for one in files])
    by_slot = dict(zip(table.slots, files, strict=True))
    found = [by_slot.get(slot, files[0]) for slot in range(table.size)]
    ids = [parse_id(one.base_id) or 0 for one in found]
    low = [number & 0xFFFF_FFFF_FFFF_FFFF for number in ids]
    name, row = F.col(_NAME).cast("string"), F.col(_ROW)
    first, second = F.crc32(name.cast("binary")), F.crc32(F.reverse(name).cast("binary"))
    shift = _at(table.shifts, F.pmod(first, F.lit(len(table.shifts))))
    slot = F.pmod(first + shift * second, F.lit(table.size))
    digits = F.lower(F.hex(_at([number - (1 << 64) if number >> 63 else number for number in low], slot) + row))
    recorded = F.timestamp_millis(_at([one.recorded_ms for one in found], slot))
    begins = F.element_at(F.split(F.lit(",".join(one.base_id[:18] for one in found)), ","), slot.cast("int") + 1)
    return {
        "seq": _at([one.first for one in found], slot) + row,
        "id": F.concat(begins, F.lit("-"), F.substring(digits, 1, 4), F.lit("-"), F.substring(digits, 5, 12)),
        "recorded_at": recorded,
        "occurred_at": F.coalesce(F.col("occurred_at"), recorded),
    }


def _at(numbers: Sequence[int], index: Column) -> Column:
    """Returns the element of some numbers, which the plan has as one literal."""
    from pyspark.sql import functions as F

    return F.element_at(F.split(F.lit(",".join(map(str, numbers))), ",").cast("array<bigint>"), index.cast("int") + 1)


class PerfectHash(NamedTuple):
    """Different slots for some names: the CRC-32 of a name, plus that of its reverse times a shift of its bucket."""

    size: int
    shifts: list[int]
    """By bucket: the remainder of the name's CRC-32."""
    slots: list[int]
    """Those of the names, in their order."""


def perfect_hash(names: Sequence[str]) -> PerfectHash:
    """Returns a hash that gives each of some different names a slot of its own."""
    hashes = [(crc32(name.encode()), crc32(name[::-1].encode())) for name in names]
    if len(set(hashes)) < len(names):
        raise ConfigError("two files of sealed history have one name: read the topic with the source penstock")
    size, buckets = len(names) * 5 // 4 | 1, max(1, len(names) // 3)
    members: dict[int, list[int]] = defaultdict(list)
    for at, (first, _) in enumerate(hashes):
        members[first % buckets].append(at)
    while True:
        shifts, slots, taken = [0] * buckets, [0] * len(names), bytearray(size)
        for bucket in sorted(members, key=lambda one: -len(members[one])):
            for shift in range(min(size, _MOST_TRIES)):
                wanted = [(hashes[at][0] + shift * hashes[at][1]) % size for at in members[bucket]]
                if len(set(wanted)) == len(wanted) and not any(taken[slot] for slot in wanted):
                    break
            else:
                break
            shifts[bucket] = shift
            for at, slot in zip(members[bucket], wanted, strict=True):
                slots[at], taken[slot] = slot, 1
        else:
            return PerfectHash(size, shifts, slots)
        size += 2
