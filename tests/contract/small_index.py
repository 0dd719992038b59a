"""An entity index that builds runs after a few events, so that short tests go through all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from penstock.journal.index import builder, contents, indexer, merge, rows

SIZES = [
    (indexer, "INDEX_RUN_EVENTS", 16),
    (contents, "INDEX_RUN_EVENTS", 16),
    (contents, "INDEX_FAN_IN", 3),
    (contents, "INDEX_STEP_BYTES", 1500),
    (builder, "INDEX_STEP_BYTES", 1500),
    (rows, "INDEX_CHUNK_BYTES", 600),
    (rows, "INDEX_LARGE_CHUNK_BYTES", 1500),
    (rows, "_MARKS", 4),
    (merge, "INDEX_STEP_BYTES", 2000),
    (merge, "_MARKS_STEP", 9),
]


@contextmanager
def small_index() -> Iterator[None]:
    """Shrinks the sizes of the index; what it does stays the same."""
    patches = [patch.object(module, name, size) for module, name, size in SIZES]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()
