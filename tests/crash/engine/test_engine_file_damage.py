"""The file engine's data after accidents: torn ends are cut, damage in the middle is reported with its place."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from zlib import crc32

import pytest

from penstock.engines.file import HEAD, START, DataFile, Disk, FileEngine
from penstock.errors import ConfigError, Corrupt

END = b"\xff" * 600
State = dict[bytes, bytes]


def state(engine: FileEngine) -> State:
    with engine.read() as snapshot:
        return dict(snapshot.scan(b"", END))


def make_store(folder: Path, *, relaxed: bool = False) -> tuple[bytes, list[State], list[int]]:
    """A store whose process died: its data file, the state after each commit, and where each record ends."""
    engine = FileEngine(str(folder / "origin"), durability="process" if relaxed else "disk")
    states: list[State] = [{}]
    ends = [START]
    rng = random.Random(5)
    for number in range(6):
        with engine.write() as tx:
            tx.put(b"counter", b"%d" % number)
            tx.put(b"key%d" % number, rng.randbytes(40))
            if number == 3:
                tx.delete(b"key1")
                tx.delete_range(b"key2", b"key3")
        states.append(state(engine))
        ends.append(engine.size())
    data = (folder / "origin" / "data").read_bytes()[: ends[-1]]
    engine.close()
    return data, states, ends


def revive(folder: Path, data: bytes, *, read_only: bool = False) -> FileEngine:
    """Opens a store that consists of a data file and nothing else."""
    place = folder / "revived"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "data").write_bytes(data)
    return FileEngine(str(place), read_only=read_only, durability="process")


@pytest.mark.parametrize("reserved", [0, 4096])
def test_a_file_cut_at_any_byte_comes_back_as_the_commits_before_the_cut(tmp_path: Path, reserved: int) -> None:
    data, states, ends = make_store(tmp_path)

    for cut in range(ends[4], len(data) + 1, 1 if reserved else 4):  # every byte once
        engine = revive(tmp_path, data[:cut] + bytes(reserved))
        whole = max(number for number, end in enumerate(ends) if end <= cut)
        assert state(engine) == states[whole], cut
        with engine.write() as tx:
            tx.put(b"after", b"the cut")
        engine.close()
        engine = FileEngine(str(tmp_path / "revived"), read_only=True)
        assert state(engine) == {**states[whole], b"after": b"the cut"}, cut
        engine.close()


def test_a_reader_of_a_cut_file_sees_the_commits_before_the_cut_and_leaves_the_file_alone(tmp_path: Path) -> None:
    data, states, ends = make_store(tmp_path)

    for cut in range(ends[4], len(data), 7):
        engine = revive(tmp_path, data[:cut], read_only=True)
        assert state(engine) == states[max(number for number, end in enumerate(ends) if end <= cut)]
        engine.close()
        assert (tmp_path / "revived" / "data").read_bytes() == data[:cut]


def flips(data: bytes, begin: int, end: int) -> list[tuple[int, bytes]]:
    rng = random.Random(6)
    return [(at, data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]) for at in range(begin, end)]


def test_a_flipped_bit_before_the_last_commit_is_reported_wherever_it_is(tmp_path: Path) -> None:
    data, states, ends = make_store(tmp_path)

    for at, damaged in flips(data, START, ends[-2])[::3]:  # a field has three bytes or more
        begin = max(end for end in ends if end <= at)
        try:
            engine = revive(tmp_path, damaged)
            found = state(engine)
            engine.close()
        except Corrupt as error:
            assert error.file == str(tmp_path / "revived" / "data")
            assert error.offset is not None and begin <= error.offset <= at, at
        else:
            assert found == states[-1], at
            assert is_dead_value(data, at, states), at


def is_dead_value(data: bytes, at: int, states: list[State]) -> bool:
    """Whether a byte belongs to a value that was overwritten or deleted later: nobody can read it, it may rot."""
    dead = {value for old in states for value in old.values()} - set(states[-1].values())
    return any(data.find(value, max(at - len(value) + 1, 0), at + len(value)) >= 0 for value in dead)


def test_damage_in_a_live_value_is_found_when_it_is_read(tmp_path: Path) -> None:
    data, states, _ = make_store(tmp_path)
    at = data.index(states[-1][b"key4"]) + 5
    engine = revive(tmp_path, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])

    with engine.read() as snapshot, pytest.raises(Corrupt, match="checksum") as caught:
        snapshot.get(b"key4")
    assert caught.value.offset == at - 5
    with engine.write() as tx, pytest.raises(Corrupt):
        list(tx.scan(b"", END))
    with pytest.raises(Corrupt):
        engine.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    engine.close()


def test_a_flipped_bit_in_the_last_commit_loses_at_most_that_commit(tmp_path: Path) -> None:
    data, states, ends = make_store(tmp_path)

    for at, damaged in flips(data, ends[-2], ends[-1]):
        engine = revive(tmp_path, damaged)
        assert state(engine) == states[-2], at
        engine.close()


def test_a_flipped_bit_in_the_header_is_reported(tmp_path: Path) -> None:
    data, _, _ = make_store(tmp_path)

    for _, damaged in flips(data, 0, 40):
        with pytest.raises((Corrupt, ConfigError)):
            revive(tmp_path, damaged)


def test_a_record_that_was_wiped_to_zeros_is_reported(tmp_path: Path) -> None:
    data, _, ends = make_store(tmp_path)
    wiped = data[: ends[2]] + bytes(ends[3] - ends[2]) + data[ends[3] :]

    with pytest.raises(Corrupt) as caught:
        revive(tmp_path, wiped)
    assert caught.value.offset == ends[2]
    with pytest.raises(Corrupt):
        revive(tmp_path, wiped, read_only=True)


def test_damage_and_a_torn_end_together_are_still_damage(tmp_path: Path) -> None:
    data, _, ends = make_store(tmp_path)
    at = ends[4] + HEAD.size + 2
    damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 : ends[5]] + data[ends[5] : -3]

    with pytest.raises(Corrupt) as caught:
        revive(tmp_path, damaged)
    assert caught.value.offset == ends[4]


def test_without_syncs_a_hole_left_by_a_power_cut_is_a_torn_end_not_corruption(tmp_path: Path) -> None:
    data, states, ends = make_store(tmp_path, relaxed=True)

    for number in range(1, 6):
        holed = data[: ends[number]] + bytes(ends[number + 1] - ends[number]) + data[ends[number + 1] :]
        engine = revive(tmp_path, holed)
        assert state(engine) == states[number]
        with engine.write() as tx:
            tx.put(b"after", b"it")
        engine.close()
        engine = FileEngine(str(tmp_path / "revived"))
        assert state(engine) == {**states[number], b"after": b"it"}
        engine.close()


def test_records_behind_a_torn_one_do_not_come_back_when_a_new_one_fills_its_place(tmp_path: Path) -> None:
    engine = FileEngine(str(tmp_path / "origin"), durability="process")
    ends = [engine.size()]
    for number in range(3):
        with engine.write() as tx:
            tx.put(b"key%d" % number, b"old")
        ends.append(engine.size())
    data = (tmp_path / "origin" / "data").read_bytes()[: ends[3]]
    engine.close()
    revived = revive(tmp_path, data[: ends[1]] + bytes(ends[2] - ends[1]) + data[ends[2] :])
    with revived.write() as tx:
        tx.put(b"key9", b"new")
    assert revived.size() == ends[2]
    left = (tmp_path / "revived" / "data").read_bytes()
    revived.close()

    engine = revive(tmp_path, left)
    assert state(engine) == {b"key0": b"old", b"key9": b"new"}
    engine.close()


def test_after_a_clean_close_a_shorter_file_is_reported(tmp_path: Path) -> None:
    make_store(tmp_path)
    data = tmp_path / "origin" / "data"
    data.write_bytes(data.read_bytes()[:-1])

    with pytest.raises(Corrupt, match="fewer"):
        FileEngine(str(tmp_path / "origin"))


def test_a_missing_damaged_or_foreign_index_is_made_again(tmp_path: Path) -> None:
    _, states, _ = make_store(tmp_path)
    index = tmp_path / "origin" / "index"
    good = index.read_bytes()

    for bad in (None, b"", good[:50], good[:-1], b"x" * len(good), good[:-1] + bytes([good[-1] ^ 1])):
        if bad is None:
            index.unlink()
        else:
            index.write_bytes(bad)
        engine = FileEngine(str(tmp_path / "origin"))
        assert state(engine) == states[-1]
        engine.close()
        assert index.stat().st_size == len(good)


def test_an_index_that_is_older_than_the_data_is_caught_up(tmp_path: Path) -> None:
    _, states, _ = make_store(tmp_path)
    old = (tmp_path / "origin" / "index").read_bytes()
    engine = FileEngine(str(tmp_path / "origin"))
    with engine.write() as tx:
        tx.put(b"newer", b"1")
    engine.close()
    (tmp_path / "origin" / "index").write_bytes(old)

    engine = FileEngine(str(tmp_path / "origin"))
    assert state(engine) == {**states[-1], b"newer": b"1"}
    engine.close()


def test_a_store_kept_as_a_value_of_a_store_does_not_confuse_recovery(tmp_path: Path) -> None:
    data, _, _ = make_store(tmp_path)
    engine = FileEngine(str(tmp_path / "outer"))
    with engine.write() as tx:
        tx.put(b"first", b"1")
    before = engine.size()
    with engine.write() as tx:
        tx.put(b"store", data)
    own = (tmp_path / "outer" / "data").read_bytes()[: engine.size()]
    with engine.write() as tx:
        tx.put(b"itself", own)
    inner = (tmp_path / "outer" / "data").read_bytes()[: engine.size()]
    engine.close()

    for cut in (before + 60, before + 700, len(own) - 10, len(own) + 100, len(inner) - 1):
        revived = revive(tmp_path, inner[:cut])
        assert set(state(revived)) == ({b"first", b"store"} if cut > len(own) else {b"first"})
        revived.close()


def test_files_of_a_compaction_that_was_cut_short_are_removed(tmp_path: Path) -> None:
    _, states, _ = make_store(tmp_path)
    (tmp_path / "origin" / "data.new").write_bytes(b"half a copy")
    (tmp_path / "origin" / "index.new").write_bytes(b"half an index")

    engine = FileEngine(str(tmp_path / "origin"))
    assert state(engine) == states[-1]
    assert sorted(path.name for path in (tmp_path / "origin").iterdir()) == ["data", "index", "lock"]
    engine.close()


def test_a_store_of_a_later_format_says_so(tmp_path: Path) -> None:
    make_store(tmp_path)
    path = tmp_path / "origin" / "data"
    data = bytearray(path.read_bytes())
    data[12] = 9
    data[8:12] = crc32(bytes(data[12:40])).to_bytes(4, "little")
    path.write_bytes(data)

    with pytest.raises(ConfigError, match="format 9"):
        FileEngine(str(tmp_path / "origin"))
    with pytest.raises(ConfigError, match="format 9"):
        DataFile(Disk(), path, writable=False)
