"""Batch: the entries of one object, as the consumer hands them over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.buffer.format.batch import DecodedBatch
from penstock.buffer.format.descriptor import Metadata

if TYPE_CHECKING:
    import pyarrow


class Batch:
    """The entries of one object. `entries` is a list made on first use; iterating a batch makes no list at all."""

    __slots__ = ("_block", "_entries", "location", "metadata", "sequence")

    def __init__(self, sequence: int, location: str, metadata: tuple[Metadata, ...], block: DecodedBatch) -> None:
        self.sequence = sequence
        self.location = location
        self.metadata = metadata
        self._block = block
        self._entries: list[bytes] | None = None

    @property
    def entries(self) -> list[bytes]:
        """Every entry, in the order it was produced."""
        if self._entries is None:
            self._entries = self._block.entries()
        return self._entries

    @property
    def size(self) -> int:
        """Bytes of entries, their lengths included, before compression."""
        return self._block.size

    def __len__(self) -> int:
        return self._block.count

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._block) if self._entries is None else iter(self._entries)

    def to_arrow(self) -> pyarrow.Array:
        """The entries as one Arrow binary array, made without a Python object per entry (needs penstock[arrow])."""
        return self._block.to_arrow()

    def metadata_of(self, index: int) -> Metadata | None:
        """The metadata range that covers the entry at `index`, or None when none does."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {self.sequence} has {len(self)} entries, not an entry {index}")
        covering = None
        for each in self.metadata:
            if each.start_index > index:
                break
            covering = each
        return covering

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        mine = (self.sequence, self.location, self.metadata)
        return mine == (other.sequence, other.location, other.metadata) and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Batch(sequence={self.sequence}, location={self.location!r}, entries={len(self)}, size={self.size})"

    def __reduce__(self) -> tuple[object, ...]:
        return Batch, (self.sequence, self.location, self.metadata, self._block)
