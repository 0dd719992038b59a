"""Says what is wrong with the buffer, exports and sealed history that a power cut left, given the program's marks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock import Draft
from penstock.buffer import Consumer, Producer
from penstock.core.journal.sealed import files as sealed_files
from penstock.core.journal.sealed.sealing import seal_topic


def forget_sealed_files() -> None:
    """Sealed files stay open between reads; here another one may lie in the same place next time."""
    sealed_files._segments.clear()
    sealed_files._blocks.clear()


def problems(folder: Path, noted: list[Any]) -> list[str]:
    if not any("opened" in note for note in noted):
        return []
    forget_sealed_files()
    return [*_buffer(folder, noted), *_exports(folder, noted), *_sealed(folder, noted)]


def _buffer(folder: Path, noted: list[Any]) -> Iterator[str]:
    rows = {note["producing"]: note["rows"] for note in noted if "producing" in note}
    produced = {note["produced"] for note in noted if "produced" in note}
    acking = {label for note in noted if "acking" in note for label in note["acking"]}
    acked = {label for note in noted if "acked" in note for label in note["acked"]}
    through = max((note["sequence"] for note in noted if "acked" in note), default=-1)
    url = f"file://{folder / 'buffer'}"
    with Producer(url, flush_interval=0.001) as producer:
        producer.produce([b"next 0 x"]).result(60)
    found: dict[str, list[int]] = defaultdict(list)
    sequences = []
    with Consumer(url, gc_interval=None, gc_grace=0) as consumer:
        while (batch := consumer.next_batch()) is not None:
            sequences.append(batch.sequence)
            for entry in batch.entries:
                label, row, filling = bytes(entry).decode().split(" ")
                found[label].append(int(row))
                if set(filling) != {"x"}:
                    yield f"buffer: an entry of {label} is another"
        consumer.collect_garbage()
        if sequences != list(range(sequences[0], sequences[0] + len(sequences))):
            yield f"buffer: sequences are not contiguous: {sequences}"
        if sequences[0] <= through:
            yield f"buffer: {through} was acknowledged, and {sequences[0]} is there again"
    if found.pop("next", None) != [0]:
        yield "buffer: what was produced next is not there once"
    for label, present in found.items():
        if label not in rows:
            yield f"buffer: {label} was never produced"
        elif present != list(range(rows[label])):
            yield f"buffer: {label} has {len(present)} of {rows[label]} entries, or in another order"
    if lost := produced - acking - set(found):
        yield f"buffer: acknowledged, not consumed, and gone: {sorted(lost)}"
    if back := acked & set(found):
        yield f"buffer: consumed and back: {sorted(back)}"


def _exports(folder: Path, noted: list[Any]) -> Iterator[str]:
    for name, format in (("lines", "jsonl"), ("parts", "parquet")):
        wanted = max((note[name] for note in noted if name in note), default=0)
        if wanted:
            yield from _copy(folder / name, wanted)
        with penstock.open("memory:") as journal:  # and whatever there is, an export goes on from it
            grown = 20 + max((note["exporting"] for note in noted if "exporting" in note), default=0)
            journal.topic("t").append_many([Draft("k", number) for number in range(grown)])
            journal._core.id = next(note["source"] for note in noted if "source" in note)  # that one was in memory
            journal.export(folder / name, topics=["t"], format=format)  # type: ignore[arg-type]
            yield from _copy(folder / name, grown)
    latest: dict[str, int] = {}
    for note in noted:
        if "one" in note:
            latest[note["one"]] = max(latest.get(note["one"], 0), note["latest"])
    for ending, wanted in latest.items():
        path = folder / f"one.{ending}"
        if ending == "csv":
            lines = path.read_bytes().count(b"\n") if path.exists() else 0
            if lines < wanted + 1:
                yield f"{path.name} has {lines} lines of {wanted + 1}"
        else:
            yield from _copy(path, wanted)


def _copy(path: Path, wanted: int) -> Iterator[str]:
    with penstock.open("memory:") as copy:
        copy.import_(path, topics=["t"])
        seqs = [event.seq for event in copy.topic("t").read()]
        if len(seqs) < wanted or seqs != list(range(1, len(seqs) + 1)):
            yield f"{path.name} was acknowledged with {wanted} events, and has {len(seqs)}"


def _sealed(folder: Path, noted: list[Any]) -> Iterator[str]:
    scheme = next(note["scheme"] for note in noted if "scheme" in note)
    stored = max(note["stored"] for note in noted if "stored" in note)
    sealed = max((note["sealed"] for note in noted if "sealed" in note), default=0)
    with penstock.open(f"{scheme}:{folder / 'store'}") as journal:
        topic = journal.topic("t")
        for again in ("", " after the next seal"):
            seqs = [event.seq for event in topic.read()]
            if len(seqs) < stored or seqs != list(range(1, len(seqs) + 1)):
                yield f"sealed: {stored} were acknowledged, {len(seqs)} are there{again}"
            if [number for number, count in Counter(seqs).items() if count > 1]:
                yield f"sealed: events are there twice{again}"
            if not (report := topic.verify()).ok:
                yield f"sealed: {report}{again}"
            if not again:
                seal_topic(journal._core, "t", lake=str(folder / "lake"), through=len(seqs))
        if sealed > len(seqs):
            yield f"sealed: {sealed} were sealed, {len(seqs)} are there"
    table = next(note["table"] for note in noted if "table" in note)
    if table is not None and (listed := _listed(folder / "lake", table)) != seqs:
        yield f"sealed: the {table} table has {len(listed)} rows ({len(set(listed))} of them different) of {len(seqs)}"


def _listed(lake: Path, table: str) -> list[int]:
    """The positions that a reader of the table finds, who knows nothing of the journal."""
    if table == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(str(lake / "t")).to_pyarrow_table(columns=["seq"])
    else:
        from iceberg_tables import iceberg_table

        rows = iceberg_table(lake, "t").scan(selected_fields=("seq",)).to_arrow()
    return sorted(rows.column("seq").to_pylist())
