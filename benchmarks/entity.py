"""Event sourcing: appending to an entity, reading one out of many, folding a long one, verifying a topic.

    python -m benchmarks entity             # with ten million events; half an hour
    python -m benchmarks entity quick       # with one million; a few minutes

Rates are ratios, measured next to each other in this run, medians of several rounds. Raw is the machine's own rate of
100-byte write+fdatasync. The peer is the SQLite recorder of the eventsourcing library, with its own defaults; it holds a
tenth of the events when entities are read (filling it takes it longer than everything else here together), which is in
its favour. Payloads are about 120 bytes; entities have 100 events each. Entities are read as soon as the last event is
appended, and when the journal has come to rest by itself; the store of 10 thousand had a `maintain()`, because its
events would otherwise all be indexed in memory, which no store of ten million's are.
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import penstock
from benchmarks.harness import Table, raw_rate
from penstock import Draft, Journal, Projection, on
from penstock.core.entity.states import drop_states

PAYLOAD = {"amount": 1, "note": "x" * 90}
ROUNDS = 7
PER_ENTITY = 100


def took(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def typical(work: Callable[[], Any], times: int) -> float:
    return statistics.median(took(work) for _ in range(times))


class Peer:
    """The eventsourcing library's recorder, spoken to as its own application layer does."""

    def __init__(self, folder: Path) -> None:
        from eventsourcing.persistence import StoredEvent
        from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

        self._event = StoredEvent
        self._state = msgspec.json.encode(PAYLOAD)
        self.recorder = SQLiteApplicationRecorder(SQLiteDatastore(str(folder / "peer.db")))
        self.recorder.create_table()

    def append(self, entity: uuid.UUID, first: int, count: int) -> None:
        events = [self._event(entity, first + at, "e", self._state) for at in range(count)]
        self.recorder.insert_events(events)

    def read(self, entity: uuid.UUID) -> int:
        return len(self.recorder.select_events(entity))

    def fill(self, events: int) -> list[uuid.UUID]:
        """Fills it as the journal is filled: a thousand entities at a time, in turns."""
        entities = [uuid.uuid4() for _ in range(events // PER_ENTITY)]
        for start in range(0, len(entities), 1000):
            some = entities[start : start + 1000]
            for version in range(1, PER_ENTITY + 1):
                self.recorder.insert_events([self._event(one, version, "e", self._state) for one in some])
        return entities


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def appending(table: Table) -> None:
    with folder() as place, penstock.open(place / "store.db") as journal:
        peer, topic = Peer(place), journal.topic("orders")
        against_raw, against_peer, batches = [], [], []
        for number in range(ROUNDS):
            key, entity = f"order-{number}", uuid.uuid4()
            raw = raw_rate(place, 300)

            def expecting(key: str = key) -> None:
                generation = 0
                for _ in range(300):
                    generation = topic.append("e", PAYLOAD, key=key, expect=generation).seq

            def peering(entity: uuid.UUID = entity) -> None:
                for version in range(1, 301):
                    peer.append(entity, version, 1)

            ours, theirs = 300 / took(expecting), 300 / took(peering)
            against_raw.append(ours / raw)
            against_peer.append(ours / theirs)
            batch = [Draft("e", PAYLOAD, key=f"batch-{number}") for _ in range(PER_ENTITY)]
            mine = typical(lambda batch=batch: topic.append_many(batch), 20)
            other = typical(lambda: peer.append(uuid.uuid4(), 1, PER_ENTITY), 20)
            batches.append(other / mine)
    raw_ratio, peer_ratio = statistics.median(against_raw), statistics.median(against_peer)
    table.row("append with expect=, durable, one thread", f"{raw_ratio:.2f} × raw", "≥ 0.75 × raw", raw_ratio >= 0.75)
    table.row("the same beside the peer", f"{peer_ratio:.2f} × the peer", "≥ 1.5 ×", peer_ratio >= 1.5)
    ratio = statistics.median(batches)
    table.row("append 100 events of one entity in one batch, durable", f"{ratio:.1f} × the peer", "≥ 5 ×", ratio >= 5)


def fill(journal: Journal, events: int, order: str) -> None:
    """Entities of 100 events: "in turns", a thousand live at a time, or "scattered" over the whole topic."""
    topic, entities = journal.topic("orders"), events // PER_ENTITY
    width = entities if order == "scattered" else min(1000, entities)
    chance = random.Random(4)
    for start in range(0, entities, width):
        turn = list(range(start, min(entities, start + width))) * PER_ENTITY
        chance.shuffle(turn)
        for at in range(0, len(turn), 5000):
            topic.append_many([Draft("e", PAYLOAD, key=f"order-{number:08d}") for number in turn[at : at + 5000]])


def rest(journal: Journal, topic: str = "orders") -> None:
    """Waits until the index of a topic has nothing left to merge."""
    while not journal._core.indexer.at_rest(topic):
        time.sleep(0.1)


def read_entity(journal: Journal, entities: int) -> Callable[[], None]:
    topic, chance = journal.topic("orders"), random.Random(5)

    def read() -> None:
        found = list(topic.read(key=f"order-{chance.randrange(entities):08d}"))
        assert len(found) == PER_ENTITY

    return read


def reading(table: Table, events: int) -> None:
    with folder() as place:
        peer = Peer(place)
        theirs = peer.fill(events // 10)
        chance = random.Random(6)
        for order, size in (("in turns", events // 10), ("scattered", events)):
            what = f"{size / 1_000_000:g} million events, {order}"
            with (
                penstock.open(place / f"{order}-small.db", durability="process") as small,
                penstock.open(place / f"{order}-large.db", durability="process") as large,
            ):
                fill(small, 10_000, order)
                small.maintain()
                filling = took(lambda large=large, size=size, order=order: fill(large, size, order))
                table.row(
                    f"append_many of 5,000 until there are {what}", f"{size / filling / 1000:.0f} thousand a second"
                )
                for state in ("just filled", "settled"):
                    if state == "settled":
                        resting = took(lambda large=large: rest(large))
                        table.row("until its index is settled", f"{resting / filling:.2f} × the time to fill it")
                    reads = [read_entity(small, 100), read_entity(large, size // PER_ENTITY)]
                    reads.append(lambda: peer.read(chance.choice(theirs)))
                    rounds = [[typical(read, 100) for read in reads] for _ in range(ROUNDS)]
                    little, much, other = (statistics.median(times) for times in zip(*rounds, strict=True))
                    wanted = state == "settled"
                    table.row(
                        f"read an entity of 100 events out of {what}, {state}",
                        f"{much / little:.2f} × the time out of 10 thousand ({much * 1e6:.0f} µs)",
                        "≤ 1.5 ×" if wanted else "",
                        much <= 1.5 * little if wanted else None,
                    )
                    table.row(
                        "the same beside the peer",
                        f"{other / much:.1f} × the peer",
                        "≥ 2 ×" if wanted else "",
                        other >= 2 * much if wanted else None,
                    )


class Balance(Projection):
    amount: int = 0
    longest: int = 0

    @on("e")
    def add(self, payload: Any) -> None:
        self.amount += payload["amount"]
        self.longest = max(self.longest, len(payload["note"]))


class Bare:
    amount = 0
    longest = 0


def add(state: Bare, payload: Any) -> None:
    state.amount += payload["amount"]
    state.longest = max(state.longest, len(payload["note"]))


def projecting(table: Table, events: int) -> None:
    with folder() as place, penstock.open(place / "store.db", durability="process") as journal:
        topic = journal.topic("accounts")
        for _ in range(events // 10_000):
            topic.append_many([Draft("e", PAYLOAD, key="one") for _ in range(10_000)])
        journal.maintain()
        raws = [event.raw for event in topic.read(key="one")]
        decode = msgspec.json.Decoder().decode

        def bare() -> None:
            state = Bare()
            for raw in raws:
                add(state, decode(raw))
            assert state.amount == events

        def forget() -> None:
            journal._entities.states.clear()

            def drop(commit: Any) -> None:
                drop_states(commit.tx, 1, Balance.__projection__)

            journal.flush()
            journal._core.run(drop)

        def cold() -> None:
            state = topic.project(Balance, "one")
            assert state is not None and state.amount == events

        ratios, colds = [], []
        for _ in range(ROUNDS):
            base = took(bare)
            forget()
            colds.append(took(cold))
            ratios.append(base / colds[-1])
        ratio = statistics.median(ratios)
        table.row(
            f"project an entity of {events // 1_000_000} million events, cold",
            f"{ratio:.2f} × the bare fold",
            "≥ 0.7 ×",
            ratio >= 0.7,
        )
        journal.flush()
        warm = []
        for _ in range(50):
            topic.append_many([Draft("e", PAYLOAD, key="one") for _ in range(10)])
            journal._entities.states.clear()  # so that the state comes from the store
            warm.append(took(lambda: topic.project(Balance, "one")))
        share = statistics.median(warm[:9]) / statistics.median(colds)
        table.row(
            "the same with its saved state and at least 10 new ones",
            f"1/{1 / share:,.0f} of cold",
            "≤ 1/1,000",
            share <= 0.001,
        )


def verifying(table: Table) -> None:
    with folder() as place, penstock.open(place / "store.db") as journal:
        plain, verified = journal.topic("plain"), journal.topic("verified")
        verified.configure(verified=True)
        batch = [Draft("e", PAYLOAD, key=f"order-{number % 50}") for number in range(1000)]
        ratio = statistics.median(
            took(lambda: plain.append_many(batch)) / took(lambda: verified.append_many(batch))
            for _ in range(10 * ROUNDS)
        )
        table.row("append_many of 1,000 to a verified topic", f"{ratio:.2f} × without", "≥ 0.6 ×", ratio >= 0.6)
        spent = took(lambda: verified.verify())
        table.row("verify()", f"{len(verified) / spent / 1000:.0f} thousand events a second")


def main() -> None:
    quick = "quick" in sys.argv
    table = Table("entity", "Event sourcing", __doc__ or "")
    appending(table)
    verifying(table)
    projecting(table, 1_000_000)
    reading(table, 1_000_000 if quick else 10_000_000)
    table.save()


if __name__ == "__main__":
    main()
