"""The tree against the vectors of Certificate Transparency, and paths against roots."""

from __future__ import annotations

import pytest

from penstock.core.entity.proof import EMPTY_SEGMENT, SEGMENT, follow, path_to, root_of
from penstock.core.journal.summaries import leaf_hash

LEAVES = [
    b"",
    b"\x00",
    b"\x10",
    b"\x20\x21",
    b"\x30\x31",
    b"\x40\x41\x42\x43",
    bytes(range(0x50, 0x58)),
    bytes(range(0x60, 0x70)),
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


@pytest.mark.parametrize("size", range(9))
def test_roots_are_those_of_certificate_transparency(size: int) -> None:
    assert root_of([leaf_hash(leaf) for leaf in LEAVES[:size]]).hex() == ROOTS[size]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 21, 64, 65])
def test_every_path_leads_to_the_root_and_to_no_other(size: int) -> None:
    nodes = [leaf_hash(bytes([at])) for at in range(size)]
    for index in range(size):
        path = path_to(nodes, index)
        assert follow(nodes[index], index, size, path) == root_of(nodes)
        assert follow(nodes[index], index, size, [*path, nodes[0]]) is None
        if path:
            assert follow(nodes[index], index, size, path[:-1]) is None
            assert follow(nodes[index], index ^ 1, size, path) != root_of(nodes)


def test_a_tree_of_segments_is_the_tree_of_their_leaves() -> None:
    leaves = [leaf_hash(at.to_bytes(4)) for at in range(3 * SEGMENT + 7)]
    segments = [root_of(leaves[at : at + SEGMENT]) for at in range(0, len(leaves), SEGMENT)]
    assert root_of(segments) == root_of(leaves)
    assert len(EMPTY_SEGMENT) == 32 and EMPTY_SEGMENT not in segments
