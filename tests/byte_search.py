"""A search for a text in everything that a store keeps: its files byte for byte, and its rows decompressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from penstock.core.journal.blocks import COMPRESSED_MARK, CompressedWire, read_block
from penstock.core.local.backend import LocalJournal
from penstock.errors import Corrupt

END = b"\xff" * 64


def places_with(folder: Path, texts: list[str], journal: LocalJournal | None = None) -> set[str]:
    """Returns the places where one of some texts is found: files below a folder, and rows of an open journal."""
    wanted = [text.encode() for text in texts]
    found = {f"file {path.relative_to(folder)}" for path, data in _files(folder) if any(one in data for one in wanted)}
    if journal is not None:
        with journal.backend.core.engine.read() as snap:
            for key, value in snap.scan(b"", END):
                if any(one in key or one in value or one in _decompressed(value) for one in wanted):
                    found.add(f"row {key[:1].decode('latin-1')} {key.hex()}")
    return found


def _files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path, path.read_bytes()
            if path.suffix == ".parquet":
                rows = pq.read_table(path, partitioning=None).to_pylist()
                yield path, msgspec.json.encode(rows, enc_hook=str)


def _decompressed(value: bytes) -> bytes:
    """Every compressed column of a block; nothing for what is no compressed block."""
    if value[:1] != bytes([COMPRESSED_MARK]):
        return b""
    try:
        wire = read_block(value, "").wire
    except Corrupt:
        return b""
    assert isinstance(wire, CompressedWire)
    return b"".join(msgspec.msgpack.encode(getattr(wire, name)) for name in list(wire.columns))
