"""A journal behind a server: plans from a few small answers, blocks as they are stored, pieces that it is to keep.

Connections are kept per process. What is read may be asked for again, and what is written says by itself whether it was
done before: a piece takes the place of its first try, and a commit is known by its mark and version, or by its batches.
So a connection that breaks, and a server that is not there for a moment, are waited for rather than reported.

A task asks for the next blocks while it decodes the ones before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

from penstock.errors import ConfigError, PositionTrimmed, UnknownTopic
from penstock.journal.blocks import Block
from penstock.protocol.bulk import (
    COMMIT_STAGED,
    DROP_STAGED,
    FIND_CORRELATIONS,
    JOURNAL_HEADER,
    MOST_IDS,
    REACHED_HEADER,
    READ_BLOCKS,
    READ_CUTS,
    READ_ENDS,
    READ_SPANS,
    STAGE_BLOCKS,
    STAGE_OBJECT,
    BlocksQuery,
    CommitRequest,
    CutsDocument,
    CutsQuery,
    DropQuery,
    EndsDocument,
    ObjectRequest,
    SpansDocument,
    SpansRequest,
    StageQuery,
    TopicEnds,
    TopicsQuery,
    Wanted,
    blocks_of,
)
from penstock.protocol.operation import BLOCKS, ROLES, Role
from penstock.protocol.topics import (
    DESCRIBE_JOURNAL,
    FIND_POSITION,
    MOVE_CURSOR,
    READ_ACROSS,
    AcrossRequest,
    CursorChange,
    JournalDocument,
    PositionQuery,
)
from penstock.remote.client import Client
from penstock.spark.journals import JournalState, PlannedTopic, check_kept, dropped, patiently
from penstock.spark.options import JournalLocation

TIMEOUT = 60.0
"""Seconds for a server to accept a connection, and to answer."""
FIRST_PATIENCE = 10.0
"""Seconds for which a server is waited for that this process has not met yet: its address may be wrong."""
_KEPT = 8
"""Servers a worker process stays connected with."""

_kept: dict[tuple[int, JournalLocation], Client] = {}


def client_of(location: JournalLocation) -> Client:
    """The connections to a server; they are kept for the next task of this process, and never used by a child."""
    slot = (os.getpid(), location)
    client = _kept.get(slot)
    if client is None:
        for other in [other for other in _kept if other[0] != slot[0]]:
            del _kept[other]  # the parent's: not ours to close
        while len(_kept) >= _KEPT:
            _kept.pop(next(iter(_kept))).close()
        token = None if location.token is None else location.token.reveal()
        client = _kept[slot] = Client(location.url, token, TIMEOUT)
    return client


def describe(location: JournalLocation, *, known: bool = False) -> JournalDocument:
    """What is served at a place; `known`: a server was there when the work was planned."""
    return patiently(lambda: client_of(location).call(DESCRIBE_JOURNAL), None if known else FIRST_PATIENCE)


def check_may_write(
    location: JournalLocation, doing: str, *, role: Role = "write", known: bool = False
) -> JournalDocument:
    """What is served at a place; ConfigError when nothing can be written there with this token, or its role is less.

    `known`: a server was there when the work was planned, or may have been.
    """
    about = describe(location, known=known)
    if about.read_only:
        raise ConfigError(f"{location.url} serves its journal for reading only, and {doing} writes to it")
    if ROLES.index(about.role) < ROLES.index(role):
        raise ConfigError(
            f"{doing} writes to {location.url}, which needs a token with the role {role}; this one's role is "
            f"{about.role}"
        )
    return about


def check_same(location: JournalLocation, found: str, id: str | None) -> None:
    """ConfigError when a server's journal is another than the one that work was planned for."""
    if id is not None and found != id:
        raise ConfigError(
            f"there is another journal at {location.url} than where this query was planned: it was replaced, or "
            "the address leads to another server from here"
        )


# ── staging ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def send_piece(server: JournalLocation, job: str, batch: str, at: int, body: bytes | ObjectRequest) -> None:
    """Has a server keep a piece until the commit: this one, or one in an area that it fetches itself."""
    client, query = client_of(server), StageQuery(job)
    if isinstance(body, bytes):
        patiently(lambda: client.call(STAGE_BLOCKS, batch, str(at), query=query, body=body))
    else:
        patiently(lambda: client.call(STAGE_OBJECT, batch, str(at), query=query, body=body))


def commit_staged(server: JournalLocation, request: CommitRequest) -> bool:
    """Publishes what a server keeps, in one transaction of its own; False when that was done before."""
    return patiently(lambda: client_of(server).call(COMMIT_STAGED, body=request))


def drop_staged(server: JournalLocation, job: str) -> None:
    """Has a server forget what a job has staged and not published."""
    client_of(server).call(DROP_STAGED, query=DropQuery(job))


_MOST_NAMED = 100
"""Topics named in one request; of more, all ends are asked for."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def served_journal(location: JournalLocation, id: str | None) -> ServedJournal:
    """The journal at a server; one that was planned with is waited for, a new one must be there."""
    found = describe(location, known=id is not None).id
    check_same(location, found, id)
    return ServedJournal(location, found)


class ServedJournal:
    """A journal behind a server."""

    def __init__(self, location: JournalLocation, id: str) -> None:
        self.location = location
        self.id = id
        self._client = client_of(location)

    def changes(self) -> int | None:
        return None

    @contextmanager
    def state(self) -> Iterator[JournalState]:
        yield JournalState(self.matching, self.topics)

    def matching(self, patterns: tuple[str, ...]) -> Sequence[str]:
        """The topics that names and patterns stand for."""
        asked = AcrossRequest(topics=list(patterns), through={}, limit=0)  # the ends alone, no event is looked at
        return sorted(patiently(lambda: self._client.call(READ_ACROSS, body=asked)).ends)

    def topics(self, names: Sequence[str]) -> Mapping[str, PlannedTopic]:
        """Those of the topics that are there, as they are now: what only grows may have grown since."""
        found = self.ends(names).ends if names else {}
        return {name: self._planned(name, found[name]) for name in names if name in found}

    def _planned(self, name: str, ends: TopicEnds) -> PlannedTopic:
        def position_before(ms: int) -> int:
            query = PositionQuery((_EPOCH + timedelta(milliseconds=ms)).isoformat())
            return patiently(lambda: self._client.call(FIND_POSITION, name, query=query))

        def size(after: int, through: int) -> int:
            return self.cuts(name, CutsQuery(after, through)).size

        def cuts(after: int, through: int, pieces: int, exactly: bool) -> list[int]:
            return self.cuts(name, CutsQuery(after, through, pieces, exactly)).bounds

        def spans(after: int, through: int, wanted: Wanted) -> SpansDocument:
            asked = SpansRequest(wanted, through, after)
            return patiently(lambda: self._client.call(READ_SPANS, name, body=asked))

        return PlannedTopic(name, ends, position_before, size, cuts, spans)

    def ends(self, names: Sequence[str]) -> EndsDocument:
        """Where topics begin and end; those that are not there are left out."""
        query = TopicsQuery(list(names) if len(names) <= _MOST_NAMED else [])
        found = patiently(lambda: self._client.call(READ_ENDS, query=query))
        check_same(self.location, found.journal, self.id)
        return found

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def blocks(self, topic: str, after: int, through: int, *, strict: bool) -> Iterator[list[Block]]:
        try:
            yield from self._blocks(topic, after, through, strict)
        except UnknownTopic as error:
            if strict:
                raise dropped(topic, after, through) from error

    def _blocks(self, topic: str, after: int, through: int, strict: bool) -> Iterator[list[Block]]:
        """The next answer is asked for while one is decoded."""
        if after >= through:
            return
        message, after = self._fetch(topic, strict, after, through)
        if after >= through:  # most batches of a stream are one answer
            yield blocks_of(message, topic)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="penstock-fetch") as pool:
            while after < through:
                coming = pool.submit(self._fetch, topic, strict, after, through)
                yield blocks_of(message, topic)
                message, after = coming.result()
            yield blocks_of(message, topic)

    def cuts(self, topic: str, query: CutsQuery) -> CutsDocument:
        """How large a range is, and where it is best cut."""
        return patiently(lambda: self._client.call(READ_CUTS, topic, query=query))

    def _fetch(self, topic: str, strict: bool, after: int, through: int) -> tuple[bytes, int]:
        """Some blocks from a position on, and how far they reach."""
        query = BlocksQuery(after, through, strict)
        packed = self.location.compression == "gzip"

        def ask() -> tuple[bytes, Mapping[str, str]]:
            return self._client.download(READ_BLOCKS, topic, query=query, accept=BLOCKS, packed=packed)

        try:
            message, headers = patiently(ask)
        except PositionTrimmed as error:
            if error.oldest is not None:
                check_kept(topic, after, through, error.oldest - 1)
            raise
        check_same(self.location, headers.get(JOURNAL_HEADER, ""), self.id)
        return message, int(headers[REACHED_HEADER])

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def correlations(self, ids: Sequence[str]) -> Mapping[str, str | None]:
        found: dict[str, str | None] = {}
        for at in range(0, len(ids), MOST_IDS):
            some = list(ids[at : at + MOST_IDS])
            found.update(patiently(partial(self._client.call, FIND_CORRELATIONS, body=some)))
        return found

    def follow(self, consumer: str, reached: Mapping[str, int], *, back: bool) -> None:
        ends = self.ends(list(reached)).ends
        for name, position in reached.items():
            if name in ends and ends[name].latest >= position:
                change = CursorChange(position, seek=back)
                patiently(partial(self._client.call, MOVE_CURSOR, name, consumer, body=change))
