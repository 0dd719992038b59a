"""What every outbox is: drafts gathered locally, for any topics, and appended as one atomic batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self, Unpack

if TYPE_CHECKING:
    from penstock.events import Receipt
    from penstock.surface.arguments import DraftArguments
    from penstock.surface.topic import Topic
    from penstock.ticket import Ticket


class Outbox(ABC):
    """Gathers drafts for any topics of a journal and appends them together. Not shared between threads.

    As a context manager it flushes on a clean exit and drops what is staged on an exception.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def stage(self, topic: Topic | str, kind: object, payload: object = None, **draft: Unpack[DraftArguments]) -> int:
        """Adds a draft and returns its index, which a later draft may name as its `cause`. Nothing is written yet."""

    @abstractmethod
    def clear(self) -> None:
        """Drops everything staged."""

    @abstractmethod
    def flush(self) -> list[Receipt]:
        """Appends everything staged, all or nothing; one receipt each, in order. On an error it stays staged."""

    @abstractmethod
    def submit(self) -> Ticket[list[Receipt]]:
        """Hands everything staged over as one batch and is empty again at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.flush()
        else:
            self.clear()
