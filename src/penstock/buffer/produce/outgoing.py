"""What a producer holds until the manifest does: the batch being filled, and batches on their way."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from penstock.buffer.format.batch import FOOTER_SIZE, Compression, batch_footer, compress_entries, decode_batch
from penstock.buffer.format.descriptor import Metadata
from penstock.buffer.produce.slabs import Slabs
from penstock.ticket import Ticket


class Produced(Ticket[None]):
    """A `produce` call under way; resolves when the manifest holds its entries."""

    __slots__ = ("ingested_at_ms",)

    def __init__(self, ingested_at_ms: int) -> None:
        super().__init__()
        self.ingested_at_ms = ingested_at_ms


class Split(Produced):
    """A `produce` call whose entries went to several shards; resolves when all of them hold their part."""

    __slots__ = ("_failure", "_open")

    def __init__(self, ingested_at_ms: int, parts: int) -> None:
        super().__init__(ingested_at_ms)
        self._open = [None] * parts  # popped: taking the last one is an atomic decision
        self._failure: BaseException | None = None

    def part_done(self, error: BaseException | None) -> None:
        if error is not None:
            self._failure = error
        self._open.pop()
        if not self._open and not self.done():
            if self._failure is None:
                self.resolve(None)
            else:
                self.fail(self._failure)


class BatchPart(Produced):
    """One shard's share of a split call."""

    __slots__ = ("_whole",)

    def __init__(self, ingested_at_ms: int, whole: Split) -> None:
        super().__init__(ingested_at_ms)
        self._whole = whole

    def set_outcome(self, value: None, error: BaseException | None) -> None:
        super().set_outcome(value, error)
        self._whole.part_done(error)


class Filling:
    """The batch that takes entries now."""

    __slots__ = ("_slabs", "calls", "count", "due_at", "metadata", "size", "slab")

    def __init__(self, slabs: Slabs, expected: int = 0) -> None:
        self._slabs = slabs
        self.slab = slabs.allocate(expected)
        self.metadata: list[Metadata] = []
        self.calls: list[Produced] = []
        self.count = 0
        self.size = 0
        self.due_at = 0.0

    def add(self, encoded: bytes, count: int, payload: bytes, call: Produced) -> None:
        end = self.size + len(encoded)
        if end + FOOTER_SIZE > len(self.slab):
            self._grow(end + FOOTER_SIZE)
        self.slab[self.size : end] = encoded
        self.size = end
        self.metadata.append(Metadata(self.count, call.ingested_at_ms, payload))
        self.calls.append(call)
        self.count += count

    def _grow(self, needed: int) -> None:
        larger = self._slabs.allocate(max(needed, 2 * len(self.slab)))
        larger[: self.size] = self.slab[: self.size]
        self._slabs.give_back(self.slab)
        self.slab = larger


class Outgoing:
    """A batch that takes no more entries. Its bytes are kept until the manifest holds it."""

    __slots__ = (
        "_data",
        "attempts",
        "calls",
        "count",
        "crc",
        "due_at",
        "location",
        "locations",
        "metadata",
        "name",
        "size",
        "slab",
        "uploaded",
    )

    def __init__(self, filled: Filling, due_at: float) -> None:
        self.due_at = due_at
        self.slab = filled.slab
        self._data: bytes | memoryview | None = None
        self.metadata = tuple(filled.metadata)
        self.calls = filled.calls
        self.count = filled.count
        self.size = filled.size
        self.attempts = 0  # to upload it
        self.name = ""  # what it is uploaded as
        self.location = ""  # where it is: the name, once the upload succeeded
        self.locations: set[str] = set()  # every one a manifest write may have carried
        self.uploaded = False
        self.crc: int | None = None  # of the object's bytes

    def data(self, compression: Compression) -> bytes | memoryview:
        """The whole object."""
        if self._data is None:
            footer = batch_footer(self.count, compression)
            if compression == "none":
                end = self.size + len(footer)
                self.slab[self.size : end] = footer
                self._data = self.slab[:end]
            else:
                self._data = compress_entries(self.slab[: self.size]) + footer
            self.crc = crc32(self._data)
        return self._data

    def entries(self) -> list[bytes]:
        """The entries back, for a caller that must save what could not be written."""
        return decode_batch(self.data("none") if self._data is None else self._data)

    def release(self, slabs: Slabs) -> None:
        """Gives the memory back, unless an attempt that failed may still be reading it."""
        if self.attempts == 1:
            self._data = None
            slabs.give_back(self.slab)


class UnflushedBatch(NamedTuple):
    """Entries that `close` could not hand to the store, and where they would have gone."""

    manifest: str
    entries: list[bytes]
    metadata: tuple[Metadata, ...]
