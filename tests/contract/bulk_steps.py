"""Batches of a few events that are large ones: they are staged, published in steps and merged."""

from __future__ import annotations

import pytest

from penstock.core.journal import bulk
from penstock.transfer import publishing


def publish_in_steps(monkeypatch: pytest.MonkeyPatch, step_bytes: int = 10) -> None:
    for module, name, value in (
        (bulk, "INLINE_BYTES", 0),
        (bulk, "MERGED_BYTES", 1),
        (publishing, "INLINE_BYTES", 0),
        (publishing, "STEP_BYTES", step_bytes),
        (publishing, "_PAUSE", 0),
    ):
        monkeypatch.setattr(module, name, value)
