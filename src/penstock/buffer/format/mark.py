"""Marks: which piece of whose work a manifest entry was the end of.

    mark    name (UTF-8) · number (u64) · name length (u16) · magic (4 bytes)

A writer that may have to repeat itself (a Spark query that was killed) gives every append a mark. If it finds a mark
of that name with that number, or a higher one, in the manifest knows that the append was done. The magic comes last, so
that entries without a mark are told apart at a glance.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from penstock.errors import ConfigError

_MAGIC = b"PSmk"
_TAIL = struct.Struct("<QH4s")
MAX_NAME = 512


class Mark(NamedTuple):
    """Whose work it was, and which piece of it; numbers of one name only grow."""

    name: str
    number: int


def encode_mark(mark: Mark) -> bytes:
    """The bytes that follow an entry's last metadata range."""
    name = mark.name.encode()
    if not 0 < len(name) <= MAX_NAME or not 0 <= mark.number < 1 << 64:
        raise ConfigError(f"a mark has a name of 1 to {MAX_NAME} bytes and a number of 64 bits, not {mark!r}")
    return name + _TAIL.pack(mark.number, len(name), _MAGIC)


def may_be_mark(data: Any, end: int) -> bool:
    """Whether what ends there looks like a mark; a metadata payload may by chance look so too."""
    return bytes(data[max(0, end - len(_MAGIC)) : end]) == _MAGIC


def decode_mark(data: Any, begin: int, end: int) -> Mark | None:
    """The mark that fills the bytes from begin to end exactly, or None when something else does."""
    if end - begin <= _TAIL.size:
        return None
    number, length, magic = _TAIL.unpack_from(data, end - _TAIL.size)
    if magic != _MAGIC or begin + length + _TAIL.size != end:
        return None
    try:
        return Mark(str(bytes(data[begin : begin + length]), "utf-8"), number)
    except UnicodeDecodeError:
        return None
