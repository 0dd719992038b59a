"""Writing frames and streams: tasks stage their rows, the driver's commit publishes them at once.

A commit publishes its batch with a mark. A batch that runs again, because a process was killed before Spark could note
its success, finds its mark and changes nothing.

A task cuts its blocks into pieces of some MiB. A single small piece travels in the task's message. Otherwise each piece
is put where the commit finds it: into a folder beside the journal, into the journal's bucket, or to the server that
writes the journal. A repeated task stages twice; only pieces that a message names are published, the others are swept.
The message holds hashes of the pieces, which the commit compares.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby, islice
from typing import NamedTuple, Protocol
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.core.entity.gate import load_gates, names_in, with_installed
from penstock.core.journal.blocks import Wire, decode_pending, encode_wire
from penstock.core.journal.from_arrow import BLOCK_PAYLOAD, blocks
from penstock.core.journal.sealed.bulk import write_files
from penstock.core.journal.sealed.referring import BulkTarget, find_target
from penstock.core.journal.sealed.segments import BulkSegments, NewSegment, PlacedSegments
from penstock.core.journal.sealed.writing import LakeFolder
from penstock.errors import ConfigError, PenstockError, StorageError
from penstock.limits import MAX_KEY_BYTES, SEGMENT_BYTES
from penstock.spark.journals import check_same, journal_id, patiently, reading, writing
from penstock.spark.layout import OPTIONS, SinkLayout, typed_columns
from penstock.spark.options import JournalLocation, WriteOptions, write_options
from penstock.spark.sentences import in_sentences
from penstock.spark.startup.settings import MASTER_VARIABLE
from penstock.spark.versions import ArrowStreamWriter
from penstock.transfer.objects import StagingArea, area_of, decode_piece, encode_piece, own_lake
from penstock.transfer.publishing import Blocks, publish_blocks, publish_parts


@dataclass
class TaskShare(WriterCommitMessage):
    """The staged rows of a task for a job, which is a query or a batch write."""

    job: str


class WriteTarget(Protocol):
    """The target that rows are written to."""

    app: str | None
    """The application whose versions are written once: of a batch write, or the batches of a stream."""
    version: int | None

    def stage(self, batches: Iterator[pa.RecordBatch], job: str, number: int) -> TaskShare:
        """Keeps a task's rows until the commit; `number` is the micro-batch, 0 for a job that has only one."""
        ...

    def publish(self, shares: Sequence[TaskShare], by: tuple[str, str] | None, version: int) -> bool:
        """Makes rows visible, at once; False when `by`, an application or a query, has written the version before,
        and it is not known whether with the same rows."""
        ...

    def sweep(self, job: str, through: int | None = None) -> None:
        """Removes what a job has left, of batches up to a number."""
        ...


@in_sentences
class BatchWriter(DataSourceArrowWriter):
    """A batch writer, which writes a frame once; with txnAppId and txnVersion, once forever."""

    def __init__(self, target: WriteTarget) -> None:
        if (target.app is None) != (target.version is None):
            raise ConfigError("txnAppId and txnVersion go together: a name, and a number that only grows")
        self.target = target
        self.job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.target.stage(iterator, self.job, 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        target = self.target
        target.publish(_shares(messages), None if target.app is None else ("app", target.app), target.version or 0)
        target.sweep(self.job)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.target.sweep(self.job)


@in_sentences
class StreamWriter(ArrowStreamWriter):
    """A stream writer, which writes each batch once, also after kills."""

    def __init__(self, target: WriteTarget) -> None:
        if target.version is not None:
            raise ConfigError("txnVersion is for batch writes; the batches of a stream have numbers of their own")
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        if not query or batch is None:
            raise PenstockError("Spark did not tell the task which streaming query and batch it works for")
        return self.target.stage(iterator, query, int(batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        shares = _shares(messages)
        queries = {share.job for share in shares}
        if len(queries) > 1:
            raise PenstockError(f"one batch has the rows of several queries: {', '.join(queries)}")
        for query in queries:
            app = self.target.app
            if not self.target.publish(shares, ("query", query) if app is None else ("app", app), batchId):
                log.warning(
                    "batch %s of %s was written before, and its rows are not written again. That is right after a "
                    "kill. If this query has a copy of another one's checkpoint, it is taken for that one: give it a "
                    'new checkpoint, or a name of its own, option("txnAppId", …)',
                    *(batchId, f"query {query}" if app is None else f"application {app}"),
                )
            self.target.sweep(query, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        for query in {share.job for share in _shares(messages)}:
            self.target.sweep(query, batchId)


def check_appends(overwrite: bool, what: str) -> None:
    """Raises ConfigError when a write would replace existing events."""
    if overwrite:
        raise ConfigError(
            f'{what} only grows, and "Overwrite", which Spark names too, is refused: use mode("append"); for a stream '
            'outputMode("append"), or, for rows that change, '
            'foreachBatch(penstock.spark.into(…)) with outputMode("update")'
        )


def _shares(messages: Sequence[WriterCommitMessage | None]) -> list[TaskShare]:
    return [message for message in messages if isinstance(message, TaskShare)]


log = logging.getLogger("penstock.spark")

PIECE_BYTES = 4 << 20
"""Bytes of blocks that are put at a time, about."""
INLINE_BYTES = 128 << 10
"""Up to this size a task's blocks travel in its message: less than is worth two requests to a store."""
_AT_ONCE = 4
"""Pieces fetched, or shares taken in by a server, at a time."""


class _StagedPiece(NamedTuple):
    """A piece in an area: its path ("" at a server), its size and its hash."""

    path: str
    size: int
    hash: bytes


@dataclass
class StagedShare(TaskShare):
    """The staged rows of a task for a journal."""

    batch: str
    """The name of what it staged."""
    number: int = 0
    """The number of the micro-batch; 0 for a job that has only one."""
    events: int = 0
    keyed: bool = False
    """True if any event has a key."""
    content: int = 0
    """The sum of the hashes of a stream's rows: the same in whatever order they come, and however tasks share them."""
    carried: bytes = b""
    """Its only piece, when that is small."""
    pieces: list[_StagedPiece] = field(default_factory=list)
    """The others, in order."""
    segments: bytes = b""
    """Instead of blocks: the files it has written, encoded."""

    @property
    def size(self) -> int:
        """The staged bytes."""
        return len(self.carried) + sum(piece.size for piece in self.pieces)


_ASKING = frozenset({*OPTIONS, "tags", "cause", "causation_id", "correlation_id", "correlation"})
"""Columns whose rows are looked at one by one when they become events, or that are noted in an index: go as blocks."""
_encode_files = msgspec.msgpack.Encoder().encode
_decode_files = msgspec.msgpack.Decoder(list[NewSegment]).decode


def _beginning(events: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], int]:
    """Returns as many of the first events as make a worthwhile file, or all; and the bytes of their payloads."""
    first, size = [], 0
    for rows in events:
        first.append(rows)
        size += rows.column("payload").nbytes
        if size >= SEGMENT_BYTES:
            break
    return first, size


def _hash(staged: bytes) -> bytes:
    """Tells what a task has staged from everything else."""
    return hashlib.sha256(staged).digest()


def _pieces(blocks: Iterable[tuple[str, Wire]], share: StagedShare) -> Iterator[bytes]:
    """Yields the blocks, as many at a time as make one piece; what they hold is counted in the share."""
    piece: list[tuple[str, bytes]] = []
    size = 0
    for topic, wire in blocks:
        share.events += wire.count
        share.keyed = share.keyed or wire.key is not None
        piece.append((topic, encode_wire(wire)))
        size += len(piece[-1][1])
        if size >= PIECE_BYTES:
            yield encode_piece(piece)
            piece, size = [], 0
    if piece:
        yield encode_piece(piece)


_GATHER_ROWS = 65_536
_CONTENT = 1 << 53
"""A hash of rows is less."""


def content_of(events: pa.RecordBatch) -> int:
    """Returns the sum of hashes of rows: of their topics, kinds, keys and payloads."""
    names = [name for name in ("topic", "kind", "key", "payload") if name in events.schema.names]
    columns = [events.column(name).cast(pa.binary()) for name in names]
    said = pc.binary_join_element_wise(*columns, b"\0", null_handling="replace", null_replacement=b"\0")
    return sum(map(crc32, said.to_pylist()))


def gathered(
    batches: Iterator[pa.RecordBatch], layout: SinkLayout, counted: StagedShare | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields a task's rows as events; small record batches are gathered until they make a block worth its while.

    `counted` gets the rows' content.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        events = layout.events(batch)
        if counted is not None:
            counted.content = (counted.content + content_of(events)) % _CONTENT
        held.append(events)
        rows += events.num_rows
        size += events.column("payload").nbytes
        if size >= BLOCK_PAYLOAD or rows >= _GATHER_ROWS:
            yield _whole(held)
            held, rows, size = [], 0, 0
    if held:
        yield _whole(held)


def _whole(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)


def _is_reached(lake: str, topic: str, journal: str) -> bool:
    """Returns True if tasks can write where the journal's server seals to: a folder, which it has signed, is on one
    machine."""
    folder = "://" not in lake
    if folder and not os.environ.get(MASTER_VARIABLE, "local").startswith("local"):
        return False
    try:
        return LakeFolder(lake, topic).marker(journal) is not None or not folder
    except (OSError, PenstockError):
        return False


def mark_name(*parts: str) -> str:
    """Returns the name under which a journal remembers what a query or application has written."""
    name = ":".join(("spark", *parts))
    if len(name.encode()) > MAX_KEY_BYTES:
        name = f"spark:{hashlib.sha256(name.encode()).hexdigest()}"
    return name


def _planned(options: WriteOptions, area: StagingArea | None, *, again: bool) -> tuple[str | None, tuple[str, ...]]:
    """Returns the id of the journal that is written, None when there is none yet, and the gates that the commit itself
    asks.

    ConfigError when it cannot be written so. `again`: it may have been planned before, by another process.
    """
    location = options.location
    if location.server is None:
        return journal_id(location.url), _own_gates(options)
    from penstock.spark.served import check_may_write

    about = check_may_write(location.server, "this query", known=again)
    if location.writer is not None:
        check_same(location.server, about.id, journal_id(location.url))
    if area is not None and area.url not in about.staging:
        raise ConfigError(
            f"{location.server.url} fetches nothing from {area.url}, where this query would leave its blocks, but "
            f"from {', '.join(about.staging) or 'nowhere'}: start it with `penstock serve --staging {area.url}`"
        )
    unknown = next((name for name in options.gates if name not in names_in(about.gates)), None)
    if unknown is not None:
        raise ConfigError(
            f"{location.server.url} does not ask the gate {unknown}, and gates are asked where a journal is written: "
            f"start it with `penstock serve --gates {unknown}`"
        )
    return about.id, ()


def _own_gates(options: WriteOptions) -> tuple[str, ...]:
    """Returns the names of all gates that see rows of a write to a local journal; ConfigError when one cannot be
    had.
    """
    target = options.topic
    found = load_gates(with_installed(options.gates))
    for name in options.gates:
        if target is not None and target not in found[name].topics:
            raise ConfigError(f"the gate {name} sees {', '.join(found[name].topics)}, and this writes to {target}")
    return tuple(name for name, one in found.items() if target is None or target in one.topics)


class TopicTarget:
    """A topic or a queue that a frame is written to.

    Tasks leave their blocks in an area, or, without one, with the server that writes the journal.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, again: bool) -> None:
        """Raises ConfigError when the frame cannot be written. `again`: as for `_planned`."""
        options = write_options(given)
        self.compared = again and options.fail_on_other_rows
        """True if a batch that runs again must have the rows of the first time."""
        self.app, self.version = options.app, options.version
        self.location = location = options.location
        self.area = None
        if options.staging is not None or not location.served:
            self.area = area_of(location.url) if options.staging is None else StagingArea(options.staging)
        journal, gates = _planned(options, self.area, again=again)
        self.options = options = msgspec.structs.replace(options, journal=journal, gates=gates)
        self.layout = SinkLayout.of(schema, options)
        columns = typed_columns(schema)
        self.bulk = self._plan_bulk(columns)
        """The place to which large shares go as files; None: all go as blocks."""
        if self.bulk is not None and self.bulk.columns == columns:
            self.layout = msgspec.structs.replace(self.layout, typed=columns)

    def _plan_bulk(self, columns: str) -> BulkTarget | None:
        options, location = self.options, self.location
        if options.topic is None or options.queue or options.gates or self.layout.columns & _ASKING:
            return None
        if location.server is not None:
            return self._plan_served(location.server, columns)
        own = own_lake(location.url)
        if options.journal is None:  # the commit makes it
            lake = options.lake or own
            target = None if lake is None else BulkTarget(options.topic, lake, columns)
        else:
            known = reading(location.url, options.journal, newest=True).backend.core
            target, _ = find_target(known, options.topic, options.lake, columns, own)
        if target is not None and target.lake == own:
            try:
                LakeFolder(own, target.topic).marker(options.journal or "")
            except (OSError, PenstockError) as error:
                log.warning("tasks send blocks, since no files can be written beside the journal: %s", error)
                return None
        return target

    def _plan_served(self, server: JournalLocation, columns: str) -> BulkTarget | None:
        """Does the same at a server: where this process finds the folder that the server has signed."""
        from penstock.core.protocol.bulk import PLAN_FILES, FilesRequest
        from penstock.spark.served import ask_server

        options, topic = self.options, self.options.topic or ""
        found = ask_server(server, PLAN_FILES, topic, request=FilesRequest(options.lake, columns))
        if not found.lake:
            return None
        if not _is_reached(found.lake, topic, options.journal or ""):
            if options.lake is not None:
                raise ConfigError(
                    f"{server.url} seals to {found.lake}, which tasks of this query cannot write to: leave the option "
                    "lake out, or give them what they need (a folder is for tasks on the server's own machine)"
                )
            return None
        return BulkTarget(topic, found.lake, found.columns)

    # ── in a task ────────────────────────────────────────────────────────────────────────────────────────────────────
    def stage(self, batches: Iterator[pa.RecordBatch], job: str, number: int) -> StagedShare:
        share, waiting = StagedShare(job, uuid.uuid4().hex, number), b""
        events = gathered(batches, self.layout, share if self.compared else None)
        if self.bulk is not None:
            first, size = _beginning(events)
            events = chain(first, events)
            if size >= SEGMENT_BYTES:
                self._write_files(self.bulk, events, share)
                return share
        for piece in _pieces(chain.from_iterable(map(blocks, events)), share):
            if waiting:
                self._put(share, number, waiting)
            waiting = piece
        if share.pieces or len(waiting) > INLINE_BYTES:
            self._put(share, number, waiting)
        else:
            share.carried = waiting
        return share

    def _write_files(self, target: BulkTarget, events: Iterator[pa.RecordBatch], share: StagedShare) -> None:
        files = list(write_files(target, events, (share.job, share.number, share.batch)))
        share.events = sum(file.count for file in files)
        share.segments = _encode_files(files)

    def _put(self, share: StagedShare, number: int, body: bytes) -> None:
        at, path = len(share.pieces), ""
        if self.area is None:
            from penstock.spark.served import send_piece

            assert self.location.server is not None
            send_piece(self.location.server, share.job, share.batch, at, body)
        else:
            path = patiently(partial(self.area.put, share.job, number, share.batch, at, body))
        share.pieces.append(_StagedPiece(path, len(body), _hash(body)))

    # ── in the commit ────────────────────────────────────────────────────────────────────────────────────────────────
    def publish(self, shares: Sequence[TaskShare], by: tuple[str, str] | None, version: int) -> bool:
        options, events = self.options, [share for share in shares if isinstance(share, StagedShare)]
        if self.app is None and not any(share.events for share in events):
            return True
        mark = None if by is None else mark_name(*by, options.topic or "")
        queue = options.topic if options.queue else None
        staged = [share for share in events if share.size]
        content = sum(share.content for share in events) % _CONTENT if self.compared else None
        if self.location.server is None and any(share.segments for share in events):
            parts, origin = self._parts(events), (options.topic or "", events[0].job, events[0].number)
            with writing(self.location.url, options.journal) as opened:
                return publish_parts(opened, parts, origin, (mark, version, content)) or self.compared
        if self.location.server is None:
            blocks = self._blocks(staged, content)
            with writing(self.location.url, options.journal, options.gates) as opened:
                return publish_blocks(opened, blocks, mark, version, queue) or self.compared
        from penstock.core.protocol.bulk import CommitRequest
        from penstock.spark.served import commit_staged

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-stage") as pool:
            for taken in [pool.submit(self._send_share, share) for share in staged]:
                taken.result()
        batches = [share.batch for share in staged]
        request = CommitRequest(options.journal or "", batches, mark, version, queue, content, self._files(events))
        return commit_staged(self.location.server, request) or self.compared

    def _parts(self, shares: Sequence[StagedShare]) -> list[Blocks | list[NewSegment]]:
        """Files, and blocks between them, in order."""
        parts: list[Blocks | list[NewSegment]] = []
        for are_files, group in groupby(shares, key=lambda share: bool(share.segments)):
            some = list(group)
            if are_files:
                parts.append([file for share in some for file in _decode_files(share.segments)])
            elif any(share.size for share in some):
                parts.append(self._blocks([share for share in some if share.size], None))
        return parts

    def _files(self, shares: Sequence[StagedShare]) -> bytes:
        """Returns the files of shares, each with the number of blocks' batches before it, for a server."""
        placed, before = [], 0
        for share in shares:
            if share.segments:
                placed.append(PlacedSegments(_decode_files(share.segments), before))
            before += share.size > 0
        if not placed:
            return b""
        return _encode_files(BulkSegments(self.options.topic or "", shares[0].job, shares[0].number, placed))

    def _blocks(self, staged: Sequence[StagedShare], content: int | None) -> Blocks:
        return Blocks(
            self._wires(staged),
            sum(share.size for share in staged),
            sum(share.events for share in staged),
            any(share.keyed for share in staged),
            content,
        )

    def _send_share(self, share: StagedShare) -> None:
        """Gives the server what of a share it does not have yet."""
        from penstock.core.protocol.bulk import ObjectRequest
        from penstock.spark.served import send_piece

        assert self.location.server is not None
        send = partial(send_piece, self.location.server, share.job, share.batch)
        if share.carried:
            send(0, share.carried)
        if self.area is not None:
            for at, piece in enumerate(share.pieces):
                send(at, ObjectRequest(self.area.url, piece.path, piece.size))

    def _wires(self, shares: Sequence[StagedShare]) -> Iterator[tuple[str, Wire]]:
        """Yields the topics and blocks of shares, in order; the next pieces are fetched meanwhile."""
        wanted = (piece for share in shares for piece in (share.pieces or (share.carried,)))
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="penstock-fetch") as pool:
            coming = deque(pool.submit(self._fetch, piece) for piece in islice(wanted, _AT_ONCE))
            while coming:
                body = coming.popleft().result()
                coming.extend(pool.submit(self._fetch, piece) for piece in islice(wanted, 1))
                for topic, block in decode_piece(body):
                    yield topic, decode_pending(block)

    def _fetch(self, piece: _StagedPiece | bytes) -> bytes:
        if isinstance(piece, bytes):
            return piece
        assert self.area is not None
        found = patiently(partial(self.area.get, piece.path, piece.size))
        if _hash(found) != piece.hash:
            raise StorageError(f"what was staged as {piece.path} is not as its task left it: run the query again")
        return found

    def sweep(self, job: str, through: int | None = None) -> None:
        """Removes old staged rows. Rows that cannot be removed now go at a later sweep."""
        try:
            if self.area is not None:
                self.area.sweep(job, through)
            if self.location.server is not None:
                from penstock.spark.served import drop_staged

                drop_staged(self.location.server, job)
        except PenstockError as error:
            log.info("what was staged for %s is left for later: %s", job, error)
