"""One caller's transaction, during which no other caller commits."""

from __future__ import annotations

from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING

from penstock.errors import Closed
from penstock.journal.commit.commit import Commit

if TYPE_CHECKING:
    from penstock.journal.commit.writer import Writer


class Exclusive:
    """The writer's lead held over a user's transaction."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.thread = writer._leader = get_ident()
        self._held = True
        if writer._closed:
            raise Closed("the journal is closed")

    def begin(self) -> Commit:
        writer = self._writer
        self._tx = writer.engine.write()
        self._tx.__enter__()
        try:
            self.commit = Commit(writer.catalog, self._tx, writer.clock.now_ms(), writer._entities)
        except BaseException as error:
            self._tx.__exit__(type(error), error, error.__traceback__)
            raise
        return self.commit

    def end(self) -> None:
        """Commits; when that fails, nothing was kept."""
        begun = perf_counter()  # the user's own time inside the transaction is none of the writer's
        try:
            self.commit.flush()
        except BaseException as error:
            self.roll_back(error)
            raise
        try:
            self._tx.__exit__(None, None, None)
        except BaseException:
            self._writer.catalog.forget()
            raise
        self.commit.publish()
        writer = self._writer
        writer.measures.committed(1, perf_counter() - begun, writer.engine.durability == "disk", self.commit.touched)
        if self.commit.touched:
            self._writer.announce(self.commit.touched)

    def roll_back(self, error: BaseException | None) -> None:
        self._writer.catalog.forget()
        reason = error or RuntimeError("rolled back")
        self._tx.__exit__(type(reason), reason, reason.__traceback__)

    def release(self) -> None:
        if self._held:
            self._held = False
            self._writer.let_go()
