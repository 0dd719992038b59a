"""Drains a buffer into a journal, exactly once.

Each batch becomes one transaction: its entries are appended and its sequence is kept as a mark, together or not at all.
A batch whose sequence is not above the mark was appended before, by a process that died before it acknowledged, or by a
consumer that was fenced meanwhile; the batch is skipped. The mark decides inside the transaction, so even two drains at
once append every batch once.

This module knows the journal only through three protocols: `DrainJournal`, `DrainTopic` and `DrainTransaction`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, Protocol

from penstock.buffer.consumer import Batch, Consumer
from penstock.buffer.format import Metadata
from penstock.core.clock import Duration, from_ms
from penstock.core.events import Draft
from penstock.errors import ConfigError, Fenced, OutOfOrder

_LONGEST_NAME = 200


class DrainTransaction(Protocol):
    """A transaction that appends events and sets marks, all or nothing."""

    def append_many(self, topic: str, drafts: Iterable[Draft]) -> object: ...
    def get_mark(self, name: str) -> int | None: ...
    def set_mark(self, name: str, value: int) -> None: ...


class DrainJournal(Protocol):
    """The journal, which keeps the marks."""

    def transaction(self) -> AbstractContextManager[DrainTransaction]: ...
    def mark(self, name: str) -> int | None: ...


class DrainTopic(Protocol):
    """The topic that the entries are appended to."""

    @property
    def name(self) -> str: ...
    @property
    def journal(self) -> DrainJournal: ...


class DrainReport(NamedTuple):
    """The counts of a drain."""

    batches: int  # appended
    entries: int
    skipped: int  # batches that had been appended before
    fenced: Fenced | None  # set when another consumer took over


def drain(
    consumer: Consumer,
    topic: DrainTopic,
    *,
    kind: str = "entry",
    draft: Callable[[bytes, Metadata | None], Draft] | None = None,
    name: str | None = None,
    until_empty: bool = False,
    concurrency: int = 8,
    ahead: int = 8,
    poll: Duration = 0.1,
) -> DrainReport:
    """Appends every batch of a buffer to a topic, exactly once however often it is killed and started again.

    An entry becomes an event of this `kind` with the entry's bytes as payload, the producer's time and, if the entry
    has metadata, the metadata as a header. `draft(entry, metadata)` replaces this rule. The journal keeps the buffer's
    progress under `name`. Without a name it uses an id that is stored beside the manifest, so that it recognises the
    same buffer behind another url or endpoint.

    Runs like `Consumer.run`: until `consumer.stop()`, until another consumer takes over, or until the buffer is empty.
    """
    if not isinstance(consumer, Consumer):
        raise ConfigError(f"a consumer of a buffer is drained, not {consumer!r:.80}")
    mark = name or _mark_name(consumer, topic)
    done = topic.journal.mark(mark)
    if done is not None and (consumer.acked is None or consumer.acked < done):
        try:
            consumer.ack_through(done)
        except OutOfOrder as error:
            raise OutOfOrder(
                f"{topic.name} has batch {done} of {consumer.paths.manifest}, but the manifest is not that far: it "
                f"began again. Drain it under another name= ({error})"
            ) from None
    make = draft or _drafts_of(kind)
    entries = skipped = 0

    def append(batch: Batch) -> None:
        nonlocal entries, skipped
        drafts = _drafts(batch, make)
        with topic.journal.transaction() as transaction:
            last = transaction.get_mark(mark)
            if last is not None and batch.sequence <= last:
                skipped += 1
                return
            transaction.append_many(topic.name, drafts)
            transaction.set_mark(mark, batch.sequence)
        entries += len(batch)

    report = consumer.run(append, until_empty=until_empty, concurrency=concurrency, ahead=ahead, poll=poll)
    return DrainReport(report.batches - skipped, entries, skipped, report.fenced)


def _mark_name(consumer: Consumer, topic: DrainTopic) -> str:
    name = f"drain {consumer.buffer_id()} into {topic.name}"
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    return f"drain {hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


def _drafts(batch: Batch, make: Callable[[bytes, Metadata | None], Draft]) -> list[Draft]:
    """Returns a draft of every entry, with the metadata range that covers the entry."""
    drafts: list[Draft] = []
    ranges = iter(batch.metadata)
    covering: Metadata | None = None
    following = next(ranges, None)
    for index, entry in enumerate(batch):
        while following is not None and following.start_index <= index:
            covering, following = following, next(ranges, None)
        drafts.append(make(entry, covering))
    return drafts


def _drafts_of(kind: str) -> Callable[[bytes, Metadata | None], Draft]:
    last: Metadata | None = None
    shared: dict[str, Any] = {}

    def make(entry: bytes, metadata: Metadata | None) -> Draft:
        nonlocal last, shared
        if metadata is not last:  # entries of one call share their range, so its headers are made once
            last = metadata
            shared = {} if metadata is None else _fields(metadata)
        return Draft(kind, entry, **shared)

    return make


def _fields(metadata: Metadata) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    with suppress(OverflowError):  # no calendar has this time of another writer: the event gets the time of the append
        fields["occurred_at"] = from_ms(metadata.ingested_at_ms)
    if metadata.payload:
        try:
            fields["headers"] = {"metadata": metadata.payload.decode()}
        except UnicodeDecodeError:
            fields["headers"] = {"metadata-base64": base64.b64encode(metadata.payload).decode()}
    return fields
