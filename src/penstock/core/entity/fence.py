"""Fences: events that stay hidden until the fence commits, and are never written when it is cancelled.

Hidden events are in memory only; `commit` appends them in one transaction. So no reader, in any process, sees a part of
them, and after a crash there is nothing to undo. The user's handle is thin, and the journal holds the fence itself. So
a handle that is dropped, collected or outlived by `Journal.close()` cancels the fence at once.

    open ──commit──▶ committed        tickets resolve
      └────cancel──▶ cancelled        tickets raise FenceCancelled   (also: exception, garbage collection, close)
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Unpack

from penstock.core.engine.contract import Engine, WriteTx
from penstock.core.entity.outbox import WHOLE, Outbox, Plan, Staged, ask_guards, counted_from, stage
from penstock.core.events import Draft, Receipt
from penstock.core.journal import keys
from penstock.core.journal.catalog import Barrier
from penstock.core.journal.commit import Commit
from penstock.core.journal.owners import is_alive, new_owner, retire_owner
from penstock.core.journal.writer import WriteRequest
from penstock.core.model.arguments import DraftArguments, show_arguments
from penstock.core.ticket import Ticket, wake
from penstock.errors import Closed, ConfigError, FenceActive, FenceCancelled, ReadOnly

if TYPE_CHECKING:
    from penstock.core.journal.core import JournalCore
    from penstock.core.surface.journal import Journal
    from penstock.core.surface.topic import Topic


State = Literal["open", "committing", "committed", "cancelled"]


class Fences:
    """The open fences of a journal, and the callers that may append meanwhile."""

    def __init__(self, core: JournalCore, lock: threading.RLock) -> None:
        self._core = core
        self._live: set[_Hidden] = set()
        self._lock = lock
        self.exclusive: _Hidden | None = None
        self._later: list[Callable[[], object]] = []
        self.ended = threading.Condition()
        """Notified when an exclusive fence ends, for callers that wait instead of failing."""

    def open(self, *, exclusive: bool) -> Fence:
        self._core.check_open()
        if self._core.engine.read_only:
            raise ReadOnly("this journal was opened with read_only=True: it has nothing to fence")
        hidden = _Hidden(self, exclusive)
        fence = Fence(self._core, hidden)  # first: the fence is cancelled when an interrupt keeps it from the caller
        try:
            with WHOLE:
                self._register(hidden)
                if exclusive:
                    self._close_to_others(hidden)
        except BaseException:
            fence.cancel()
            raise
        return fence

    def _register(self, hidden: _Hidden) -> None:
        with self._lock:
            if hidden.exclusive:
                if self.exclusive is not None:
                    raise FenceActive("another exclusive fence is open: commit or cancel it first")
                self.exclusive = hidden
            self._live.add(hidden)

    def _close_to_others(self, hidden: _Hidden) -> None:
        """Waits until earlier appends of other callers are committed; their later appends are refused."""
        core = self._core
        core.writer.run_relaxed(self._raise_barrier, hidden)
        with self._lock:
            if self.exclusive is hidden:
                core.guards = [self.refuse, *core.guards]

    def _raise_barrier(self, commit: Commit, hidden: _Hidden) -> None:
        if self._core.engine.shared:
            if commit.fenced:
                whose = commit.catalog.elsewhere.owner
                raise FenceActive(f"an exclusive fence of {whose} is open: wait until it has ended")
            hidden.owner = hidden.owner or new_owner()
            hold(commit, self._core.engine, hidden.owner)
        commit.raise_barrier(hidden.barrier)

    def _unhold(self, hidden: _Hidden) -> None:
        """Removes the row of a fence that has ended, without waiting for the commit."""
        owner, hidden.owner = hidden.owner, None
        if owner is None:
            return
        retire_owner(owner)
        if not hidden.released:
            with suppress(Closed):
                gone = WriteRequest(lambda commit: release(commit, owner), relaxed=True)
                self._core.writer.submit(gone, nested=True)

    def refuse(self, topic: str, drafts: Sequence[Draft]) -> None:
        """Guards an open exclusive fence: refuses most appends before they have prepared anything."""
        if self.exclusive is not None:
            raise FenceActive(
                f"an exclusive fence is open: nothing else can be appended to {topic!r} until it has ended"
            )

    def ask_others(self, staged: Sequence[Staged]) -> None:
        """Asks every other guard."""
        ask_guards([guard for guard in self._core.guards if guard != self.refuse], staged)

    def end(self, hidden: _Hidden) -> None:
        with self._lock:
            self._live.discard(hidden)
            if self.exclusive is not hidden:
                return
            self.exclusive = None
            self._core.guards = [guard for guard in self._core.guards if guard != self.refuse]
            catalog = self._core.writer.catalog
            if catalog.barrier is hidden.barrier:
                catalog.barrier = None
            later, self._later = self._later, []
        self._unhold(hidden)
        with self.ended:
            self.ended.notify_all()
        for work in later:
            with suppress(Closed):
                work()

    def afterwards(self, work: Callable[[], object]) -> None:
        """Runs `work`, which appends, now or when the open exclusive fence has ended."""
        with self._lock:
            if self.exclusive is not None:
                self._later.append(work)
                return
        work()

    def cancel_all(self) -> None:
        """Cancels every fence because the journal closes; no hidden event is written."""
        for hidden in list(self._live):
            hidden.cancel("the journal was closed")

    def wait(self, timeout: float) -> None:
        """Waits until no exclusive fence is open, or for a while."""
        with self.ended:
            self.ended.wait_for(lambda: self.exclusive is None, timeout)


class _Hidden:
    """The contents of a fence: the drafts, and their tickets."""

    def __init__(self, fences: Fences, exclusive: bool) -> None:
        self.fences = fences
        self.exclusive = exclusive
        self.barrier = Barrier()
        self.owner: str | None = None
        """The name of an exclusive fence for other processes, when other processes may write the store."""
        self.released = False
        """True if the fence's commit has removed this name."""
        self.state: State = "open"
        self.staged: list[Staged] = []
        self.tickets: list[tuple[Ticket[Any], int, int | None]] = []
        """Each ticket with the index of its draft, and for a batch the number of drafts."""
        self.lock = threading.RLock()

    def add(self, staged: Sequence[Staged], *, batch: bool) -> Ticket[Any]:
        ticket: Ticket[Any] = Ticket()
        with self.lock:
            self.check_open()
            start = len(self.staged)
            self.tickets.append((ticket, start, len(staged) if batch else None))
            self.staged.extend((name, counted_from(draft, start if batch else 0)) for name, draft in staged)
        return ticket

    def append_hidden(self, commit: Commit, plan: Plan) -> list[Receipt]:
        """Appends the hidden events; the fence's own barrier does not apply."""
        self.barrier.passing = True
        try:
            receipts = plan.apply(commit)
            if self.owner is not None:
                release(commit, self.owner)
            return receipts
        finally:
            self.barrier.passing = False

    def check_open(self) -> None:
        if self.state == "cancelled":
            raise FenceCancelled("this fence was cancelled: nothing submitted through it will be written")
        if self.state != "open":
            raise ConfigError("this fence is committed: ask the journal for another one")

    def complete(self, receipts: list[Receipt]) -> None:
        self.state = "committed"
        self.fences.end(self)
        for ticket, start, count in self.tickets:
            ticket.set_outcome(receipts[start] if count is None else receipts[start : start + count], None)
        wake([ticket for ticket, _, _ in self.tickets])

    def cancel(self, why: str = "the fence was cancelled", error: BaseException | None = None) -> None:
        with self.lock:
            if self.state != "open" and error is None:
                return
            self.state = "cancelled"
            self.staged.clear()
        self.fences.end(self)
        for ticket, _, _ in self.tickets:
            ticket.set_outcome(None, error or FenceCancelled(f"{why}: this event was never written"))
        wake([ticket for ticket, _, _ in self.tickets])


class Fence:
    """A fence, which hides its events until `commit`; a cancellation, an exception or dropping the fence discards them.

    While an exclusive fence is open, every other append raises FenceActive, in any process, including pushes, dead
    letters and Spark's batches. Earlier submissions of other callers are committed before the fence opens.
    """

    def __init__(self, core: JournalCore, hidden: _Hidden) -> None:
        self._core = core
        self._hidden = hidden
        self._dropped = weakref.finalize(self, hidden.cancel, "the fence was dropped")
        self._dropped.atexit = False

    @property
    def state(self) -> State:
        """The state of the fence: open, committed or cancelled."""
        return self._hidden.state

    @property
    def exclusive(self) -> bool:
        """True if no other caller may append while the fence is open."""
        return self._hidden.exclusive

    def __len__(self) -> int:
        return len(self._hidden.staged)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<fence of {self._core!r}, {self.state}>"

    @show_arguments(DraftArguments, Draft)
    def submit(
        self, topic: Topic | str, kind: object, payload: object = None, **draft: Unpack[DraftArguments]
    ) -> Ticket[Receipt]:
        """Adds a hidden event; the ticket resolves when the fence commits, and raises FenceCancelled when it does not.

        An integer `cause` is the index of an event that was submitted through this fence, from 0.
        """
        self._hidden.check_open()
        staged = stage(self._core.journal, topic, kind, payload, draft)
        self._check((staged,), len(self))
        return self._hidden.add((staged,), batch=False)

    def outbox(self) -> Outbox:
        """Returns an outbox whose `submit` goes through this fence; integer causes are indexes of its own drafts."""
        return FencedOutbox(self._core.journal, self)

    def commit(self) -> list[Receipt]:
        """Appends everything submitted, in one transaction, and resolves the tickets; one receipt each, in order.

        When the journal refuses the commit (for example with a Conflict), nothing is written, the fence is cancelled,
        and every ticket raises the same error.
        """
        with WHOLE:
            return self._commit()

    def _commit(self) -> list[Receipt]:
        hidden, core = self._hidden, self._core
        with hidden.lock:
            hidden.check_open()
            other = hidden.fences.exclusive
            if other is not None and other is not hidden:
                raise FenceActive("an exclusive fence is open: commit this one when it has ended")
            hidden.state = "committing"
        try:
            plan = Plan(core, hidden.staged)
            receipts: list[Receipt] = []
            if hidden.staged:
                receipts = core.writer.run(WriteRequest(lambda commit: hidden.append_hidden(commit, plan), plan.size))
                hidden.released = True
        except FenceActive:
            hidden.state = "open"  # an exclusive fence was just opened and must end first; nothing else is wrong
            raise
        except BaseException as error:
            hidden.cancel(error=error)
            raise
        hidden.complete(receipts)
        return receipts

    def cancel(self) -> None:
        """Discards all submitted events permanently; an ended fence does not change."""
        with WHOLE:
            self._hidden.cancel()

    def __enter__(self) -> Fence:
        self._hidden.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self._hidden.state != "open":
            return
        if kind is None:
            self.commit()
        else:
            with WHOLE:
                self._hidden.cancel("the fence's block raised an exception")

    def _check(self, staged: Sequence[Staged], before: int) -> None:
        """Raises errors of drafts at their submission, not at the fence's commit."""
        self._core.check_open()
        self._hidden.fences.ask_others(staged)
        Plan(self._core, staged, before=before)


class FencedOutbox(Outbox):
    """An outbox whose batches stay hidden until its fence commits."""

    def __init__(self, journal: Journal, fence: Fence) -> None:
        super().__init__(journal)
        self._fence = fence

    def flush(self) -> list[Receipt]:
        """Raises an error, because receipts exist only after the fence's commit. Use `submit`."""
        raise ConfigError(
            "the outbox of a fence is written when the fence commits: use submit() and the ticket it gives"
        )

    def submit(self) -> Ticket[list[Receipt]]:
        """Submits all staged drafts to the fence; the ticket resolves when the fence commits."""
        self._fence._hidden.check_open()
        self._fence._check(self._staged, 0)
        ticket = self._fence._hidden.add(self._staged, batch=True)
        self._staged.clear()
        return ticket

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.submit()
        else:
            self.clear()


# ── Exclusive fences that other processes can see: a row in the store for each, while its process lives ──
# The hidden events of a fence are in the memory of its process. Where several processes may write one store, a row
# records an open exclusive fence. A commit that notices a commit of another process reads this row, and appends nothing
# while the fence is open. The row is removed with the fence's commit, or right after its cancellation. A row of an
# ended process, or of a copied store, is ignored.


def hold(commit: Commit, engine: Engine, owner: str) -> None:
    """Records that an exclusive fence is open."""
    commit.tx.put(keys.FENCE + owner.encode(), _file_identity(engine))


def release(commit: Commit, owner: str) -> None:
    """Removes the record of an exclusive fence."""
    commit.tx.delete(keys.FENCE + owner.encode())


def find_holder(engine: Engine, tx: WriteTx) -> str:
    """Returns the process with an open exclusive fence, for people; "" for none. Removes records of dead processes."""
    rows = list(tx.scan(keys.FENCE, keys.prefix_end(keys.FENCE)))
    here = _file_identity(engine) if rows else b""
    for key, store in rows:
        owner = key[len(keys.FENCE) :].decode(errors="replace")
        if store == here and is_alive(owner):
            return f"process {owner.split(':')[1]}"
        tx.delete(key)
    return ""


def _file_identity(engine: Engine) -> bytes:
    """Returns the identity of a store's file, which a copy does not share."""
    found = os.stat(engine.location or "")  # noqa: PTH116
    return f"{found.st_dev}:{found.st_ino}".encode()
