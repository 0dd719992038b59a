"""Payloads that a `payloadSchema` does not fit: the error that names one, and the place where they are put."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

import msgspec

from penstock.errors import ConfigError, UnknownQueue
from penstock.events import Draft, Event
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.place import JournalPlace
from penstock.spark.source.stores import writing
from penstock.surface.journal import Journal
from penstock.surface.queue import Queue

CORRUPT = "_corrupt_record"
"""The column that holds the text of payloads that do not fit, in the mode PERMISSIVE."""


def refused(topic: str, seq: int, reason: str) -> ConfigError:
    """The error of a query that takes no misfits."""
    return ConfigError(
        f"payloadSchema does not fit the payload of event {seq} of topic {topic!r}: {reason}. Give the field another "
        "type, read payload as text and use from_json, or say what becomes of such rows: mode=PERMISSIVE, "
        "mode=DROPMALFORMED or badRecords=<queue or topic>"
    )


class BadRecords(msgspec.Struct, frozen=True):
    """The queue or topic that takes the events that do not fit, each once.

    An event put there has the kind, key, scope, payload and headers of the one that does not fit, which is its cause;
    headers say where that one is and what is wrong with it. Tasks may run twice, so the event's id and the schema are
    its dedup key.
    """

    place: JournalPlace
    name: str
    schema: str

    @classmethod
    def of(cls, options: ReadOptions) -> BadRecords:
        assert options.bad_records is not None
        return cls(options.place, options.bad_records, options.payload_schema or "")

    def put(self, events: Sequence[tuple[Event, str]]) -> None:
        """Puts events there, with the reasons; those that are there already are left alone."""
        drafts = [self._draft(event, reason) for event, reason in events]
        with self._journal() as journal:
            queue = self._queue(journal)
            if queue is not None:
                if queue.policy.throttle is not None or queue.policy.debounce is not None:
                    raise self._keeps_one("queue", "has a throttle or a debounce")
                queue.push_many(drafts)
            else:
                topic = journal.topic(self.name)
                if topic.settings.by_key:
                    raise self._keeps_one("topic", "keeps the newest event of every key")
                topic.append_many(drafts)

    def _queue(self, journal: Journal) -> Queue | None:
        """The queue of the name, if there is one; none is made, nor made again that is dropped meanwhile."""
        try:
            return journal.queue(self.name, create=False)
        except UnknownQueue:
            return None

    def _keeps_one(self, what: str, why: str) -> ConfigError:
        return ConfigError(
            f"badRecords: {what} {self.name!r} {why}, so that of several records with one key only one would be there: "
            "name another queue or topic"
        )

    def _journal(self) -> AbstractContextManager[Journal]:
        server = self.place.server
        if server is None:
            return writing(self.place.url)
        from penstock.remote import connect

        return connect(server.url, token=None if server.token is None else server.token.reveal())

    def _draft(self, event: Event, reason: str) -> Draft:
        known = f"{event.id}\0{self.schema}"
        return Draft(
            event.kind,
            _payload(event),
            key=event.key,
            scope=event.scope,
            headers={
                **event.headers,
                "penstock-topic": event.topic,
                "penstock-seq": str(event.seq),
                "penstock-reason": reason[:1000],
            },
            occurred_at=event.occurred_at,
            dedup=f"misfit:{hashlib.sha256(known.encode()).hexdigest()}",
            cause=event,
        )


def _payload(event: Event) -> msgspec.Raw | bytes:
    """The payload as it is stored: JSON stays the same text, bytes stay bytes."""
    return event.raw if event.binary else msgspec.Raw(event.raw)
