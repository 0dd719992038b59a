"""The rocksdb engine after a power cut, a fork, a failed write, and with readers that are never closed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from dead_store import copy_as_it_is
from penstock.engines.rocksdb import RocksdbEngine, cut_torn_end, record_spans
from penstock.errors import Corrupt

END = b"\xff" * 600
State = dict[bytes, bytes]


def state(engine: RocksdbEngine) -> State:
    with engine.read() as snapshot:
        return dict(snapshot.scan(b"", END))


def dead_store(folder: Path, *, synced: int, relaxed: int) -> tuple[Path, Path, list[int], list[State]]:
    """A store whose machine stopped after some commits: its copy, its log, where each commit ends, the states."""
    engine = RocksdbEngine(str(folder / "live"))
    (log,) = (folder / "live").glob("[0-9]*.log")
    ends, states = [log.stat().st_size], [state(engine)]
    for number in range(synced + relaxed):
        with engine.write(sync=number < synced) as tx:
            tx.put(b"k%d" % number, bytes([number + 1]) * 3000)
        ends.append(log.stat().st_size)
        states.append(state(engine))
    copy_as_it_is(folder / "live", folder / "dead")
    engine.close()
    return folder / "dead", folder / "dead" / log.name, ends, states


def damaged(dead: Path, log: Path, at: int) -> Path:
    """A copy of the dead store in which a few bytes of the log never reached the disk."""
    after = dead.with_name("after")
    shutil.rmtree(after, ignore_errors=True)
    shutil.copytree(dead, after)
    data = bytearray(log.read_bytes())
    data[at : at + 64] = bytes(64)
    (after / log.name).write_bytes(data)
    return after


def test_a_page_lost_among_unsynced_commits_comes_back_as_the_commit_before_it(tmp_path: Path) -> None:
    dead, log, ends, states = dead_store(tmp_path, synced=4, relaxed=8)
    for lost in range(4, 12):
        after = damaged(dead, log, ends[lost] + 100)
        engine = RocksdbEngine(str(after))
        assert state(engine) == states[lost]
        with engine.write() as tx:
            tx.put(b"next", b"1")
        engine.close()
        engine = RocksdbEngine(str(after))
        assert state(engine) == {**states[lost], b"next": b"1"}
        engine.close()


def test_damage_to_a_commit_that_a_later_one_calls_synced_is_corrupt_and_nothing_is_changed(tmp_path: Path) -> None:
    dead, log, ends, _ = dead_store(tmp_path, synced=6, relaxed=2)
    for lost in range(5):  # of the last synced one nothing tells that it was on disk
        after = damaged(dead, log, ends[lost] + 100)
        before = (after / log.name).read_bytes()
        with pytest.raises(Corrupt, match="restore a backup"):
            RocksdbEngine(str(after))
        assert (after / log.name).read_bytes() == before


def test_a_changed_length_or_type_in_the_log_is_corrupt_and_opening_comes_to_an_end(tmp_path: Path) -> None:
    """Behind a changed length RocksDB finds no record; of a type of logs that are used again it waits for the end."""
    dead, log, ends, _ = dead_store(tmp_path, synced=6, relaxed=2)
    whole = log.read_bytes()
    for lost in range(5):
        for at, change in ((4, 1), (5, 0x80), (6, 4), (6, 1)):
            changed = bytearray(whole)
            changed[ends[lost] + at] ^= change
            log.write_bytes(changed)
            with pytest.raises(Corrupt, match="restore a backup"):
                RocksdbEngine(str(dead))
            assert log.read_bytes() == changed


def test_the_log_of_another_store_in_a_value_vouches_for_nothing(tmp_path: Path) -> None:
    _, foreign, _, _ = dead_store(tmp_path / "other", synced=9, relaxed=0)
    engine = RocksdbEngine(str(tmp_path / "live"))
    with engine.write(sync=False) as tx:
        tx.put(b"kept", foreign.read_bytes()[:30_000])
    before = state(engine)
    with engine.write(sync=False) as tx:
        tx.put(b"lost", b"x" * 100)
    copy_as_it_is(tmp_path / "live", tmp_path / "dead")
    engine.close()
    (log,) = (tmp_path / "dead").glob("[0-9]*.log")
    data = log.read_bytes()
    log.write_bytes(data[:-20] + bytes(20))
    engine = RocksdbEngine(str(tmp_path / "dead"))
    assert state(engine) == before
    engine.close()


def test_a_torn_end_of_the_manifest_is_cut_only_while_the_log_it_would_replace_is_there(tmp_path: Path) -> None:
    dead, log, _, states = dead_store(tmp_path, synced=3, relaxed=0)
    manifest = dead / (dead / "CURRENT").read_text().strip()
    manifest.write_bytes(manifest.read_bytes() + b"\x01\x02\x03\x04\x20\x00\x01" + bytes(32))
    without_log = tmp_path / "without"
    shutil.copytree(dead, without_log)
    (without_log / log.name).unlink()
    assert not cut_torn_end(without_log)
    with pytest.raises(Corrupt):
        RocksdbEngine(str(without_log))
    engine = RocksdbEngine(str(dead))
    assert state(engine) == states[-1]
    engine.close()


def test_a_manifest_torn_after_the_store_was_opened_again_costs_nothing(tmp_path: Path) -> None:
    """A power cut during a flush leaves zeros for its record; before that the log has what the flush was to replace."""
    for number in range(3):
        engine = RocksdbEngine(str(tmp_path / "live"))
        with engine.write() as tx:
            tx.put(b"k%d" % number, b"value")
        before = state(engine)
        copy_as_it_is(tmp_path / "live", tmp_path / f"dead{number}")
        engine.close()
        dead = tmp_path / f"dead{number}"
        manifest = dead / (dead / "CURRENT").read_text().strip()
        manifest.write_bytes(manifest.read_bytes() + bytes(598))
        without_log = tmp_path / f"without{number}"
        shutil.copytree(dead, without_log)
        for log in without_log.glob("[0-9]*.log"):
            log.rename(log.with_name("999999.log"))  # a younger log than the one that is needed
        with pytest.raises(Corrupt, match="restore a backup"):
            RocksdbEngine(str(without_log))
        engine = RocksdbEngine(str(dead))
        assert state(engine) == before
        engine.close()


def test_a_changed_type_in_the_manifest_is_told_and_opening_comes_to_an_end(tmp_path: Path) -> None:
    dead, _, _, _ = dead_store(tmp_path, synced=3, relaxed=0)
    manifest = dead / (dead / "CURRENT").read_text().strip()
    whole = manifest.read_bytes()
    for at, _, _ in record_spans(whole):
        changed = bytearray(whole)
        changed[at + 6] ^= 4
        manifest.write_bytes(changed)
        with pytest.raises(Corrupt, match="restore a backup"):
            RocksdbEngine(str(dead))


def test_a_changed_length_in_the_manifest_is_corrupt_and_no_file_is_removed(tmp_path: Path) -> None:
    """RocksDB takes a record that is longer than its manifest for one that was cut off, and forgets what it names."""
    engine = RocksdbEngine(str(tmp_path / "store"))
    with engine.write() as tx:
        tx.put(b"key", b"value")
    engine.close()
    manifest = tmp_path / "store" / (tmp_path / "store" / "CURRENT").read_text().strip()
    whole, files = manifest.read_bytes(), sorted(path.name for path in (tmp_path / "store").glob("*.sst"))
    assert files
    at, refused = 0, 0
    while at + 7 <= len(whole):
        length = int.from_bytes(whole[at + 4 : at + 6], "little")
        manifest.write_bytes(whole[: at + 5] + bytes([whole[at + 5] ^ 0xFF]) + whole[at + 6 :])
        if at + 7 + length < len(whole):
            with pytest.raises(Corrupt):
                RocksdbEngine(str(tmp_path / "store"))
            refused += 1
            assert sorted(path.name for path in (tmp_path / "store").glob("*.sst")) == files
        else:  # the last one says nothing new, and is like one that was cut off
            engine = RocksdbEngine(str(tmp_path / "store"))
            assert state(engine) == {b"key": b"value"}
            engine.close()
        at += 7 + length
    assert refused > 4


FORK = """
import os, sys
import penstock
journal = penstock.open(sys.argv[1])
journal.topic("t").append("parent")
snapshot = journal._engine.read()
scan = snapshot.scan(b"", b"\\xff")
next(scan)
child = os.fork()
if child == 0:
    try:
        journal.topic("t").append("child")
    except penstock.errors.Closed as error:
        print("used:", error, flush=True)
    try:
        penstock.open(sys.argv[2])
    except penstock.errors.ConfigError as error:
        print("opened:", error, flush=True)
    sys.exit(7)  # in good order, so that everything inherited is let go of
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
scan.close()
snapshot.close()
journal.topic("t").append("parent")
assert journal.topic("t").latest == 2
journal.close()
"""


@pytest.mark.parametrize("again", ["store", "another"])
def test_a_forked_child_is_told_and_ends(tmp_path: Path, again: str) -> None:
    command = [sys.executable, "-c", FORK, f"rocksdb:{tmp_path / 'store'}", f"rocksdb:{tmp_path / again}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "open the store again in the child" in done.stdout
    assert "RocksDB's threads do not survive a fork" in done.stdout


def test_a_reader_that_is_never_closed_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    program = (
        "import os, sys, penstock\n"
        "reader = penstock.open(sys.argv[1], read_only=True)\n"
        "assert reader.topic('t').latest == 1\n"
        "os._exit(0)\n"
    )
    import penstock

    with penstock.open(f"rocksdb:{tmp_path / 'store'}") as journal:
        journal.topic("t").append("one")
        command = [sys.executable, "-c", program, f"rocksdb:{tmp_path / 'store'}"]
        subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}, check=True, timeout=60)
        assert list(folder.iterdir()) == []
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        with penstock.open(f"rocksdb:{tmp_path / 'store'}", read_only=True) as reader:
            for number in range(2, 5):
                journal.topic("t").append("more")
                journal.maintain()
                assert reader.topic("t").latest == number
        assert list(folder.iterdir()) == []


NO_DESCRIPTORS = """
import os, resource, sys
import penstock
from penstock.errors import OutcomeUnknown, StorageError

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
journal = penstock.open(sys.argv[1])
topic, kept, taken, refused = journal.topic("t"), [], [], []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for number in range(1000):  # until RocksDB begins another log
    try:
        kept.append(topic.append("k", "x" * 400_000).seq)
    except StorageError as error:
        refused.append(error)
        if len(refused) == 3:
            break
assert [type(error) for error in refused] == [OutcomeUnknown, StorageError, StorageError], refused
assert [error.retryable for error in refused] == [False, True, True], refused
assert all("too many files open" in str(error) for error in refused), refused
for descriptor in taken:
    os.close(descriptor)
kept.append(topic.append("k", "after").seq)
assert set(kept) <= {event.seq for event in topic.read()}
journal.close()
with penstock.open(sys.argv[1]) as journal:
    assert set(kept) <= {event.seq for event in journal.topic("t").read()} and journal.topic("t").verify().ok
"""


def test_after_too_many_open_files_the_same_journal_goes_on_when_there_are_fewer(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NO_DESCRIPTORS, f"rocksdb:{tmp_path / 'store'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not tell who has which lock")
def test_closing_ends_when_the_reads_of_other_threads_have_left_the_database(tmp_path: Path) -> None:
    """Else the files of a store that is opened again are still being exchanged, and look damaged."""
    engine = RocksdbEngine(str(tmp_path / "store"))
    with engine.write() as tx:
        tx.put(b"a", b"1")
    reading = [engine._db.iter()]  # what a thread in the middle of a scan has
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    reading.clear()
    closing.join(60)
    assert not closing.is_alive()
    again = RocksdbEngine(str(tmp_path / "store"))
    with again.read() as snapshot:
        assert snapshot.get(b"a") == b"1"
    again.close()
