"""What a journal in object storage says of its use of the store: requests, bytes and objects by cause."""

from __future__ import annotations

from typing import Any

from object_homes import Home

from buffer.emulator import Emulator
from penstock.observe.collect import gauges


def test_requests_and_bytes_are_counted_by_cause(emulator: Emulator) -> None:
    home = Home(f"{emulator.bucket()}/shop", emulator.options)
    with home.open() as journal:
        before = journal.describe().requests["log"]
        for _ in range(5):
            journal.topic("t").append("k", "x" * 1000)
        after = journal.describe()
        assert 5 <= after.requests["log"]["put"] - before["put"] <= 7  # a relaxed commit may have had one of its own
        assert after.requests["log"]["bytes"] - before["bytes"] > 0
        assert after.requests["lease"]["put"] >= 1 and after.requests["database"]["put"] >= 1
        assert after.objects["log"] >= 5 and after.objects["lease"] >= 1 and after.objects["manifests"] >= 1
        text = gauges(journal.stats()).prometheus_text()
        assert 'penstock_store_requests{cause="log",kind="put"}' in text
        assert 'penstock_store_bytes{cause="log"}' in text
        assert "penstock_store_unstored_seconds 0" in text
    with home.open(read_only=True) as reader:
        assert reader.describe().requests["following"]["head"] >= 1


def test_a_commit_nobody_waited_for_is_unstored_until_the_next_one(folder: Home) -> None:
    with folder.open() as journal:
        engine: Any = journal._engine
        assert engine.unstored_seconds() == 0
        with engine.write(sync=False) as tx:
            tx.put(b"relaxed", b"1")
        with engine.write(sync=False) as tx:
            tx.put(b"relaxed", b"2")
        # Not later than a second after it, SlateDB has put it into the log by itself: what is told is one or the other.
        told = engine.unstored_seconds()
        assert told > 0 or engine._database.status().durable_seq >= engine._newest
        with engine.write() as tx:
            tx.put(b"waited for", b"3")
        assert engine.unstored_seconds() == 0
