"""What only a journal in this process can do: on a served one it raises ConfigError, which says what to do instead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NoReturn

from penstock.clock import Seconds
from penstock.entity.exporting import CopyFormat
from penstock.entity.projection import Projection
from penstock.entity.proof import TreeRoot
from penstock.errors import ConfigError
from penstock.events import Draft, Event, Receipt
from penstock.limits import WORKER_BATCH, WORKER_IDLE, WORKER_RESTARTS
from penstock.surface.journal import Journal
from penstock.surface.topic import Topic

Progress = Callable[[int, int], None]


def refused(what: str, instead: str) -> ConfigError:
    """The error of a call that a served journal does not take."""
    return ConfigError(f"{what} is not served over http: {instead}")


class JournalElsewhere(Journal):
    """The part of a journal's surface that a server does not offer."""

    def transaction(self) -> NoReturn:
        """Refused: a transaction holds the writer, which a client may not."""
        raise refused("a transaction", "use outbox() for one atomic batch, or run the program where the store is")

    def fence(self, *, exclusive: bool = True) -> NoReturn:
        """Refused: a fence lives and dies with the process that opened it."""
        raise refused("a fence", "use outbox() for one atomic batch, or run the program where the store is")

    def mark(self, name: str) -> NoReturn:
        """Refused: marks are set by transactions."""
        raise refused("a mark", "marks belong to transactions, which run where the store is")

    def backup(self, destination: str | os.PathLike[str]) -> NoReturn:
        """Refused: the copy would be made on the server's disk."""
        raise refused("a backup", "run `penstock backup` where the store is")

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        format: CopyFormat | None = None,
        progress: Progress | None = None,
    ) -> NoReturn:
        """Refused: positions, ids and times are copied from the store itself."""
        raise refused("an export", "run `penstock export` where the store is")

    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        topics: Iterable[str] | None = None,
        progress: Progress | None = None,
        start_over: bool = False,
    ) -> NoReturn:
        """Refused: positions and ids are written into the store itself."""
        raise refused("an import", "run `penstock import` where the store is")


class TopicElsewhere(Topic):
    """The part of a topic's surface that a server does not offer."""

    def entities(self) -> NoReturn:
        """Refused: the index of entities is the store's."""
        raise refused("the list of entities", "read the topic and gather the keys, or ask where the store is")

    def reindex(self) -> NoReturn:
        """Refused: the index of entities is the store's."""
        raise refused("reindexing", "run `penstock index rebuild` where the store is")

    def watch(self, projection: type[Projection], key: str | None = None) -> NoReturn:
        """Refused: follow the topic and fold."""
        raise refused("a watch", "subscribe to the topic and call project_if_changed for the keys that come")

    def verify_states(self, projection: type[Projection]) -> NoReturn:
        """Refused: saved states are the store's."""
        raise refused("checking saved states", "run `penstock rebuild --check` where the store is")

    def verify(self, *, progress: Progress | None = None) -> NoReturn:
        """Refused: what is verified are the store's bytes."""
        raise refused("verifying a topic", "run `penstock verify` where the store is")

    def check(self, receipt: Receipt) -> NoReturn:
        """Refused: a receipt is checked against the store's bytes."""
        raise refused("checking a receipt", "do it where the store is")

    def proof(self, of: Receipt | Event | int, *, root: TreeRoot | None = None) -> NoReturn:
        """Refused: a proof is made of the store's bytes."""
        raise refused("a proof", "run `penstock proof` where the store is; check_proof needs no journal")

    def react(
        self,
        consumer: str,
        handler: Callable[[Event], object],
        *,
        batch: int = WORKER_BATCH,
        idle: Seconds = WORKER_IDLE,
        restarts: int = WORKER_RESTARTS,
    ) -> NoReturn:
        """Refused: a reactor appends and moves its cursor in one transaction."""
        raise refused("a reactor", "use worker() with dedup keys, or run it where the store is")

    def gate(
        self,
        check: Callable[[Draft], None],
        *,
        kind: str | type | Iterable[str | type] | None = None,
        name: str | None = None,
        record: Topic | str | None = None,
    ) -> NoReturn:
        """Refused: a gate is a function in the process that writes."""
        raise refused("a gate", "set it in the process that serves the journal")

    def ungate(self, check: Callable[[Draft], None]) -> NoReturn:
        """Refused: a gate is a function in the process that writes."""
        raise refused("a gate", "set it in the process that serves the journal")
