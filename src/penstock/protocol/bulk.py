"""Events by the block over the wire, for programs that read or write very many: Spark's tasks."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.errors import Conflict, FenceActive, PositionTrimmed, QueueFull
from penstock.limits import MAX_KEY_BYTES
from penstock.protocol.operation import BLOCKS, STAGED, Operation
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


class StageQuery(msgspec.Struct, omit_defaults=True):
    job: Annotated[str, Meta(max_length=200, description="what the batch belongs to, for dropping it")] = ""


class StagedDocument(msgspec.Struct):
    """What was staged."""

    events: int
    size: int


class CommitRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is published together: batches in order. A mark and its version make a repeat harmless.

    `journal` is the id of the journal they were made for; `queue` says that they are pushed to it.
    """

    journal: str
    batches: list[str]
    mark: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)] | None = None
    version: Count = 0
    queue: str | None = None


class CommitDocument(msgspec.Struct):
    """Whether this request published them; false: it was done before."""

    committed: bool


class DropQuery(msgspec.Struct, omit_defaults=True):
    job: Annotated[str, Meta(description="drop everything that was staged with it, by this token")] = ""


class Dropped(msgspec.Struct):
    """How many bytes were dropped."""

    bytes: int


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

STAGE_BLOCKS = Operation(
    "stage_blocks",
    "PUT",
    "/staging/{batch}/{piece}",
    "Keeps blocks of new events until a commit publishes them; a piece that is sent again takes the place of the first",
    role="write",
    query=StageQuery,
    body=bytes,
    takes=STAGED,
    answer=StagedDocument,
    errors=(Conflict,),
)
COMMIT_STAGED = Operation(
    "commit_staged",
    "POST",
    "/commits",
    "Publishes staged batches, all at once, in one transaction",
    role="write",
    body=CommitRequest,
    answer=CommitDocument,
    errors=(Conflict, FenceActive, QueueFull),
)
DROP_STAGED = Operation(
    "drop_staged",
    "DELETE",
    "/staging",
    "Drops what a job has staged and not published",
    role="write",
    query=DropQuery,
    answer=Dropped,
)

OPERATIONS: tuple[Operation[Any], ...] = (
    READ_ENDS,
    READ_CUTS,
    READ_BLOCKS,
    FIND_CORRELATIONS,
    STAGE_BLOCKS,
    COMMIT_STAGED,
    DROP_STAGED,
)
