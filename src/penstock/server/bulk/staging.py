"""What Spark's tasks write: blocks staged in the journal where no reader looks, and the commit that publishes them.

A request that is repeated does what the first one did: a piece takes the place of its first try, and a commit is known
by its mark and version, or by its batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from starlette.concurrency import run_in_threadpool

from penstock.engine.url import OBJECT_SCHEMES
from penstock.errors import ConfigError
from penstock.journal.bulk import PreparedPiece, drop_job, staged_batches
from penstock.journal.checking import checked_wire
from penstock.journal.commit import Commit
from penstock.local.journal import LocalJournal
from penstock.names import check_name, shown_url
from penstock.protocol import bulk as operations
from penstock.protocol.bulk import (
    CommitDocument,
    CommitRequest,
    Dropped,
    DropQuery,
    ObjectRequest,
    StagedDocument,
    StageQuery,
)
from penstock.server.api.binding import Call, serves
from penstock.server.problems import Refused
from penstock.transfer.objects import StagingArea, check_area, decode_piece, own_area
from penstock.transfer.publishing import BulkCommit, publish_staged, stage_step

_MOST_PIECES = 1_000_000


@serves(operations.STAGE_BLOCKS, raw=True)
def stage_blocks(call: Call[StageQuery, bytes]) -> StagedDocument:
    _check_room(call, len(call.body))
    return _stage(call, call.body)


@serves(operations.STAGE_OBJECT)
async def stage_object(call: Call[StageQuery, ObjectRequest]) -> StagedDocument:
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


def _stage_object(call: Call[StageQuery, ObjectRequest]) -> StagedDocument:
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
    """The places from which a server fetches what was staged: its journal's own, if that is in a store, and others."""
    areas: dict[str, StagingArea] = {}
    engine = journal._engine
    if engine.scheme in OBJECT_SCHEMES and not engine.read_only:
        from penstock.engine.slatedb.engine import SlatedbEngine

        assert isinstance(engine, SlatedbEngine)
        own = own_area(f"{engine.scheme}:{engine.location}")
        assert own is not None
        areas[own] = StagingArea(own, engine.options.store)
    for url in urls:
        areas.setdefault(check_area(url), StagingArea(url))
    return areas


def _check_room(call: Call[StageQuery, object], size: int) -> None:
    """Refused when the token has staged too much that was not committed."""
    owner, most = call.service.access.identity(call.request), call.service.limits.max_staged
    with call.service.journal._engine.read() as snap:
        held = sum(record.size for _, record in staged_batches(snap) if record.owner == owner)
    if held + size > most:
        raise Refused(
            507,
            "StagingFull",
            f"this token has staged {held:,} bytes that were not committed, of {most:,} at the "
            "most: commit or drop them, or let the server allow more (--max-staged)",
        )


def _stage(call: Call[StageQuery, object], body: bytes) -> StagedDocument:
    batch, piece = batch_of(call.name("batch")), _piece(call.name("piece"))
    access, pieces = call.service.access, list(decode_piece(body))
    for topic, _ in pieces:
        access.check_append(topic)
    made = PreparedPiece((topic, checked_wire(topic, block)) for topic, block in pieces)
    owner = access.identity(call.request)
    stage_step(call.service.journal, batch, piece, made, owner, call.query.job)
    return StagedDocument(sum(block.count for block in made.blocks), sum(block.size for block in made.blocks))


@serves(operations.COMMIT_STAGED)
def commit_staged(call: Call[None, CommitRequest]) -> CommitDocument:
    request, journal = call.body, call.service.journal
    if request.journal != journal.id:
        raise ConfigError(
            "another journal is served here than where this write was planned: nothing of it was committed"
        )
    if request.queue is not None:
        check_name(request.queue, "queue")
    wanted = BulkCommit([batch_of(batch) for batch in request.batches], request.mark, request.version, request.queue)
    return CommitDocument(publish_staged(journal, wanted))


@serves(operations.DROP_STAGED)
def drop_staged(call: Call[DropQuery, None]) -> Dropped:
    if not call.query.job:
        raise ConfigError("say what to drop: /staging?job=…")
    owner = call.service.access.identity(call.request)
    return Dropped(call.service.journal._core.run(partial(_drop, call.query.job, owner)))


def _drop(job: str, owner: str, commit: Commit) -> int:
    return drop_job(commit, job, owner)


def batch_of(text: str) -> bytes:
    """A batch's name: 32 hexadecimal digits."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise ConfigError(f"a batch is named by 32 hexadecimal digits, not {text[:40]!r}")
    return found


def _piece(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:10]) >= _MOST_PIECES or len(text) > 10:
        raise ConfigError(f"a piece is a number below {_MOST_PIECES:,}, not {text[:40]!r}")
    return int(text)
