"""Events by the block over the wire, for programs that read or write very many: Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.core.entity.states import FiledStates, StreamedState
from penstock.core.journal.blocks import Block, read_block
from penstock.core.journal.sealed.segments import FILE_EVENTS, LakeSummary, SealedFiles, SealReport
from penstock.core.names import TableFormat
from penstock.core.protocol.operation import BLOCKS, After, Count, Operation, declared_operations
from penstock.errors import Conflict, Corrupt, FenceActive, PositionTrimmed, QueueFull, UnknownTopic
from penstock.limits import MAX_KEY_BYTES

JOURNAL_HEADER = "X-Penstock-Journal"
"""The header, on an answer of blocks, with the id of their journal."""
REACHED_HEADER = "X-Penstock-Reached"
"""The header, on an answer of blocks, with the position that they reach; the next request has after=… this position."""
MOST_IDS = 10_000
"""The most ids of one request."""
MOST_RANGES = 10_000
"""The most ranges of one request for sizes."""
MOST_STATES = 10_000
"""The most states of one request."""


class TopicsQuery(msgspec.Struct, omit_defaults=True):
    topic: Annotated[list[str], Meta(description="a topic; may be given several times; without, all of them")] = []


class TopicEnds(msgspec.Struct):
    """The position through which a topic's events were removed, and the highest position ever assigned."""

    trimmed: int
    latest: int
    began: int
    """Positions up to this position belonged to dropped topics of this name."""
    whole: int
    """The position after which every position has an event."""


class EndsDocument(msgspec.Struct):
    """The ends of the existing topics, in one state of the journal, and the journal's id."""

    journal: str
    ends: dict[str, TopicEnds]


class CutsQuery(msgspec.Struct, omit_defaults=True):
    after: After = 0
    through: Annotated[Count, Meta(description="the last position wanted")] = 0
    pieces: Annotated[int, Meta(ge=1, le=100_000, description="how many pieces are wanted")] = 1
    exactly: Annotated[bool, Meta(description="cut inside blocks too, to have as many")] = False


class RangeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The events of a topic after a position and through another."""

    topic: str
    after: After
    through: Annotated[Count, Meta(description="the last position wanted")]


class BlocksQuery(msgspec.Struct, omit_defaults=True):
    after: After = 0
    through: Annotated[Count, Meta(description="the last position wanted")] = 0
    strict: Annotated[bool, Meta(description="refuse when some of the events were removed; false: send the rest")] = (
        True
    )


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The known properties of wanted events: the possible values of fields."""

    keys: tuple[str, ...] | None = None
    key_prefix: str | None = None
    kinds: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None
    tags: Annotated[tuple[str, ...] | None, Meta(description="all of them")] = None
    ids: tuple[str, ...] | None = None
    correlations: tuple[str, ...] | None = None
    seqs: Annotated[tuple[int, ...] | None, Meta(description="positions, ascending")] = None
    occurred: Annotated[tuple[int, int] | None, Meta(description="from a time through another, in milliseconds")] = None


class SpansRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A search for events after a position and through another position."""

    wanted: Wanted
    through: Annotated[Count, Meta(description="the last position wanted")]
    after: After = 0


class SpansDocument(msgspec.Struct, omit_defaults=True):
    """The spans that may have wanted events: after the first position of each pair, and through the second.

    `found` holds events that were found already, as stored blocks in the form of `read_blocks`.
    """

    spans: list[tuple[int, int]]
    found: bytes = b""


class SealedQuery(msgspec.Struct, omit_defaults=True):
    after: After = 0
    through: Annotated[Count, Meta(description="the last position wanted")] = 0
    columns: Annotated[bool, Meta(description="name the typed columns, which takes a look into each file")] = False


class StageQuery(msgspec.Struct, omit_defaults=True):
    job: Annotated[str, Meta(max_length=200, description="what the batch belongs to, for dropping it")] = ""


class ObjectRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An object with a piece: its place and its size in bytes."""

    area: Annotated[str, Meta(description="one of those that the journal's description lists as `staging`")]
    path: Annotated[str, Meta(max_length=1_000, description="the object's, inside the area")]
    size: Annotated[int, Meta(ge=1)]


class StagedDocument(msgspec.Struct):
    """The result of staging."""

    events: int
    size: int


class FilesRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A request for a place to write files for a topic."""

    lake: str | None = None
    """The wanted place of the files; default: the topic's lake."""
    columns: str = ""
    """The typed columns of the files, unless the lake has its own columns."""


class FilesDocument(msgspec.Struct):
    """The place of files that become events of a topic."""

    lake: str = ""
    """Empty: the topic takes only blocks."""
    columns: str = ""


class CommitRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The batches that are published together: batches in order. A mark and its version make a repeat harmless.

    `journal` is the id of the journal they were made for; `queue` says that they are pushed to it. A repeat with
    another `content`, a hash of all rows, is refused. `files` is a `BulkSegments` in msgpack: files that become events.
    """

    journal: str
    batches: list[str]
    mark: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)] | None = None
    version: Count = 0
    queue: str | None = None
    content: Annotated[int, Meta(ge=0, lt=1 << 53)] | None = None
    files: bytes = b""


class DropQuery(msgspec.Struct, omit_defaults=True):
    job: Annotated[str, Meta(description="drop everything that was staged with it, by this token")] = ""


class SealRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The events to seal, and the place to seal them to, as in `seal`.

    Without `through`, all events except the newest block.
    """

    lake: Annotated[str, Meta(description="one of those that the journal's description lists as `lakes`")]
    through: Count | None = None
    format: TableFormat | None = None
    columns: str | None = None
    catalog: Annotated[str | None, Meta(description="the name of an Iceberg catalog that the server knows")] = None
    partition_by: str | None = None
    compact: bool = False
    file_events: Annotated[int, Meta(ge=1, le=FILE_EVENTS)] = FILE_EVENTS


ProjectionName = Annotated[str, Meta(min_length=1, max_length=200, description="the projection's name")]
ProjectionVersion = Annotated[int, Meta(ge=1, lt=1 << 31)]
QueryName = Annotated[str, Meta(min_length=1, max_length=100, description="the id of the streaming query")]


class StatesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request for the states of entities, of a projection in a streaming query."""

    name: ProjectionName
    version: ProjectionVersion
    query: QueryName
    keys: Annotated[list[str], Meta(max_length=MOST_STATES)]


class StatesDocument(msgspec.Struct):
    """The states after the query's last batch; entities without a state are left out.

    `found` is the number of keys, from the first on, that this answer covers; request the other keys again. `filed` is
    the version of the projection of these states.
    """

    journal: str
    found: int
    states: list[StreamedState]
    filed: FiledStates | None = None


class SaveStatesRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """States to store.

    `journal` is the journal that they were loaded from. With `whole`, they were folded from the whole topic, and are
    also the projection's own states.
    """

    journal: str
    name: ProjectionName
    version: ProjectionVersion
    query: QueryName
    states: Annotated[list[StreamedState], Meta(max_length=MOST_STATES)]
    whole: bool = False


class FoldedTopic(msgspec.Struct):
    """The part of a topic that a rebuild folds, and the topic's journal; send `journal` and `compacted` back with
    the states. The part is empty for a missing topic.
    """

    journal: str
    through: int
    events: int
    compacted: int


class RebuiltStatesRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Some of the states that were folded from a whole topic; the empty key is the state of all events.

    `begin` first removes every saved state of the projection, of any version.
    """

    journal: str
    compacted: Count
    name: ProjectionName
    version: ProjectionVersion
    states: Annotated[list[StreamedState], Meta(max_length=MOST_STATES)]
    begin: bool = False


READ_ENDS = Operation("GET /ends", "read", TopicsQuery, EndsDocument, "Where topics begin and end")
READ_SIZES = Operation(
    "POST /sizes -> sizes",
    "read",
    list[RangeRequest],
    list[int],
    "About how many bytes ranges of positions have, in their order; 0 where there is nothing",
)
READ_CUTS = Operation(
    "GET /topics/{topic}/cuts -> bounds",
    "read",
    CutsQuery,
    list[int],
    "Where a range of positions is best cut for several readers",
)
READ_SPANS = Operation(
    "POST /topics/{topic}/spans",
    "read",
    SpansRequest,
    SpansDocument,
    "Where in a range of positions wanted events may be",
)
READ_BLOCKS = Operation(
    "GET /topics/{topic}/blocks",
    "read",
    BlocksQuery,
    bytes,
    "Stored blocks as they are, some MiB at a time; with `Accept-Encoding: gzip` compressed",
    media=(BLOCKS,),
    errors=(PositionTrimmed,),
)
FIND_CORRELATIONS = Operation(
    "POST /correlations -> correlations",
    "read",
    list[str],
    dict[str, str | None],
    "The correlation ids of many events, by their ids",
)
STAGE_BLOCKS = Operation(
    "PUT /staging/{batch}/{piece}",
    "write",
    bytes,
    StagedDocument,
    "Keeps blocks of new events until a commit publishes them; a piece that is sent again takes the place of the first",
    query=StageQuery,
    errors=(Conflict,),
)
STAGE_OBJECT = Operation(
    "POST /staging/{batch}/{piece}/object",
    "write",
    ObjectRequest,
    StagedDocument,
    "Fetches blocks of new events from an object store and keeps them until a commit publishes them",
    query=StageQuery,
    errors=(Conflict,),
)
PLAN_FILES = Operation(
    "POST /topics/{topic}/files",
    "write",
    FilesRequest,
    FilesDocument,
    "Where files go that become events of a topic with a commit that refers to them",
)
COMMIT_STAGED = Operation(
    "POST /commits -> committed",
    "write",
    CommitRequest,
    bool,
    "Publishes staged batches, all at once, in one transaction",
    errors=(Conflict, FenceActive, QueueFull),
)
DROP_STAGED = Operation(
    "DELETE /staging -> bytes", "write", DropQuery, int, "Drops what a job has staged and not published"
)
SEAL_TOPIC = Operation(
    "POST /topics/{topic}/seal",
    "write",
    SealRequest,
    SealReport,
    f"Moves settled history into a lake, at most {FILE_EVENTS:,} events; repeat the request while events are `left`",
)
LIST_SEALED = Operation(
    "GET /topics/{topic}/sealed -> sealed",
    "read",
    SealedQuery,
    list[SealedFiles],
    "The Parquet files with the sealed events of a range of positions, for programs that read the lake themselves",
)
LIST_LAKES = Operation("GET /lakes -> lakes", "read", TopicsQuery, list[LakeSummary], "The lakes of sealed history")
FIND_STATES = Operation(
    "POST /topics/{topic}/states/find",
    "read",
    StatesRequest,
    StatesDocument,
    "The states that a projected stream keeps between its batches, some MiB at a time",
)
SAVE_STATES = Operation(
    "POST /topics/{topic}/states -> saved",
    "admin",
    SaveStatesRequest,
    int,
    "Keeps states of a projected stream, all at once; newer ones that are there stay",
    errors=(PositionTrimmed, UnknownTopic),
)
FOLD_TOPIC = Operation(
    "GET /topics/{topic}/states",
    "admin",
    None,
    FoldedTopic,
    "The part of a topic that a rebuild folds, for callers that may save the states",
)
REPLACE_STATES = Operation(
    "PUT /topics/{topic}/states -> saved",
    "admin",
    RebuiltStatesRequest,
    int,
    "Saves the states of a rebuild, all at once, in place of all earlier states",
    errors=(PositionTrimmed, UnknownTopic),
)

OPERATIONS = declared_operations(globals())


# ── Blocks as one message: one after the other, each with its length (4 bytes, big-endian) before it ──
#
# The reader of a block checks its checksum, so that the sender need not.

_LENGTH = 4


def message_of(values: Iterable[bytes]) -> bytes:
    """Blocks as one message."""
    return b"".join(chain.from_iterable((len(value).to_bytes(_LENGTH), value) for value in values))


def values_of(message: bytes | memoryview) -> Iterator[memoryview]:
    """Yields the blocks in a message; ValueError when it ends in the middle of one."""
    view = memoryview(message)
    at = 0
    while at < len(view):
        start = at + _LENGTH
        at = start + int.from_bytes(view[at:start])
        if start > len(view) or at > len(view):
            raise ValueError(f"a message of {len(view)} bytes ends in the middle of a block")
        yield view[start:at]


def blocks_of(message: bytes, topic: str) -> list[Block]:
    """Returns the blocks in a message, opened; raises Corrupt for a damaged block."""
    try:
        return [read_block(value, topic) for value in values_of(message)]
    except ValueError as error:
        raise Corrupt(str(error), topic=topic) from error
