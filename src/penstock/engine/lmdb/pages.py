"""What can be checked of an LMDB file before LMDB maps it: its two meta pages, and that it is as long as they say.

LMDB has no checksums and trusts every page it maps: a file that is shorter than its newest meta page says ends the
process with SIGBUS when the missing part is touched. That is found here. Damage inside other pages is not: LMDB may
notice it, give wrong answers, or end the process.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from penstock.errors import ConfigError, Corrupt

META = struct.Struct("<8xHHHHIIQQIHHQQQQQIHHQQQQQQQ")
"""A page's head, then: magic, version, address, map size, the two trees (free pages, data), last page, transaction."""
MAGIC, VERSION = 0xBEEFC0DE, 1
META_FLAG = 0x08
NO_PAGE = (1 << 64) - 1
PAGE_HEAD = 16
NODE = struct.Struct("<HHHH")
BRANCH, LEAF, BIG_VALUE = 1, 2, 1


ATTEMPTS = 100
"""How often a file that changes under the check is looked at again; one that others go on committing to is in use."""


def check_file(folder: Path) -> None:
    """Refuses a data file that LMDB must not map: `Corrupt` for a damaged one, ConfigError for another program's.

    Nothing stops another process from committing meanwhile, and from using pages again that were looked at: what is
    found wrong counts only while the file is as it was before.
    """
    path = folder / "data.mdb"
    for _ in range(ATTEMPTS):
        before = _fingerprint(path)
        try:
            _check(path)
            return
        except Corrupt:
            if _fingerprint(path) == before:
                raise
        time.sleep(0.001)


def _fingerprint(path: Path) -> tuple[bytes, int]:
    """What every commit changes: the meta pages, of whatever size pages are here, and the size of the file."""
    try:
        with path.open("rb") as file:
            return file.read(1 << 17), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return b"", 0


def _check(path: Path) -> None:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return  # LMDB makes it
            first = _meta(file.read(META.size), path, 0)
            page_bytes = first[0]
            file.seek(page_bytes)
            second = _meta(file.read(META.size), path, page_bytes)
            if second[0] != page_bytes:
                raise Corrupt("the two meta pages disagree about the size of a page; restore a backup", file=str(path))
            # The newest one counts; the file may have grown since for the next.
            _, last, roots, _ = max(first, second, key=lambda meta: meta[3])
            for root in roots:
                if root != NO_PAGE and not 2 <= root <= last:
                    raise Corrupt(f"a meta page names page {root} of {last + 1}; restore a backup", file=str(path))
            size = os.fstat(file.fileno()).st_size  # after the meta pages: pages are written before those name them
            if size < (last + 1) * page_bytes:
                _check_reach(file, path, page_bytes, size, last, roots)
    except FileNotFoundError:
        return


def _check_reach(file: BinaryIO, path: Path, page_bytes: int, size: int, last: int, roots: tuple[int, int]) -> None:
    """Walks both trees of a file that is shorter than it might be: its last pages may be free and never written."""
    waiting = [root for root in roots if root != NO_PAGE]
    seen: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number in seen or not 2 <= number <= last or (number + 1) * page_bytes > size:
            raise Corrupt(
                f"the file has {size} bytes and page {number} of {page_bytes} bytes is in use: it was cut off or is "
                "damaged; restore a backup",
                file=str(path),
                offset=size,
            )
        seen.add(number)
        file.seek(number * page_bytes)
        waiting += _pages_below(file.read(page_bytes), page_bytes)


def _pages_below(page: bytes, page_bytes: int) -> Iterator[int]:
    """The pages that a page of a tree names; of a value that fills several, the last one."""
    flags, lower = struct.unpack_from("<HH", page, 10)
    if not flags & (BRANCH | LEAF):
        return
    for at in struct.unpack_from(f"<{max(0, min(lower, page_bytes) - PAGE_HEAD) // 2}H", page, PAGE_HEAD):
        if at + NODE.size > page_bytes:
            continue
        low, high, node_flags, key_bytes = NODE.unpack_from(page, at)
        if flags & BRANCH:
            yield low | high << 16 | node_flags << 32
        elif node_flags & BIG_VALUE and at + NODE.size + key_bytes + 8 <= page_bytes:
            (first,) = struct.unpack_from("<Q", page, at + NODE.size + key_bytes)
            yield first + (PAGE_HEAD + (low | high << 16) - 1) // page_bytes


def _meta(data: bytes, path: Path, offset: int) -> tuple[int, int, tuple[int, int], int]:
    """The page size, the last page, the roots of the two trees and the transaction of a meta page."""
    if len(data) < META.size:
        raise Corrupt("the file ends inside its meta pages; restore a backup", file=str(path), offset=offset)
    fields = META.unpack(data)
    flags, magic, version = fields[1], fields[4], fields[5]
    page_bytes, free_root, root, last, transaction = fields[8], fields[15], fields[23], fields[24], fields[25]
    if magic != MAGIC:
        if offset == 0:
            raise ConfigError(
                f"{path} is no file that this LMDB reads: another program made it, or its first page is damaged"
            )
        raise Corrupt("the second meta page is damaged; restore a backup", file=str(path), offset=offset)
    if version != VERSION:
        raise ConfigError(f"{path} has LMDB's data format {version}, this version reads {VERSION}")
    if flags & 0xFF != META_FLAG or page_bytes not in (1 << bits for bits in range(9, 17)):
        raise Corrupt("a meta page is damaged; restore a backup", file=str(path), offset=offset)
    return page_bytes, last, (free_root, root), transaction
