"""What is damaged: a small one of everything penstock writes, with a function that reads all of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import penstock
from penstock import Draft, Journal
from penstock.buffer import Consumer, Producer
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.core.journal.sealed.tables import TableRequest
from torture.files.check import forget_sealed_files

State = dict[str, Any]
"""What was read, by name. Names that begin with `event` are events; the others are what is kept about them."""


class Subject(NamedTuple):
    """Something stored in a folder."""

    make: Callable[[Path], list[State]]
    """Makes it; the states that it went through, the last one last."""
    read: Callable[[Path], State]
    hidden: bool = False
    """A changed key may hide events, up to the end of their topic, without an error; the guarantees say so by name."""
    silent: tuple[str, ...] = ()
    """Parts of the state that damage may change without an error; the guarantees say so by name."""
    tail: bool = False
    """Damage to the end may look like a write that was cut off: then an earlier state is read."""
    skip: tuple[str, ...] = ()
    """Files that hold nothing: locks, and indexes in memory of other processes."""


def _fill(journal: Journal, states: list[State]) -> None:
    topic, queue = journal.topic("t"), journal.queue("q")
    topic.configure(verified=True)
    for number in range(3):
        topic.append_many([Draft("k", f"payload {number} {row}", key=str(row), headers={"h": "v"}) for row in range(3)])
        states.append(_state(journal))
    topic.append("late", {"n": 1}, dedup="d")
    states.append(_state(journal))
    queue.push_many(["one", "two", "three"])
    states.append(_state(journal))
    delivery = queue.take()
    assert delivery is not None
    delivery.ack()
    states.append(_state(journal))
    topic.commit("reader", 5)
    states.append(_state(journal))
    with journal.transaction() as tx:
        tx.set_mark("m", 7)
        tx.append("t", "last", "in a transaction")
    states.append(_state(journal))


def _state(journal: Journal) -> State:
    topic = journal.topic("t")
    state: State = {}
    state["events"] = [(e.seq, e.id, e.kind, e.payload, e.key, dict(e.headers), e.recorded_at) for e in topic.read()]
    state["events back"] = [e.seq for e in topic.read(reverse=True)]
    state["events of a key"] = [e.seq for e in topic.read(key="1")]
    state["events of the queue"] = [(e.seq, e.payload) for e in journal.topic("q").read()]
    state["topics"] = (journal.topics(), topic.settings, topic.latest, topic.oldest, len(topic))
    state["cursors"] = topic.cursors()
    state["marks"] = journal.mark("m")
    state["queue"] = [e.payload for e in journal.queue("q")] if "q" in journal.queues() else None
    state["verified"] = topic.verify().ok
    return state


def _store(scheme: str, *, closed: bool = True, **options: Any) -> Subject:
    """A store that was closed, or one whose process was killed: then its log was not merged into it."""

    def make(folder: Path) -> list[State]:
        states: list[State] = []
        with penstock.open(f"{scheme}:{folder / 'store'}") as journal:
            _fill(journal, states)
            if not closed:
                shutil.copytree(folder, folder.parent / "killed")
        if not closed:
            shutil.rmtree(folder)
            (folder.parent / "killed").rename(folder)
        return states

    def read(folder: Path) -> State:
        with penstock.open(f"{scheme}:{folder / 'store'}") as journal:
            return _state(journal)

    return Subject(make, read, **options)


def _make_lake(folder: Path) -> list[State]:
    with penstock.open(f"file:{folder / 'store'}") as journal:
        journal.topic("t").append_many([Draft("k", f"payload {row}", key=str(row % 2)) for row in range(40)])
        seal_topic(journal._core, "t", lake=str(folder / "lake"), through=30)
    return [_read_lake(folder)]


def _make_parted_lake(folder: Path) -> list[State]:
    """One Parquet file for each value of a column, of the same positions."""
    table = TableRequest(columns="region STRING", partition_by="region")
    with penstock.open(f"file:{folder / 'store'}") as journal:
        journal.topic("t").append_many([Draft("k", {"region": "ab"[row % 2], "n": row}) for row in range(20)])
        seal_topic(journal._core, "t", lake=str(folder / "lake"), through=16, table=table)
    return [_read_lake(folder)]


def _read_lake(folder: Path) -> State:
    forget_sealed_files()
    with penstock.open(f"file:{folder / 'store'}") as journal:
        topic = journal.topic("t")
        events = [(e.seq, e.id, e.kind, e.payload, e.key, e.recorded_at) for e in topic.read()]
        asked = journal.sql("select seq, id, kind, payload, key, recorded_at from t order by seq").to_pylist()
        return {"events": events, "events of a query": asked, "verified": topic.verify().ok}


def _export(format: Any) -> Subject:
    def make(folder: Path) -> list[State]:
        with penstock.open("memory:") as journal:
            _fill(journal, [])
            journal.export(folder / "export", format=format)
        return [read(folder)]

    def read(folder: Path) -> State:
        with penstock.open("memory:") as journal:
            journal.import_(folder / "export")
            return {
                "events": [(e.seq, e.id, e.payload, e.key, e.recorded_at) for e in journal.topic("t").read()],
                "events of the queue": [(e.seq, e.payload) for e in journal.topic("q").read()],
            }

    return Subject(make, read)


def _make_buffer(folder: Path) -> list[State]:
    with Producer(f"file://{folder / 'buffer'}", compression="zstd") as producer:
        for number in range(3):
            producer.produce([b"entry %d %d" % (number, row) for row in range(4)]).result(30)
    return [_read_buffer(folder)]


def _read_buffer(folder: Path) -> State:
    with Consumer(f"file://{folder / 'buffer'}", gc_interval=None) as consumer:
        found = []
        while (batch := consumer.next_batch()) is not None:
            found.append((batch.sequence, list(batch.entries)))
        return {"events": found}


#: sqlite has no checksums of pages. Events have their own; what is kept about them has not, and a changed
#: key may hide what lies behind it, up to the end of a topic: events are then too few, and never others.
NOT_EVENTS = ("topics", "cursors", "marks", "queue", "events of a key", "verified")
SUBJECTS: dict[str, Subject] = {
    "sqlite": _store("sqlite", hidden=True, silent=NOT_EVENTS, tail=True, skip=("-shm",)),
    "sqlite, killed": _store("sqlite", closed=False, hidden=True, silent=NOT_EVENTS, tail=True, skip=("-shm",)),
    "rocksdb, killed": _store("rocksdb", closed=False, tail=True, skip=("LOCK", "LOG", "LOG.old")),
    "rocksdb": _store("rocksdb", tail=True, skip=("LOCK", "LOG", "LOG.old")),
    "file": _store("file", tail=True, skip=("lock",)),
    "lake": Subject(_make_lake, _read_lake, tail=True, skip=("lock",)),
    "lake parted by a column": Subject(_make_parted_lake, _read_lake, tail=True, skip=("lock",)),
    "export to JSON Lines": _export("jsonl"),
    "export to Parquet": _export("parquet"),
    "buffer": Subject(_make_buffer, _read_buffer, skip=()),
}
