"""Export and import: whole journals to files and back, the same positions, ids, times and causes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from journals import Place, eventually, on, only, payloads, seqs

import penstock
from penstock import Draft, Journal, ManualClock, Topic
from penstock.core.entity import copying
from penstock.core.journal.catalog import load_record, load_state
from penstock.errors import ConfigError, Corrupt, FenceActive

Reopen = Callable[[Journal], Journal]
FORMATS = ["jsonl", "parquet"]


@pytest.fixture
def other() -> Iterator[Journal]:
    with penstock.open("memory:") as journal:
        yield journal


def fill(journal: Journal) -> None:
    orders, audit = journal.topic("orders"), journal.topic("audit")
    audit.configure(verified=True)
    cause = None
    for number in range(60):
        cause = orders.append(
            "odd" if number % 2 else "even",
            {"n": number, "text": "line\nbreak ü"} if number % 3 else b"\xff\x00bytes",
            key=f"k{number % 4}" if number % 5 else None,
            scope="north" if number % 7 == 0 else None,
            headers={"trace": str(number), "b": "c"} if number % 4 == 0 else None,
            occurred_at=datetime(2020, 1, 1, tzinfo=UTC) if number % 9 == 0 else None,
            cause=cause if number % 6 else None,
        )
        audit.append("seen", number, key="a", cause=cause)


def everything(journal: Journal) -> dict[str, Any]:
    return {
        name: (
            [{**event.as_dict(), "raw": event.raw} for event in journal.topic(name).read()],
            journal.topic(name).latest,
            journal.topic(name).oldest,
            len(journal.topic(name)),
            journal.topic(name).settings,
        )
        for name in journal.topics()
    }


def test_a_copy_of_an_empty_journal_is_empty(journal: Journal, other: Journal, tmp_path: Path) -> None:
    assert journal.export(tmp_path / "copy").topics == 0
    assert other.import_(tmp_path / "copy").topics == 0


@pytest.mark.parametrize("format", FORMATS)
def test_running_either_again_changes_nothing_and_goes_on(
    journal: Journal, other: Journal, tmp_path: Path, format: Any, reopen: Reopen
) -> None:
    fill(journal)
    journal.export(tmp_path / "copy", format=format)
    assert journal.export(tmp_path / "copy", format=format).events == 0
    other.import_(tmp_path / "copy")
    assert other.import_(tmp_path / "copy").imported == 0
    journal = reopen(journal)
    journal.topic("orders").append("more", key="k1")
    journal.topic("new").append("first")
    assert journal.export(tmp_path / "copy", format=format).events == 2
    again = other.import_(tmp_path / "copy")
    assert (again.imported, again.present) == (2, 120)
    assert everything(other) == everything(journal)
    receipt = other.topic("orders").append("own")
    assert receipt.seq == 62 and receipt.id > list(journal.topic("orders").read())[-1].id


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_goes_on_with_a_topic_made_anew(
    journal: Journal, other: Journal, tmp_path: Path, format: Any, reopen: Reopen
) -> None:
    fill(journal)
    copied = everything(journal)["orders"][0]
    journal.export(tmp_path / "copy", format=format)
    journal.topic("orders").append("never exported")
    journal.drop_topic("orders", force=True)
    journal.topic("orders").append_many([penstock.Draft("made anew", number) for number in range(40)])
    journal = reopen(journal)
    assert journal.export(tmp_path / "copy", format=format).events == 40
    other.import_(tmp_path / "copy")
    assert everything(other)["orders"][0] == copied + everything(journal)["orders"][0], "what was exported stays"
    assert len(other.topic("orders")) == 100 and other.topic("orders").latest == journal.topic("orders").latest == 101


@pytest.mark.parametrize("format", FORMATS)
def test_an_import_into_a_name_whose_topic_was_dropped_says_that_it_starts_over(
    journal: Journal, tmp_path: Path, format: Any
) -> None:
    fill(journal)
    copied = everything(journal)
    journal.export(tmp_path / "copy", format=format)
    journal.drop_topic("orders", force=True)
    with pytest.raises(ConfigError, match=r"'orders' was dropped at position .*start_over=True"):
        journal.import_(tmp_path / "copy")
    assert "orders" not in journal.topics()
    journal.import_(tmp_path / "copy", start_over=True)
    assert everything(journal) == copied
    journal.drop_topic("orders", force=True)
    journal.topic("orders").append("made anew")
    with pytest.raises(ConfigError, match=r"begins after .*drop this one and start over"):
        journal.import_(tmp_path / "copy", start_over=True)


@on("memory")
@pytest.mark.parametrize("format", FORMATS)
def test_an_export_of_another_journal_is_not_gone_on_with(
    journal: Journal, other: Journal, tmp_path: Path, format: Any
) -> None:
    journal.topic("orders").append("placed")
    other.topic("orders").append_many([penstock.Draft("placed"), penstock.Draft("placed")])
    journal.export(tmp_path / "copy", format=format)
    with pytest.raises(ConfigError, match="is of another journal: export to an empty folder"):
        other.export(tmp_path / "copy", format=format)


@on("memory")
@pytest.mark.parametrize("format", FORMATS)
def test_an_interrupted_export_is_finished(
    journal: Journal, other: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    """A run that was interrupted left a part of which the manifest does not know, or a half of one."""
    monkeypatch.setattr(copying, "_PART_EVENTS", 16)
    topic, place = journal.topic("orders"), tmp_path / "copy"
    for number in range(30):
        topic.append("e", number)
    journal.export(place, format=format)
    manifest = (place / "export.json").read_bytes()
    fill(journal)
    journal.export(place, format=format)
    whole = {path.name: path.read_bytes() for path in (place / "orders").iterdir()}
    assert len(whole) > 3
    (place / "orders" / ".partial").write_bytes(b"half")
    (place / "export.json").write_bytes(manifest)
    assert other.import_(place).topics == 1 and other.topic("orders").latest == 30
    journal.export(place, format=format)
    assert {path.name: path.read_bytes() for path in (place / "orders").iterdir()} == whole
    other.import_(place)
    assert everything(other) == everything(journal)


@on("memory")
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_an_export_that_was_cut_or_changed_is_corrupt_and_not_gone_on_with(
    journal: Journal, other: Journal, tmp_path: Path, format: Any
) -> None:
    fill(journal)
    journal.export(tmp_path / "copy", format=format)
    (file,) = (tmp_path / "copy" / "orders").iterdir()
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    for data in (whole[:-1], whole[:10], b"", bytes(changed), None):
        file.unlink() if data is None else file.write_bytes(data)
        for use in (lambda: other.import_(tmp_path / "copy"), lambda: journal.export(tmp_path / "copy", format=format)):
            with pytest.raises(Corrupt) as caught:
                use()
            assert caught.value.file == str(file)
    file.write_bytes(whole)
    assert "orders" not in other.topics() or other.topic("orders").latest == 0
    other.import_(tmp_path / "copy")
    assert everything(other) == everything(journal)


@pytest.mark.parametrize("format", FORMATS)
def test_a_copy_ends_where_its_topic_ended_whose_newest_events_were_compacted(
    journal: Journal, other: Journal, tmp_path: Path, format: Any
) -> None:
    for exported_before in (0, 4):
        name = f"orders-{exported_before}"
        topic = journal.topic(name)
        topic.append_many([Draft("e", number, key="a") for number in range(7)])
        if exported_before:
            journal.export(tmp_path / name, format=format, topics=[name])
            topic.append_many([Draft("e", number, key="a") for number in range(2)])
        topic.compact(topic.latest)
        journal.export(tmp_path / name, format=format, topics=[name])
        for _ in range(2):  # the second finds everything there
            other.import_(tmp_path / name)
        copy = other.topic(name)
        assert copy.latest == topic.latest and len(copy) == (7 if exported_before else 0)
        assert copy.append("e", key="a").seq == topic.append("e", key="a").seq
        assert [event.seq for event in copy.read(key="a")] == [event.seq for event in copy.read()]
        assert copy.verify().ok and len(copy) == (8 if exported_before else 1)


@on("memory")
def test_topics_can_be_chosen_and_progress_is_told(journal: Journal, other: Journal, tmp_path: Path) -> None:
    fill(journal)
    told: list[tuple[int, int]] = []
    journal.export(tmp_path / "copy", topics=["orders", "nothing"], progress=lambda *step: told.append(step))
    assert told[-1] == (60, 60)
    told.clear()
    other.import_(tmp_path / "copy", progress=lambda *step: told.append(step))
    assert told[-1] == (60, 60) and other.topics() == ["orders"]
    with pytest.raises(ConfigError, match="audit"):
        other.import_(tmp_path / "copy", topics=["audit"])


@on("memory")
def test_another_history_is_not_mixed_in(journal: Journal, other: Journal, tmp_path: Path) -> None:
    fill(journal)
    journal.export(tmp_path / "copy")
    other.topic("orders").append("own")
    before = everything(other)
    with pytest.raises(ConfigError, match=r"other events.*position 1"):
        other.import_(tmp_path / "copy", topics=["orders"])
    assert everything(other) == before


@on("memory")
def test_an_import_during_a_fence_is_refused(journal: Journal, other: Journal, tmp_path: Path) -> None:
    fill(journal)
    journal.export(tmp_path / "copy")
    with other.fence(), pytest.raises(FenceActive):
        other.import_(tmp_path / "copy")
    other.import_(tmp_path / "copy")


@on("memory")
def test_what_is_no_export_is_refused(journal: Journal, other: Journal, tmp_path: Path) -> None:
    fill(journal)
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        journal.export(tmp_path / "file")
    with pytest.raises(ConfigError, match="not empty"):
        journal.export(tmp_path / "full")
    with pytest.raises(ConfigError, match="csv"):
        journal.export(tmp_path / "copy", format="csv")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no export"):
        other.import_(tmp_path / "full")
    journal.export(tmp_path / "copy")
    with pytest.raises(ConfigError, match="as jsonl"):
        journal.export(tmp_path / "copy", format="parquet")
    manifest = tmp_path / "copy" / "export.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"penstock": 4', '"penstock": 9'))
    with pytest.raises(ConfigError, match="format 9"):
        other.import_(tmp_path / "copy")
    manifest.write_text(text.replace('"through": ', '"through": 1'))
    with pytest.raises(Corrupt, match="checksum"):
        other.import_(tmp_path / "copy")
    manifest.write_text("{")
    with pytest.raises(ConfigError, match="manifest"):
        other.import_(tmp_path / "copy")


@on("memory")
@pytest.mark.parametrize(
    "broken", [b"{}\n", b"not json\n", b'{"seq":61,"topic":"orders"}\n', b'{"seq": "x"}\n', b"\xff\n"]
)
def test_a_broken_line_is_named_and_what_came_before_is_kept(
    journal: Journal, other: Journal, tmp_path: Path, broken: bytes
) -> None:
    fill(journal)
    journal.export(tmp_path / "orders.jsonl", topics=["orders"])
    with (tmp_path / "orders.jsonl").open("ab") as file:
        file.write(broken)
    with pytest.raises(ConfigError, match="line 61"):
        other.import_(tmp_path / "orders.jsonl", topics=["orders"])


@on("memory")
def test_an_export_of_a_version_with_other_settings_is_imported(
    journal: Journal, other: Journal, tmp_path: Path
) -> None:
    fill(journal)
    journal.export(tmp_path / "copy")
    place = tmp_path / "copy" / "export.json"
    manifest = json.loads(place.read_text())
    manifest["topics"]["audit"]["settings"]["chained"] = True
    manifest["check"] = 0
    manifest["check"] = zlib.crc32(json.dumps(manifest, separators=(",", ":")).encode())
    place.write_text(json.dumps(manifest, indent=2))
    assert other.import_(tmp_path / "copy").imported == 120
    manifest["topics"]["audit"]["settings"]["chained"] = False
    place.write_text(json.dumps(manifest, indent=2))
    with pytest.raises(Corrupt, match="checksum"):
        other.import_(tmp_path / "copy")


# ── one topic, one file ──────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("ending", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("name", ["orders", "audit"])
def test_a_topics_file_brings_every_event_as_it_was(
    journal: Journal, other: Journal, tmp_path: Path, ending: str, name: str
) -> None:
    fill(journal)
    told: list[tuple[int, int]] = []
    file = tmp_path / f"{name}.{ending}"
    report = journal.export(file, topics=[name], progress=lambda done, total: told.append((done, total)))
    assert (report.topics, report.events) == (1, 60) and told[-1] == (60, 60)
    other.topic(name).configure(verified=journal.topic(name).settings.verified)
    assert other.import_(file, topics=[name]).imported == 60
    assert everything(other)[name][0] == everything(journal)[name][0]
    assert other.import_(file, topics=[name]).present == 60
    copied = other.import_(file, topics=["copy"])
    assert copied.imported == 60
    assert [event.id for event in other.topic("copy").read()] == [event.id for event in journal.topic(name).read()]


def test_a_file_goes_on_where_the_topic_ends(journal: Journal, other: Journal, tmp_path: Path) -> None:
    for number in range(10):
        journal.topic("t").append("k", number)
    journal.export(tmp_path / "t.jsonl", topics=["t"])
    other.import_(tmp_path / "t.jsonl", topics=["t"])
    journal.topic("t").append("k", 10)
    journal.export(tmp_path / "t.jsonl", topics=["t"])
    again = other.import_(tmp_path / "t.jsonl", topics=["t"])
    assert (again.imported, again.present) == (1, 10)
    other.topic("t").append("k", "mine")
    journal.topic("t").append("k", 11)
    journal.export(tmp_path / "t.jsonl", topics=["t"])
    with pytest.raises(ConfigError, match="holds other events"):
        other.import_(tmp_path / "t.jsonl", topics=["t"])
    assert [event.payload for event in other.topic("t").read()] == [*range(11), "mine"]


def test_what_a_file_cannot_be_is_said(journal: Journal, tmp_path: Path) -> None:
    fill(journal)
    with pytest.raises(ConfigError, match="one topic's file, and 2 topics"):
        journal.export(tmp_path / "all.jsonl")
    with pytest.raises(ConfigError, match="jsonl, parquet, arrow, csv"):
        journal.export(tmp_path / "t.jsonl", topics=["orders"], format="xml")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no topic 'ordres'"):
        journal.export(tmp_path / "t.jsonl", topics=["ordres"])
    assert list(tmp_path.glob("*.json*")) == []
    journal.export(tmp_path / "orders.csv", topics=["orders"])
    with pytest.raises(ConfigError, match="CSV does not say"):
        journal.import_(tmp_path / "orders.csv", topics=["copy"])
    with pytest.raises(ConfigError, match="name the one topic"):
        journal.import_(tmp_path / "orders.csv")
    assert "copy" not in journal.topics()


@pytest.mark.parametrize("format", FORMATS)
def test_every_name_of_a_topic_can_be_exported(other: Journal, tmp_path: Path, format: Any) -> None:
    names = ["t" * 255, "t" * 254 + "u", "t" * 250, "t" * 249, "export.json", "export.json.partial"]
    with penstock.open("memory:") as journal:
        for number, name in enumerate(names):
            journal.topic(name).append("k", number)
        journal.export(tmp_path / "out", format=format)
        assert journal.export(tmp_path / "out", format=format).events == 0
        other.import_(tmp_path / "out")
        assert everything(other) == everything(journal)


WRONG_ROWS: dict[str, tuple[Callable[[list[dict[str, Any]]], object], str]] = {
    "positions that go back": (lambda rows: rows.reverse(), "do not increase"),
    "a position twice": (lambda rows: rows[1].update(seq=rows[0]["seq"]), "do not increase"),
    "an id twice": (lambda rows: rows[1].update(id=rows[0]["id"]), "do not increase"),
    "an id of another time": (lambda rows: rows[2].update(recorded_at="2001-01-01T00:00:00Z"), "than its id says"),
    "no position": (lambda rows: rows[0].update(seq=-5), "seq must be a position"),
    "a position beyond all": (lambda rows: rows[2].update(seq=1 << 63), "beyond the last possible position"),
    "a time that no date says": (lambda rows: rows[1].update(occurred_at="9999-12-31T23:59:59-12:00"), "years 1 to"),
    "a header without a name": (lambda rows: rows[1].update(headers={"": "v"}), "headers must map"),
}


@on("memory")
@pytest.mark.parametrize("there", [False, True])
def test_a_topic_without_events_takes_the_settings_of_its_copy(
    journal: Journal, clock: ManualClock, tmp_path: Path, there: bool
) -> None:
    source = journal.topic("t")
    source.configure(max_age=100)
    source.append("k", 1)
    journal.export(tmp_path / "copy", topics=["t"])
    target = tmp_path / "target.db"
    with penstock.open(target, clock=clock) as other:
        if there:
            other.topic("t").configure(max_events=5)
        other.import_(tmp_path / "copy")
        assert other.topic("t").settings == source.settings and len(other.topic("t")) == 1
    with penstock.open(target, clock=clock) as other:
        clock.advance(131)
        eventually(lambda: not any(other._engine.read().scan(b"b", b"c")), "it goes though nobody appends")


@pytest.mark.parametrize("what", WRONG_ROWS)
def test_rows_that_no_export_wrote_are_refused_and_nothing_is_kept(tmp_path: Path, what: str) -> None:
    change, message = WRONG_ROWS[what]
    path = tmp_path / "one.jsonl"
    with penstock.open("memory:") as journal, penstock.open("memory:") as target:
        journal.topic("t").append_many([penstock.Draft("k", number) for number in range(3)])
        journal.export(path, topics=["t"])
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        change(rows)
        path.write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(ConfigError, match=message):
            target.import_(path, topics=["t"])
        assert len(target.topic("t")) == 0


def test_a_parquet_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "one.parquet"
    with penstock.open("memory:") as journal, penstock.open("memory:") as target:
        journal.topic("t").append("k", 1)
        journal.export(path, topics=["t"])
        table = pq.read_table(path)
        pq.write_table(table.set_column(table.schema.get_field_index("seq"), "seq", pa.array(["one"])), path)
        with pytest.raises(ConfigError, match="seq must be a position"):
            target.import_(path, topics=["t"])


def test_a_copy_of_a_trimmed_topic_lacks_nothing_else(journal: Journal, other: Journal, tmp_path: Path) -> None:
    """It is not taken for one that was compacted by key, in which positions may be missing anywhere."""
    journal.topic("t").append_many([Draft("k", number) for number in range(10)])
    journal.topic("t").compact(3, force=True)
    journal.export(tmp_path / "copy", topics=["t"])
    other.import_(tmp_path / "copy")
    assert [event.seq for event in other.topic("t").read()] == list(range(4, 11))
    core: Any = other._core  # type: ignore[attr-defined]
    with core.engine.read() as snap:
        record = load_record(snap, "t")
        assert record is not None
        state = load_state(snap, record.topic_id, "t")
    assert (state.trimmed, state.removed, state.compacted) == (3, 3, 0)


def interrupt_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """Ends an import after some commits, as a Ctrl-C does."""
    add = copying._Import._add
    left = batches

    def then(self: copying._Import, rows: Any) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        add(self, rows)

    monkeypatch.setattr(copying._Import, "_add", then)


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_an_import_goes_on_after_compaction(
    journal: Journal, other: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any, everything: bool
) -> None:
    source, copy = other.topic("orders"), journal.topic("orders")
    source.append_many([Draft("placed", number, key="b" if number == 1 else "a") for number in range(1, 41)])
    other.export(tmp_path / "copy", format=format)
    monkeypatch.setattr(copying, "_BATCH_EVENTS", 10)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(patch, 3)
        journal.import_(tmp_path / "copy")
    assert copy.compact(30).removed == 30 if everything else copy.compact_keys() == 28
    report = journal.import_(tmp_path / "copy")
    assert (report.imported, report.present) == (10, 30)
    assert seqs(copy.read()) == ([] if everything else [1, 30]) + list(range(31, 41))


@pytest.mark.parametrize("format", FORMATS)
@only(on_disk=False)
def test_a_copy_of_a_verified_topic_is_verified_and_has_its_root(
    place: Place, topic: Topic, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    monkeypatch.setattr(copying, "_BATCH_EVENTS", 3)
    for number in range(20):
        if number == 10:
            topic.configure(verified=True)
        topic.append("placed", number, key=f"k{number % 2}")
    journal.export(tmp_path / "copy", format=format)
    with penstock.open("memory:") as copy:
        assert copy.import_(tmp_path / "copy").imported == 20
        orders = copy.topic("orders")
        report, original = orders.verify(), topic.verify()
        assert report.root is not None and original.root is not None and report.root.hash == original.root.hash
        assert (original.unhashed, original.events, report.unhashed, report.events) == (10, 10, 0, 20)
        assert payloads(orders.read()) == list(range(20))
        orders.append("placed", 20, key="k0")
        assert orders.verify().events == 21


@only(on_disk=False)
def test_an_event_changed_on_its_way_to_a_copy_shows_in_the_root(
    place: Place, topic: Topic, journal: Journal, tmp_path: Path
) -> None:
    topic.configure(verified=True)
    topic.append_many([Draft("placed", number, key=f"k{number}") for number in range(5)])
    file = tmp_path / "orders.jsonl"
    journal.export(file, topics=["orders"])
    *others, last = [json.loads(line) for line in file.read_text().splitlines()]
    last["payload"] = 40
    file.write_text("\n".join(map(json.dumps, [*others, last])))
    with penstock.open("memory:") as copy:
        copy.topic("orders").configure(verified=True)
        copy.import_(file, topics=["orders"])
        here, there = topic.verify().root, copy.topic("orders").verify().root
        assert here is not None and there is not None
        assert (here.through, here.hash == there.hash) == (there.through, False)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "arrow"])
@only(on_disk=False)
def test_a_file_leaves_a_topics_settings_as_they_are(
    place: Place, topic: Topic, journal: Journal, tmp_path: Path, ending: str
) -> None:
    topic.append_many([Draft("placed", number, key="a") for number in range(5)])
    file = tmp_path / f"orders.{ending}"
    journal.export(file, topics=["orders"])
    with penstock.open("memory:") as copy:
        orders = copy.topic("orders")
        settings = orders.configure(max_events=1000, dedup_window=None, verified=True)
        assert copy.import_(file, topics=["orders"]).imported == 5
        assert orders.settings == settings and payloads(orders.read()) == list(range(5))
        orders.append("placed", 5, key="a")
        report = orders.verify()
        assert report.ok and (report.unhashed, report.events) == (0, 6)
