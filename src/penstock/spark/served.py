"""A journal behind a server: plans from a few small answers, blocks as they are stored, pieces that it is to keep.

Connections are kept per process. What is read may be asked for again, and what is written says by itself whether it was
done before: a piece takes the place of its first try, and a commit is known by its mark and version, or by its batches.
So a connection that breaks, and a server that is not there for a moment, are waited for rather than reported.

A task asks for the next blocks while it decodes the ones before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from penstock.core.journal.blocks import Block
from penstock.core.protocol.bulk import (
    COMMIT_STAGED,
    DROP_STAGED,
    JOURNAL_HEADER,
    REACHED_HEADER,
    READ_BLOCKS,
    STAGE_BLOCKS,
    STAGE_OBJECT,
    BlocksQuery,
    CommitRequest,
    DropQuery,
    ObjectRequest,
    StageQuery,
    blocks_of,
)
from penstock.core.protocol.operation import BLOCKS, ROLES, Operation, Role
from penstock.core.protocol.topics import (
    DESCRIBE_JOURNAL,
    MOVE_CURSOR,
    CursorChange,
    JournalDocument,
)
from penstock.errors import ConfigError, PositionTrimmed, UnknownTopic
from penstock.remote.client import Client
from penstock.spark.journals import SourceJournal, T, check_kept, check_same, dropped, patiently
from penstock.spark.options import JournalLocation

TIMEOUT = 60.0
"""Seconds for a server to accept a connection, and to answer."""
FIRST_PATIENCE = 10.0
"""Seconds for which a server is waited for that this process has not met yet: its address may be wrong."""
_KEPT = 8
"""Servers a worker process stays connected with."""

_kept: dict[tuple[int, JournalLocation], Client] = {}


def client_of(location: JournalLocation) -> Client:
    """Returns the connections to a server; they are kept for the next task of this process, and never used by a
    child.
    """
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


def ask_server(location: JournalLocation, operation: Operation[T], *names: str, request: object = None) -> T:
    """Returns a server's answer, waited for when it is away for a moment."""
    query, body = (request, None) if isinstance(request, operation.query or ()) else (None, request)
    return patiently(partial(client_of(location).call, operation, *names, query=query, body=body))


def describe(location: JournalLocation, *, known: bool = False) -> JournalDocument:
    """Returns the journal that is served at a place; `known`: a server was there when the work was planned."""
    return patiently(lambda: client_of(location).call(DESCRIBE_JOURNAL), None if known else FIRST_PATIENCE)


def check_may_write(
    location: JournalLocation, doing: str, *, role: Role = "write", known: bool = False
) -> JournalDocument:
    """Returns the journal that is served at a place; ConfigError when nothing can be written there with this token, or
    its role is less.

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


# ── staging ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def send_piece(server: JournalLocation, job: str, batch: str, at: int, body: bytes | ObjectRequest) -> None:
    """Gives a server a piece to keep until the commit: the piece itself, or its place in an area."""
    client, query = client_of(server), StageQuery(job)
    if isinstance(body, bytes):
        patiently(lambda: client.call(STAGE_BLOCKS, batch, str(at), query=query, body=body))
    else:
        patiently(lambda: client.call(STAGE_OBJECT, batch, str(at), query=query, body=body))


def commit_staged(server: JournalLocation, request: CommitRequest) -> bool:
    """Publishes the pieces that a server keeps, in one transaction; returns False when this was done before."""
    return patiently(lambda: client_of(server).call(COMMIT_STAGED, body=request))


def drop_staged(server: JournalLocation, job: str) -> None:
    """Lets a server drop the unpublished pieces of a job."""
    client_of(server).call(DROP_STAGED, query=DropQuery(job))


def served_journal(location: JournalLocation, id: str | None) -> ServedJournal:
    """Returns the journal at a server; one that was planned with is waited for, a new one must be there."""
    found = describe(location, known=id is not None).id
    check_same(location, found, id)
    return ServedJournal(location, found)


class ServedJournal(SourceJournal):
    """A journal behind a server."""

    def ask(self, operation: Operation[T], *names: str, request: object = None) -> T:
        return ask_server(self.location, operation, *names, request=request)

    # ── blocks ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def blocks(self, topic: str, after: int, through: int, *, strict: bool) -> Iterator[list[Block]]:
        try:
            yield from self._blocks(topic, after, through, strict)
        except UnknownTopic as error:
            if strict:
                raise dropped(topic, after, through) from error

    def _blocks(self, topic: str, after: int, through: int, strict: bool) -> Iterator[list[Block]]:
        """Yields blocks; the next answer is requested while the last answer is decoded."""
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

    def _fetch(self, topic: str, strict: bool, after: int, through: int) -> tuple[bytes, int]:
        """Returns several blocks from a position on, and the position that they reach."""
        query = BlocksQuery(after, through, strict)
        packed = self.location.compression == "gzip"

        def ask() -> tuple[bytes, Mapping[str, str]]:
            return client_of(self.location).download(READ_BLOCKS, topic, query=query, accept=BLOCKS, packed=packed)

        try:
            message, headers = patiently(ask)
        except PositionTrimmed as error:
            if error.oldest is not None:
                check_kept(topic, after, through, error.oldest - 1)
            raise
        check_same(self.location, headers.get(JOURNAL_HEADER, ""), self.id)
        return message, int(headers[REACHED_HEADER])

    def follow(self, consumer: str, reached: Mapping[str, int], *, back: bool) -> None:
        ends = self.ends(list(reached))
        for name, position in reached.items():
            if name in ends and ends[name].latest >= position:
                self.ask(MOVE_CURSOR, name, consumer, request=CursorChange(position, seek=back))
