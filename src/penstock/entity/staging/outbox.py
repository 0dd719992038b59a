"""Outboxes: drafts gathered locally, for any topics, and appended as one atomic batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from penstock.entity.staging.plan import Plan, Staged, ask_guards, stage
from penstock.events import Receipt
from penstock.journal.commit.writer import WriteRequest
from penstock.surface.outbox import Outbox
from penstock.ticket import Ticket

if TYPE_CHECKING:
    from penstock.journal.journal import BaseJournal
    from penstock.surface.arguments import DraftArguments
    from penstock.surface.topic import Topic


class LocalOutbox(Outbox):
    """An outbox of a journal in this process."""

    def __init__(self, journal: BaseJournal) -> None:
        self._journal = journal
        self._staged: list[Staged] = []

    def __len__(self) -> int:
        return len(self._staged)

    def __repr__(self) -> str:
        return f"<outbox with {len(self._staged)} drafts for {self._journal!r}>"

    def stage(self, topic: Topic | str, kind: Any, payload: Any = None, **draft: Unpack[DraftArguments]) -> int:
        """Adds a draft and returns its index, which a later draft may name as its `cause`. Nothing is written yet."""
        self._staged.append(stage(self._journal, topic, kind, payload, draft))
        return len(self._staged) - 1

    def clear(self) -> None:
        """Drops everything staged."""
        self._staged.clear()

    def flush(self) -> list[Receipt]:
        """Appends everything staged, all or nothing; one receipt each, in order. On an error it stays staged."""
        if not self._staged:
            return []
        plan = self._plan()
        receipts = self._journal._writer.run(WriteRequest(plan.apply, plan.size))
        self._staged.clear()
        return receipts

    def submit(self) -> Ticket[list[Receipt]]:
        """Hands everything staged over as one batch and is empty again at once."""
        if not self._staged:
            ticket: Ticket[list[Receipt]] = Ticket()
            ticket.resolve([])
            return ticket
        plan = self._plan()
        ticket = self._journal._writer.submit(WriteRequest(plan.apply, plan.size))
        self._staged.clear()
        return ticket

    def _plan(self) -> Plan:
        self._journal._check_open()
        ask_guards(self._journal._guards, self._staged)
        return Plan(self._journal, self._staged)
