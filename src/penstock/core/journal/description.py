"""The description of a journal."""

from __future__ import annotations

import msgspec


class Pressure(msgspec.Struct, frozen=True):
    """The backlog of the writer."""

    queued: int
    capacity: int

    @property
    def headroom(self) -> int:
        """The number of further submissions that fit before `submit` waits."""
        return max(0, self.capacity - self.queued)

    @property
    def utilization(self) -> float:
        """Queued submissions as a share of the capacity."""
        return self.queued / self.capacity

    @property
    def idle(self) -> bool:
        """True if nothing waits."""
        return self.queued == 0


class Description(msgspec.Struct, frozen=True):
    """The facts about a journal."""

    engine: str
    location: str | None
    size_bytes: int
    durability: str
    read_only: bool
    topics: list[str]
    queues: list[str]
    writer_capacity: int
    gates: dict[str, list[str]] = {}
    requests: dict[str, dict[str, int]] = {}
    """The requests to an object store since it was opened: cause → kind → number; the kind `bytes` counts the stored
    bytes.
    """
    objects: dict[str, int] = {}
    """The number of the journal's objects in an object store, by purpose."""
    unstored_seconds: float = 0.0
    """The seconds for which an unsynced commit has been only in this process's memory."""
    writer: str | None = None
    """The holder of the lease of a journal in an object store."""
    paused: list[str] = []
    """The paused queues, and QUEUE/GROUP where only a group is paused."""
