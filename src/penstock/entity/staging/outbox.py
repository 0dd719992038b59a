"""Outboxes: drafts gathered locally, for any topics, and appended as one atomic batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from penstock.entity.staging.plan import WHOLE, Plan, Staged, ask_guards, stage
from penstock.events import Receipt
from penstock.journal.commit.request import WriteRequest
from penstock.surface.outbox import Outbox
from penstock.ticket import Ticket

if TYPE_CHECKING:
    from penstock.journal.core import JournalCore
    from penstock.surface.arguments import DraftArguments
    from penstock.surface.topic import Topic


class LocalOutbox(Outbox):
    """An outbox of a journal in this process."""

    def __init__(self, core: JournalCore) -> None:
        self._core = core
        self._staged: list[Staged] = []

    def __len__(self) -> int:
        return len(self._staged)

    def __repr__(self) -> str:
        return f"<outbox with {len(self._staged)} drafts for {self._core!r}>"

    def stage(self, topic: Topic | str, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> int:
        """Adds a draft and returns its index, which a later draft may name as its `cause`. Nothing is written yet."""
        self._staged.append(stage(self._core.journal, topic, kind, payload, draft))
        return len(self._staged) - 1

    def clear(self) -> None:
        """Drops everything staged."""
        self._staged.clear()

    def flush(self) -> list[Receipt]:
        """Appends everything staged, all or nothing; one receipt each, in order. On an error it stays staged."""
        if not self._staged:
            return []
        plan = self._plan()
        with WHOLE:  # what is committed must not be staged still: a second flush would append it again
            receipts = self._core.writer.run(WriteRequest(plan.apply, plan.size))
            self._staged.clear()
        return receipts

    def submit(self) -> Ticket[list[Receipt]]:
        """Hands everything staged over as one batch and is empty again at once."""
        if not self._staged:
            ticket: Ticket[list[Receipt]] = Ticket()
            ticket.resolve([])
            return ticket
        plan = self._plan()
        ticket = self._core.writer.submit(WriteRequest(plan.apply, plan.size))
        self._staged.clear()
        return ticket

    def _plan(self) -> Plan:
        self._core.check_open()
        ask_guards(self._core.guards, self._staged)
        return Plan(self._core, self._staged)
