"""The blocks that Spark's tasks send and fetch in bulk: stored blocks, staged blocks, and history to seal."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from penstock.core.engine.contract import ObjectEngine
from penstock.core.journal.bulk import PreparedPiece, staged_batches
from penstock.core.journal.checking import checked_wire
from penstock.core.journal.reading import TopicView
from penstock.core.journal.sealed.segments import FILE_EVENTS, SealReport
from penstock.core.local.backend import LocalJournal
from penstock.core.local.bulk import stored_blocks
from penstock.core.names import check_name, shown_url
from penstock.core.protocol import bulk as wire
from penstock.core.protocol.operation import BLOCKS
from penstock.errors import ConfigError, PositionTrimmed, UnknownTopic
from penstock.server.api.binding import Call, RequestCaller
from penstock.server.limits import BLOCKS_BYTES
from penstock.server.service import HeldResponse, Refused, Service
from penstock.transfer.committing import batch_of, lake_of
from penstock.transfer.objects import StagingArea, check_area, decode_piece, own_area
from penstock.transfer.publishing import stage_step


# ── stored blocks ─────────────────────────────────────────────────────────────────────────────────────────────────────
async def read_blocks(call: Call[wire.BlocksQuery, None]) -> Response:
    """Returns some blocks, enough to be worth a request. A slow reader keeps no more than these blocks in memory."""
    service, packed = call.service, "gzip" in call.request.headers.get("accept-encoding", "")
    message, reached = await run_in_threadpool(_blocks, service, call.name("topic"), call.query)
    if packed:
        message = await run_in_threadpool(_gzipped, message)
    service.budget.check(len(message))
    answer = HeldResponse(service.budget, message, 200, BLOCKS)
    answer.headers[wire.JOURNAL_HEADER] = service.journal.id
    answer.headers[wire.REACHED_HEADER] = str(reached)
    if packed:
        answer.headers["Content-Encoding"] = "gzip"
    return answer


def _blocks(service: Service, topic: str, query: wire.BlocksQuery) -> tuple[bytes, int]:
    """Returns blocks as one message, and the position of the last event in them."""
    after, through = query.after, query.through
    values: list[bytes] = []
    size = 0
    with service.journal.backend.engine.read() as snap:
        view = TopicView.open(snap, check_name(topic))
        if view is None:
            raise UnknownTopic(f"there is no topic {topic!r}")
        trimmed = view.state().trimmed
        if query.strict and after < min(trimmed, through):
            raise PositionTrimmed(
                f"events {after + 1} to {min(trimmed, through)} of topic {topic!r} were removed; "
                f"the oldest stored is {trimmed + 1}",
                oldest=trimmed + 1,
            )
        for block in stored_blocks(view, after, through):
            values.append(block.value)
            size += len(block.value)
            if size >= BLOCKS_BYTES:
                return wire.message_of(values), min(block.last, through)
    return wire.message_of(values), max(after, through)


def _gzipped(message: bytes) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(message) + packer.flush()


# ── what Spark's tasks write: blocks staged where no reader looks, and the commit that publishes them ─────────────────
# A repeated request has the effect of the first request. A piece replaces its first attempt; a commit is recognised by
# its mark and version, or by its batches.
_MOST_PIECES = 1_000_000


def stage_blocks(call: Call[wire.StageQuery, bytes]) -> wire.StagedDocument:
    _check_room(call, len(call.body))
    return _stage(call, call.body)


async def stage_object(call: Call[wire.StageQuery, wire.ObjectRequest]) -> wire.StagedDocument:
    service, size = call.service, call.body.size
    if size > service.limits.max_body:
        raise Refused(
            413,
            "TooLarge",
            f"an object may have {service.limits.max_body:,} bytes at the most, not {size:,}: stage smaller pieces",
        )
    service.budget.hold(size)
    call.request.state.held += size
    return await run_in_threadpool(_stage_object, call)


def _stage_object(call: Call[wire.StageQuery, wire.ObjectRequest]) -> wire.StagedDocument:
    wanted = call.body
    area = call.service.areas.get(wanted.area)
    if area is None:
        raise ConfigError(
            f"this server fetches nothing from {shown_url(wanted.area)[:200]!r}, only from "
            f"{', '.join(map(shown_url, call.service.areas)) or 'nowhere'}: start it with --staging, or stage elsewhere"
        )
    _check_room(call, wanted.size)
    return _stage(call, area.get(wanted.path, wanted.size))


def staging_areas(journal: LocalJournal, urls: Iterable[str]) -> dict[str, StagingArea]:
    """Returns the places from which a server fetches staged blocks: its journal's own place, if the journal is in an
    object store, and other places.
    """
    areas: dict[str, StagingArea] = {}
    engine = journal.backend.engine
    if isinstance(engine, ObjectEngine) and not engine.read_only:
        own = own_area(f"{engine.scheme}:{engine.location}")
        assert own is not None
        areas[own] = StagingArea(own, engine.options.store)
    for url in urls:
        areas.setdefault(check_area(url), StagingArea(url))
    return areas


def _check_room(call: Call[wire.StageQuery, object], size: int) -> None:
    """Raises Refused when the token has staged too many bytes that were not committed."""
    owner, most = call.service.access.identity(call.request), call.service.limits.max_staged
    with call.service.journal.backend.engine.read() as snap:
        held = sum(record.size for _, record in staged_batches(snap) if record.owner == owner)
    if held + size > most:
        raise Refused(
            507,
            "StagingFull",
            f"this token has staged {held:,} bytes that were not committed, of {most:,} at the "
            "most: commit or drop them, or let the server allow more (--max-staged)",
        )


def _stage(call: Call[wire.StageQuery, object], body: bytes) -> wire.StagedDocument:
    batch, piece = batch_of(call.name("batch")), _piece(call.name("piece"))
    access, pieces = call.service.access, list(decode_piece(body))
    for topic, _ in pieces:
        access.check_append(topic)
    made = PreparedPiece((topic, checked_wire(topic, block)) for topic, block in pieces)
    owner = access.identity(call.request)
    stage_step(call.service.journal, batch, piece, made, owner, call.query.job)
    return wire.StagedDocument(sum(block.count for block in made.blocks), sum(block.size for block in made.blocks))


def _piece(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:10]) >= _MOST_PIECES or len(text) > 10:
        raise ConfigError(f"a piece is a number below {_MOST_PIECES:,}, not {text[:40]!r}")
    return int(text)


# ── sealing for a client: this process writes the files, step by step, into lakes it was started with ─────────────────
# A client that may write must not choose a place on the server's disk. So a lake is one of the lakes that the operator
# named, and a catalog is a name in the server's own configuration. A step works as `seal` does: when it was killed or
# is requested twice, the next step continues.
def lakes_by_name(urls: Iterable[str]) -> dict[str, str]:
    """Returns the lakes to which a server seals, by the names that clients use: the urls without options and
    credentials.
    """
    return {shown_url(lake): lake for lake in (_absolute_lake(url) for url in urls)}


def _absolute_lake(url: str) -> str:
    return url.rstrip("/") if "://" in url else os.path.abspath(url)  # noqa: PTH100


async def seal_topic(call: Call[None, wire.SealRequest]) -> SealReport:
    async with call.service.sealing:
        return await run_in_threadpool(_seal_step, call)


def _seal_step(call: Call[None, wire.SealRequest]) -> SealReport:
    from penstock.core.journal.sealed import sealing  # only servers that seal load pyarrow
    from penstock.core.journal.sealed.tables import TableRequest

    wanted = call.body
    lake = lake_of(RequestCaller(call), wanted.lake)
    if wanted.catalog is not None and "://" in wanted.catalog:
        raise ConfigError("a served journal is sealed into a catalog by its name in the server's ~/.pyiceberg.yaml")
    return sealing.seal_topic(
        call.service.journal.backend.core,
        call.name("topic"),
        lake=lake,
        through=wanted.through,
        file_events=wanted.file_events,
        table=TableRequest(wanted.format, wanted.columns, wanted.catalog, wanted.partition_by),
        compact=wanted.compact,
        most=FILE_EVENTS,
    )
