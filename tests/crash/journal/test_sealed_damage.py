"""A changed bit of sealed history is named when its events are read: Parquet itself finds only some of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import penstock
from penstock.api import local
from penstock.core.journal.sealed import files as sealed_files
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.errors import Corrupt


def test_every_changed_bit_of_sealed_events_is_corrupt_for_a_reader(tmp_path: Path) -> None:
    rng = random.Random(1)
    with penstock.open("memory:") as journal:
        topic = journal.topic("orders")
        for number in range(50):
            topic.append("placed", {"total": number, "note": rng.randbytes(20).hex()}, key=str(number % 3))
        seal_topic(local(journal, "a test")._core, "orders", lake=str(tmp_path), through=40)
        (path,) = tmp_path.rglob("*.parquet")
        whole = path.read_bytes()
        footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        for at in range(4, footer, 17):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            sealed_files._segments.clear()
            sealed_files._blocks.clear()
            with pytest.raises(Corrupt, match=path.name):
                list(topic.read())
        path.write_bytes(whole)
        sealed_files._segments.clear()
        assert len(list(topic.read())) == 50
