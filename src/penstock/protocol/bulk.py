"""Events by the block over the wire, for programs that read or write very many: Spark's tasks."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.errors import PositionTrimmed
from penstock.protocol.operation import BLOCKS, Operation
from penstock.protocol.topics import After, Count

JOURNAL_HEADER = "X-Penstock-Journal"
"""On an answer of blocks: the id of the journal they are from."""
REACHED_HEADER = "X-Penstock-Reached"
"""On an answer of blocks: the position they reach; ask again with after=… set to it."""
MOST_IDS = 10_000
"""Ids that may be asked about at once."""


class EndsQuery(msgspec.Struct, omit_defaults=True):
    topic: Annotated[list[str], Meta(description="a topic; may be given several times; without, all of them")] = []


class TopicEnds(msgspec.Struct):
    """Through which position a topic's events were removed, and the highest position ever assigned."""

    trimmed: int
    latest: int


class EndsDocument(msgspec.Struct):
    """The ends of the topics that are there, in one state of the journal, and the journal's id."""

    journal: str
    ends: dict[str, TopicEnds]


class CutsQuery(msgspec.Struct, omit_defaults=True):
    after: After = 0
    through: Annotated[Count, Meta(description="the last position wanted")] = 0
    pieces: Annotated[int, Meta(ge=0, le=100_000, description="how many pieces are wanted; 0: only the size")] = 0
    exactly: Annotated[bool, Meta(description="cut inside blocks too, to have as many")] = False


class CutsDocument(msgspec.Struct):
    """About how many bytes a range has, and the bounds of pieces of about equal size."""

    size: int
    bounds: list[int]


class BlocksQuery(msgspec.Struct, omit_defaults=True):
    after: After = 0
    through: Annotated[Count, Meta(description="the last position wanted")] = 0
    strict: Annotated[bool, Meta(description="refuse when some of the events were removed; false: send the rest")] = (
        True
    )


class Correlations(msgspec.Struct):
    """By event id: its correlation id, null where it has none. Ids that no event has are left out."""

    correlations: dict[str, str | None]


READ_ENDS = Operation(
    "read_ends", "GET", "/ends", "Where topics begin and end", role="read", query=EndsQuery, answer=EndsDocument
)
READ_CUTS = Operation(
    "read_cuts",
    "GET",
    "/topics/{topic}/cuts",
    "Where a range of positions is best cut for several readers",
    role="read",
    query=CutsQuery,
    answer=CutsDocument,
)
READ_BLOCKS = Operation(
    "read_blocks",
    "GET",
    "/topics/{topic}/blocks",
    "Stored blocks as they are, some MiB at a time; with `Accept-Encoding: gzip` compressed",
    role="read",
    query=BlocksQuery,
    answer=bytes,
    media=(BLOCKS,),
    errors=(PositionTrimmed,),
)
FIND_CORRELATIONS = Operation(
    "find_correlations",
    "POST",
    "/correlations",
    "The correlation ids of many events, by their ids",
    role="read",
    body=list[str],
    answer=Correlations,
)

OPERATIONS: tuple[Operation[Any], ...] = (READ_ENDS, READ_CUTS, READ_BLOCKS, FIND_CORRELATIONS)
