"""Connections of Spark's processes to servers: kept per process, patient while a server starts again.

What is read may be asked for again, and what is written says by itself whether it was done before. So a connection that
breaks, and a server that is not there for a moment, are waited for rather than reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import Backpressure, ConfigError, PenstockError, StorageError
from penstock.protocol.journal import DESCRIBE_JOURNAL, JournalDocument
from penstock.protocol.operation import ROLES, Role
from penstock.remote.client import Client
from penstock.spark.source.place import JournalPlace

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds for a server to accept a connection, and to answer."""
PATIENCE = 60.0
"""Seconds for which a server that was there is waited for when it is not."""
FIRST_PATIENCE = 10.0
"""Seconds for which a server is waited for that this process has not met yet: its address may be wrong."""
_PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0)
_KEPT = 8
"""Servers a worker process stays connected with."""

_kept: dict[tuple[int, JournalPlace], Client] = {}


def client_of(place: JournalPlace) -> Client:
    """The connections to a server; they are kept for the next task of this process, and never used by a child."""
    slot = (os.getpid(), place)
    client = _kept.get(slot)
    if client is None:
        for other in [other for other in _kept if other[0] != slot[0]]:
            del _kept[other]  # the parent's: not ours to close
        while len(_kept) >= _KEPT:
            _kept.pop(next(iter(_kept))).close()
        token = None if place.token is None else place.token.reveal()
        client = _kept[slot] = Client(place.url, token, TIMEOUT)
    return client


def patiently(ask: Callable[[], T], patience: float | None = None) -> T:
    """What `ask` gives; asked again while the server does not answer, or has no room."""
    deadline = time.monotonic() + (PATIENCE if patience is None else patience)
    tries = 0
    while True:
        try:
            return ask()
        except (StorageError, Backpressure) as error:
            if not _passing(error) or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
        tries += 1


def _passing(error: PenstockError) -> bool:
    return error.retryable if isinstance(error, StorageError) else True


def describe(place: JournalPlace, *, known: bool = False) -> JournalDocument:
    """What is served at a place; `known`: a server was there when the work was planned."""
    patience = PATIENCE if known else FIRST_PATIENCE
    return patiently(lambda: client_of(place).call(DESCRIBE_JOURNAL), patience)


def check_may_write(place: JournalPlace, doing: str, *, role: Role = "write", known: bool = False) -> JournalDocument:
    """What is served at a place; ConfigError when nothing can be written there with this token, or its role is less.

    `known`: a server was there when the work was planned, or may have been.
    """
    about = describe(place, known=known)
    if about.read_only:
        raise ConfigError(f"{place.url} serves its journal for reading only, and {doing} writes to it")
    if ROLES.index(about.role) < ROLES.index(role):
        raise ConfigError(
            f"{doing} writes to {place.url}, which needs a token with the role {role}; this one's role is {about.role}"
        )
    return about


def check_same(place: JournalPlace, found: str, id: str | None) -> None:
    """ConfigError when a server's journal is another than the one that work was planned for."""
    if id is not None and found != id:
        raise ConfigError(
            f"there is another journal at {place.url} than where this query was planned: it was replaced meanwhile, or "
            "the address leads to another server from here"
        )
