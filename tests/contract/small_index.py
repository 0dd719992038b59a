"""An entity index that builds runs after a few events, so that short tests go through all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from penstock.core.journal.index import indexer, runs

SIZES = [
    (indexer, "INDEX_RUN_EVENTS", 16),
    (indexer, "INDEX_FAN_IN", 3),
    (indexer, "INDEX_STEP_BYTES", 1500),
    (runs, "INDEX_CHUNK_BYTES", 600),
    (runs, "INDEX_LARGE_CHUNK_BYTES", 1500),
    (runs, "STEP_ROWS", 40),
    (runs, "WINDOW_ROWS", 60),
    (indexer, "_READ_CHUNKS", 2),
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
