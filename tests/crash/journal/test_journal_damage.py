"""Damage to stored blocks: always found, named by topic and position, and never read over in silence."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Draft, Journal, Topic
from penstock.core.journal import keys
from penstock.errors import Corrupt, PenstockError

SCHEMES = ("memory", "sqlite", "rocksdb", "file", "slatedb")


@pytest.fixture(params=SCHEMES)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    url = "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'store'}"
    with penstock.open(url) as journal:
        fill(journal.topic("t"))
        yield journal


def fill(topic: Topic) -> None:
    """Five blocks of four events each."""
    for block in range(5):
        topic.append_many(
            [Draft("k", f"payload {block} {row} " + "x" * 50, key=str(row), headers={"h": "v"}) for row in range(4)]
        )


def blocks(journal: Journal) -> list[tuple[bytes, bytes]]:
    with journal._engine.read() as snap:
        return list(snap.scan(keys.BLOCK, keys.prefix_end(keys.BLOCK)))


def store(journal: Journal, **changes: bytes | None) -> None:
    """Overwrites (or removes) blocks by their first position."""
    with journal._engine.write() as tx:
        for name, value in changes.items():
            key = keys.block_key(1, int(name[1:]))
            if value is None:
                tx.delete(key)
            else:
                tx.put(key, value)


READS: dict[str, Callable[[Topic], Any]] = {
    "forward": lambda topic: list(topic.read()),
    "reverse": lambda topic: list(topic.read(reverse=True)),
    "through it": lambda topic: list(topic.read(6, through=11)),
    "up to it": lambda topic: list(topic.read(4, through=10)),
    "by key": lambda topic: list(topic.read(key="1")),
    "by kind": lambda topic: list(topic.read(kind="other")),
    "arrow": lambda topic: list(topic.read_arrow()),
    "get": lambda topic: topic.get(10),
    "subscribe": lambda topic: [topic.subscribe().next(0) for _ in range(20)],
    "compact by key": lambda topic: topic.compact_keys(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_flipped_bit_is_named_by_topic_and_position(journal: Journal, read: Callable[[Topic], Any]) -> None:
    value = blocks(journal)[2][1]
    chance = random.Random(len(value))
    for _ in range(6):
        damaged = bytearray(value)
        damaged[chance.randrange(len(value))] ^= 1 << chance.randrange(8)
        store(journal, p9=bytes(damaged))
        with pytest.raises(Corrupt) as found:
            read(journal.topic("t"))
        assert (found.value.topic, found.value.seq) == ("t", 9) and "t" in str(found.value) and "9" in str(found.value)
    store(journal, p9=value)
    read(journal.topic("t"))


def test_the_rest_of_the_topic_stays_readable(journal: Journal) -> None:
    store(journal, p9=b"nonsense")
    topic = journal.topic("t")
    assert [e.seq for e in topic.read(through=8)] == list(range(1, 9))
    assert [e.seq for e in topic.read(12)] == list(range(13, 21))
    assert [e.seq for e in topic.read(12, reverse=True)] == list(range(20, 12, -1))
    reading = topic.read()
    assert [next(reading).seq for _ in range(8)] == list(range(1, 9))
    with pytest.raises(Corrupt):
        next(reading)
    assert topic.append("k").seq == 21 and topic.compact(12).removed == 12
    assert [e.seq for e in topic.read()] == list(range(13, 22))


def test_a_damaged_last_block_refuses_appends_rather_than_reusing_positions(journal: Journal) -> None:
    topic = journal.topic("t")
    value = bytearray(blocks(journal)[-1][1])
    value[30] ^= 1
    store(journal, p17=bytes(value))
    journal._core.writer.catalog.forget()  # as after another process has written
    for use in (lambda: topic.append("k"), lambda: topic.latest, lambda: topic.commit("c", 1), lambda: len(topic)):
        with pytest.raises(Corrupt) as found:
            use()
        assert (found.value.topic, found.value.seq) == ("t", 17)
    journal.topic("other").append("k")


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_missing_block_is_no_gap_to_be_read_over(journal: Journal, read: Callable[[Topic], Any]) -> None:
    store(journal, p9=None)
    with pytest.raises(Corrupt, match="missing") as found:
        read(journal.topic("t"))
    assert found.value.topic == "t" and 9 <= (found.value.seq or 0) <= 12


def test_a_missing_first_block_is_found_too(journal: Journal) -> None:
    store(journal, p1=None)
    topic = journal.topic("t")
    for read in (lambda: list(topic.read()), lambda: list(topic.read(reverse=True)), lambda: topic.get(3)):
        with pytest.raises(Corrupt, match="missing"):
            read()
    assert len(list(topic.read(4))) == 16


def test_what_compaction_removed_is_not_missing(journal: Journal) -> None:
    topic = journal.topic("t")
    topic.compact_keys()
    topic.compact(18)
    topic.append("k", key="0")
    topic.compact_keys()
    assert [e.seq for e in topic.read()] == [19, 20, 21]
    assert [e.seq for e in topic.read(reverse=True)] == [21, 20, 19]
    assert topic.get(17) is None and topic.get(3) is None and topic.get(22) is None


def test_blocks_in_each_others_places_are_found(journal: Journal) -> None:
    stored = blocks(journal)
    store(journal, p5=stored[2][1], p9=stored[1][1])
    with pytest.raises(Corrupt) as found:
        list(journal.topic("t").read())
    assert (found.value.topic, found.value.seq) == ("t", 5)


def test_housekeeping_leaves_damage_where_it_is(journal: Journal) -> None:
    value = bytearray(blocks(journal)[2][1])
    value[40] ^= 4
    store(journal, p9=bytes(value))
    with pytest.raises(Corrupt):
        journal.maintain()
    assert dict(blocks(journal))[keys.block_key(1, 9)] == bytes(value)
    with pytest.raises(Corrupt):
        list(journal.topic("t").read())


def test_damaged_records_of_a_topic_are_found(journal: Journal) -> None:
    topic = journal.topic("t")
    topic.compact(2)
    for key in (keys.topic_key("t"), keys.state_key(1)):
        with journal._engine.read() as snap:
            good = snap.get(key)
        assert good is not None
        with journal._engine.write() as tx:
            tx.put(key, b"\xc1")
        with pytest.raises(Corrupt) as found:
            list(topic.read())
        assert found.value.topic == "t"
        with journal._engine.write() as tx:
            tx.put(key, good)
    assert len(list(topic.read())) == 18


# in the files themselves


def stored_file(scheme: str, folder: Path) -> Path:
    if scheme == "sqlite":
        return folder / "store"
    return folder / "store" / "data"


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_a_bit_flipped_on_disk_is_found_and_nothing_is_altered(scheme: str, tmp_path: Path) -> None:
    url, chance = f"{scheme}:{tmp_path / 'store'}", random.Random(scheme)
    with penstock.open(url) as journal:
        topic = journal.topic("t")
        for block in range(20):
            topic.append_many(
                [Draft("k", f"payload {block} {row} " + "y" * chance.randrange(200)) for row in range(40)]
            )
        good = [event.as_dict() for event in topic.read()]
        bodies = [value for _, value in blocks(journal)]
    path = stored_file(scheme, tmp_path)
    content = path.read_bytes()
    # Pages cut blocks into pieces: flip bits in pieces that are found exactly once.
    cuts = [(at, body[cut : cut + 200]) for at, body in enumerate(bodies) for cut in range(0, len(body), 200)]
    pieces = [(content.find(piece), at) for at, piece in cuts if content.count(piece) == 1]
    found_damage = 0
    for start, at in chance.sample(pieces, 10):
        damaged = bytearray(content)
        damaged[start + chance.randrange(200)] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(damaged))
        _forget_side_files(path)
        got: list[dict[str, Any]] = []
        try:
            with penstock.open(url, read_only=True) as journal:
                for event in journal.topic("t").read():
                    got.append(event.as_dict())
        except Corrupt as error:
            found_damage += 1
            assert error.seq in (None, at * 40 + 1)
            if error.seq is not None:
                assert error.topic == "t"
        except PenstockError:
            found_damage += 1
        else:
            assert scheme == "file" and at == len(bodies) - 1, "damage was read over in silence"
        assert got == good[: len(got)], "damage changed what is read"
    assert found_damage >= 5


def _forget_side_files(path: Path) -> None:
    """What an engine keeps beside its data to open faster, or to hold its locks."""
    for name in ("index",):
        (path.parent / name).unlink(missing_ok=True)
