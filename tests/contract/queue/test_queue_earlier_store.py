"""A store that an earlier version wrote delivers what that version would have delivered, in the same order."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

import penstock
from contract.queue.earlier_store import answers
from penstock import ManualClock
from penstock.core.queue.inspect import open_view
from penstock.core.queue.queue import LocalQueue
from queue_check import check_queue

STORES = Path(__file__).parent / "earlier"
"""Of each version a store with queues in every state, and its own answers; `earlier_store.py` makes them."""


@pytest.mark.parametrize("version", sorted(path.name for path in STORES.iterdir()))
def test_queues_of_an_earlier_version_deliver_as_they_did(version: str, tmp_path: Path) -> None:
    path, clock = tmp_path / "queues.db", ManualClock()
    with gzip.open(STORES / version / "queues.db.gz") as packed, path.open("wb") as stored:
        shutil.copyfileobj(packed, stored)
    with penstock.open(f"sqlite://{path}", clock=clock) as journal:
        backends = [journal.queue(name)._backend for name in journal.queues()]
        for backend in backends:
            assert isinstance(backend, LocalQueue)
            with open_view(backend) as view:
                assert check_queue(view.snap, view.state) == []
        expected = json.loads((STORES / version / "queues.json").read_text())
        assert json.loads(json.dumps(answers(journal, clock))) == expected
