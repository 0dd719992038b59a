"""The Merkle tree of RFC 6962 with SHA-256: leaves and nodes are hashed apart, so that neither passes for the other.

Leaf `n` is the event at position `n + 1`. A position whose event was removed before it was ever published has `EMPTY`
in its place. Leaves come in segments of `SEGMENT`: a whole segment is one node of every later tree, so that its hash
alone is enough to prove events of other segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

SEGMENT = 4096
"""Positions in a segment; a power of two."""


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two neighbouring subtrees."""
    return sha256(b"\x01" + left + right).digest()


EMPTY = sha256(b"\x02").digest()
"""Stands for a position without an event."""


def root_of(nodes: Sequence[bytes]) -> bytes:
    """The hash of a tree over nodes of one size, of which the last may be smaller."""
    if not nodes:
        return sha256(b"").digest()
    level = list(nodes)
    while len(level) > 1:
        paired = [node_hash(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            paired.append(level[-1])
        level = paired
    return level[0]


def path_to(nodes: Sequence[bytes], index: int) -> list[bytes]:
    """The hashes that lead from a node to the tree's root, the nearest first."""
    path: list[bytes] = []
    level = list(nodes)
    while len(level) > 1:
        beside = index ^ 1
        if beside < len(level):
            path.append(level[beside])
        paired = [node_hash(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            paired.append(level[-1])
        level, index = paired, index // 2
    return path


def follow(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """The root that a leaf's path leads to in a tree of `size` leaves; None when the path has another length."""
    at, last, found = index, size - 1, leaf
    for beside in path:
        if last == 0:
            return None
        if at % 2 or at == last:
            found = node_hash(beside, found)
            while at % 2 == 0:  # a node without a neighbour is its own parent
                at, last = at // 2, last // 2
        else:
            found = node_hash(found, beside)
        at, last = at // 2, last // 2
    return found if last == 0 else None


EMPTY_SEGMENT = root_of([EMPTY] * SEGMENT)
