"""Drafts for several topics that one commit appends together: in outboxes, and under fences and reactors.

A `Plan` is checked and encoded in the caller's thread. Only fields that need the store (expected positions, dedup keys,
the ids of causes staged earlier) are left to the commit. Drafts keep the order of their staging. Neighbouring drafts
for one topic form a segment. Every expectation is checked before the first segment is appended, so that it refers to
the entity before the batch, and a refusal changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Self, Unpack

from msgspec.structs import replace

from penstock.core.events import Draft, Receipt
from penstock.core.journal.commit import Commit
from penstock.core.journal.prepare import PreparedBatch, make_draft, prepare
from penstock.core.journal.writer import Shield, Writer, WriteRequest, is_inside
from penstock.core.model.arguments import DraftArguments, show_arguments
from penstock.core.names import is_whole
from penstock.core.ticket import Ticket
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.core.journal.core import Guard, JournalCore
    from penstock.core.surface.journal import Journal
    from penstock.core.surface.topic import Topic


WHOLE = Shield(lambda frame: not is_inside(frame, (Writer._park.__code__,)))
"""A shield for a block with a known outcome: an interrupt arrives while the block waits for its turn to commit, or
after the block.
"""

Staged = tuple[str, Draft]
"""A topic's name and a draft for it."""


def stage(journal: Journal, topic: Topic | str, kind: object, payload: object, draft: Mapping[str, object]) -> Staged:
    """Returns a draft with its topic; raises ConfigError when the topic cannot be used."""
    name, typed = journal._topic_of(topic)
    if typed is not None:
        kind, payload = typed.draft(kind, payload)
    return name, make_draft(kind, payload, draft)


class Outbox:
    """Gathers drafts for any topics of a journal and appends them together. Not shared between threads.

    As a context manager, an outbox flushes on a clean exit and drops staged drafts on an exception.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._staged: list[Staged] = []

    def __repr__(self) -> str:
        return f"<outbox with {len(self._staged)} drafts for {self._journal!r}>"

    def __len__(self) -> int:
        return len(self._staged)

    @show_arguments(DraftArguments, Draft)
    def stage(self, topic: Topic | str, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> int:
        """Adds a draft and returns its index, which a later draft may name as its `cause`. Nothing is written yet."""
        self._staged.append(stage(self._journal, topic, kind, payload, draft))
        return len(self._staged) - 1

    def clear(self) -> None:
        """Drops everything staged."""
        self._staged.clear()

    def flush(self) -> list[Receipt]:
        """Appends all staged drafts, all or nothing; returns one receipt for each, in order.

        After an error the drafts stay staged.
        """
        return self._journal._backend.append_staged(self._staged) if self._staged else []

    def submit(self) -> Ticket[list[Receipt]]:
        """Submits all staged drafts as one batch; the outbox is empty again at once."""
        ticket = self._journal._backend.submit_staged(self._staged)
        self._staged.clear()
        return ticket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.flush()
        else:
            self.clear()


def append_staged(core: JournalCore, staged: list[Staged]) -> list[Receipt]:
    """Appends drafts, all or nothing, and empties the list; after an error the list keeps its drafts."""
    request = appending_staged(core, staged)
    with WHOLE:  # committed drafts must not stay staged, because a second flush would append them again
        receipts = core.writer.run(request)
        staged.clear()
    return receipts


def submit_staged(core: JournalCore, staged: Sequence[Staged]) -> Ticket[list[Receipt]]:
    """Submits drafts as one batch."""
    if not staged:
        ticket: Ticket[list[Receipt]] = Ticket()
        ticket.resolve([])
        return ticket
    return core.writer.submit(appending_staged(core, staged))


def appending_staged(core: JournalCore, staged: Sequence[Staged]) -> WriteRequest[list[Receipt]]:
    """Returns the append of staged drafts, for the writer; checked, encoded, and let through by gates and fences."""
    core.check_open()
    ask_guards(core.guards, staged)
    plan = Plan(core, staged)
    return WriteRequest(plan.apply, plan.size)


def counted_from(draft: Draft, start: int) -> Draft:
    """Returns a draft whose integer cause, an index into its own batch, is moved by `start`."""
    if start and is_whole(draft.cause):
        return replace(draft, cause=draft.cause + start)
    return draft


def ask_guards(guards: Iterable[Guard], staged: Sequence[Staged]) -> None:
    """Shows drafts to the gates and fences that may refuse them, topic by topic."""
    guards = list(guards)
    if not guards:
        return
    by_topic: dict[str, list[Draft]] = {}
    for name, draft in staged:
        by_topic.setdefault(name, []).append(draft)
    for name, drafts in by_topic.items():
        for guard in guards:
            guard(name, drafts)


class _TopicDrafts:
    """Neighbouring drafts for one topic."""

    __slots__ = ("batch", "causes", "checked", "topic")

    def __init__(self, core: JournalCore, topic: str, first: int, drafts: Sequence[Draft]) -> None:
        self.topic = topic
        self.causes: dict[int, int] = {}
        """The rows whose cause was staged before this segment, with the index of the cause in the whole plan."""
        own: list[Draft] = []
        for row, draft in enumerate(drafts):
            cause = draft.cause
            if is_whole(cause):
                if not 0 <= cause < first + row:
                    raise ConfigError(
                        f"cause={cause} of draft {first + row} must be the index of a draft staged before it"
                    )
                if cause < first:
                    self.causes[row] = cause
                draft = replace(draft, cause=cause - first if cause >= first else None)
            own.append(draft)
        self.checked = prepare(own, topic, core.find_cause)
        self.batch = replace(self.checked, expects=None, conditions=None)

    def append(self, commit: Commit, receipts: Sequence[Receipt]) -> list[Receipt]:
        return commit.append(self.topic, self._linked(receipts) if self.causes else self.batch)

    def _linked(self, receipts: Sequence[Receipt]) -> PreparedBatch:
        """Returns a copy of the batch with the ids of causes staged earlier; a copy, because the commit may be
        repeated.
        """
        columns = self.batch.columns.pick(range(len(self.batch)))
        columns.causation = columns.causation or [None] * len(columns)
        columns.correlation = columns.correlation or [None] * len(columns)
        for row, cause in self.causes.items():
            receipt = receipts[cause]
            columns.causation[row] = receipt.id
            columns.correlation[row] = columns.correlation[row] or receipt.correlation_id or receipt.id
        return replace(self.batch, columns=columns)


class Plan:
    """Staged drafts, checked and encoded, ready for a commit; `cause=` numbers count through the whole plan."""

    __slots__ = ("_segments", "size")

    def __init__(self, core: JournalCore, staged: Sequence[Staged], before: int = 0) -> None:
        """Makes a plan.

        The `before` drafts came earlier and are not part of the plan; a plan with such drafts only checks and cannot be
        applied.
        """
        self._segments: list[_TopicDrafts] = []
        for topic, neighbours in groupby(staged, key=lambda one: one[0]):
            drafts = [draft for _, draft in neighbours]
            self._segments.append(_TopicDrafts(core, topic, before, drafts))
            before += len(drafts)
        self.size = sum(segment.batch.size for segment in self._segments)

    def apply(self, commit: Commit) -> list[Receipt]:
        """Appends everything, or raises an error and changes nothing; returns one receipt for each draft, in order."""
        for segment in self._segments:
            commit.check(segment.topic, segment.checked)
        receipts: list[Receipt] = []
        for segment in self._segments:
            receipts.extend(segment.append(commit, receipts))
        return receipts
