"""Converts batches to Arrow and back without a Python object for each entry.

A batch stores its entries exactly as Parquet stores a plain byte-array column: length, bytes, length, bytes. The
functions here add a Parquet header and footer of a few bytes to a block, so that Arrow's own reader decodes the block
in place. Arrow's reader checks every length.
"""

from __future__ import annotations

import struct
from typing import Any

from penstock.errors import ConfigError, Corrupt

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as parquet
except ImportError as error:
    raise ConfigError('Arrow arrays need pyarrow and numpy: pip install "penstock[arrow]"') from error


_MAGIC = b"PAR1"
_MAX_BINARY = (1 << 31) - 1
#: Arrow reads the header in one buffer of this size and the rest in one piece, which can then be handed over uncopied.
_HEADER_BUFFER = 1 << 16


def block_to_arrow(block: memoryview, count: int) -> pa.Array:
    """Returns a checked block of `count` entries as one binary array."""
    if count == 0:
        return pa.array([], pa.binary())
    head, tail = _parquet_around(len(block), count)
    source = pa.PythonFile(_Joined(head, block, tail), mode="r")
    try:
        file = parquet.ParquetFile(source, pre_buffer=False, buffer_size=_HEADER_BUFFER)
        column = file.read_row_group(0, use_threads=False).column(0)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"the batch does not hold the {count} entries it counts: {error}") from None
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def arrow_to_block(entries: pa.Array) -> memoryview:
    """Returns entries (binary or string, without nulls) in the form of a batch: each entry after its length."""
    count = len(entries)
    if count == 0:
        return memoryview(b"")
    wide = pa.types.is_large_binary(entries.type) or pa.types.is_large_string(entries.type)
    kind = np.int64 if wide else np.int32
    stored = np.frombuffer(entries.buffers()[1], kind)[entries.offset : entries.offset + count + 1]
    lengths = np.diff(stored).astype("<u4")
    if int(stored[-1] - stored[0]) + 4 * count > _MAX_BINARY:
        raise ConfigError("a batch of more than 2 GiB: give fewer entries")
    offsets = np.arange(0, 4 * count + 4, 4, dtype=np.int32)
    prefixes = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(lengths)])
    # Joining the arrays value by value puts the values one after the other: length, entry, length, entry …
    joined = pc.binary_join_element_wise(prefixes, entries.cast(pa.binary()), pa.scalar(b"", pa.binary()))
    return memoryview(joined.buffers()[2])[: 4 * count + int(stored[-1] - stored[0])]


class _Joined:
    """Three buffers as one file; a read inside one of them copies nothing."""

    closed = False

    def __init__(self, *parts: Any) -> None:
        self._parts = parts
        self._size = sum(map(len, parts))
        self._at = 0

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> Any:
        end = self._size if size < 0 else min(self._size, self._at + size)
        pieces = []
        begin = 0
        for part in self._parts:
            low, high = max(self._at, begin), min(end, begin + len(part))
            if low < high:
                pieces.append(part[low - begin : high - begin])
            begin += len(part)
        self._at = end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        return

    def close(self) -> None:
        return


# ── just enough of Parquet's thrift ──


class _Fields:
    """A thrift struct in the compact protocol, its fields given in order."""

    _I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._last = 0

    def _field(self, number: int, kind: int, value: bytes) -> _Fields:
        self._bytes.append((number - self._last) << 4 | kind)
        self._bytes += value
        self._last = number
        return self

    def i32(self, number: int, value: int) -> _Fields:
        return self._field(number, self._I32, _varint(value << 1))

    def i64(self, number: int, value: int) -> _Fields:
        return self._field(number, self._I64, _varint(value << 1))

    def binary(self, number: int, value: bytes) -> _Fields:
        return self._field(number, self._BINARY, _varint(len(value)) + value)

    def struct(self, number: int, value: _Fields) -> _Fields:
        return self._field(number, self._STRUCT, value.end())

    def list(self, number: int, kind: int, items: list[bytes]) -> _Fields:
        return self._field(number, self._LIST, bytes([len(items) << 4 | kind]) + b"".join(items))

    def end(self) -> bytes:
        return bytes(self._bytes) + b"\0"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _parquet_around(size: int, count: int) -> tuple[bytes, bytes]:
    """Returns the bytes before and after the block in a Parquet file with a single required, plain, uncompressed binary
    column."""
    plain, run_length, byte_array, required, uncompressed, data_page = 0, 3, 6, 0, 0, 0
    page = _Fields().i32(1, count).i32(2, plain).i32(3, run_length).i32(4, run_length)
    header = _Fields().i32(1, data_page).i32(2, size).i32(3, size).struct(5, page).end()
    total = len(header) + size
    root = _Fields().binary(4, b"batch").i32(5, 1).end()
    leaf = _Fields().i32(1, byte_array).i32(3, required).binary(4, b"entry").end()
    column = (
        _Fields()
        .i32(1, byte_array)
        .list(2, _Fields._I32, [_varint(plain << 1)])
        .list(3, _Fields._BINARY, [_varint(5) + b"entry"])
        .i32(4, uncompressed)
        .i64(5, count)
        .i64(6, total)
        .i64(7, total)
        .i64(9, len(_MAGIC))
    )
    chunk = _Fields().i64(2, len(_MAGIC)).struct(3, column).end()
    group = _Fields().list(1, _Fields._STRUCT, [chunk]).i64(2, total).i64(3, count).end()
    footer = (
        _Fields().i32(1, 1).list(2, _Fields._STRUCT, [root, leaf]).i64(3, count).list(4, _Fields._STRUCT, [group]).end()
    )
    return _MAGIC + header, footer + struct.pack("<I", len(footer)) + _MAGIC
