"""What `penstock.core.engine.contract` promises, asked of every engine."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines import KINDS, Kind, Store
from penstock.core.engine.contract import MAX_KEY_BYTES, Engine, Snapshot
from penstock.core.engine.url import open_engine
from penstock.errors import Closed, ConfigError, Locked, PenstockError, ReadOnly
from waiting import DEADLINE

END = b"\xff" * 600


@pytest.fixture(params=KINDS, ids=lambda kind: kind.scheme)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = Store(request.param, tmp_path)
    yield store
    store.close()


@pytest.fixture
def engine(store: Store) -> Engine:
    return store.open()


def kinds(**wanted: bool) -> list[Kind]:
    return [kind for kind in KINDS if all(getattr(kind, name) == value for name, value in wanted.items())]


def only(**wanted: bool) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("store", kinds(**wanted), ids=lambda kind: kind.scheme, indirect=True)


def put(engine: Engine, **items: bytes) -> None:
    with engine.write() as tx:
        for key, value in items.items():
            tx.put(key.encode(), value)


def everything(engine: Engine) -> dict[bytes, bytes]:
    with engine.read() as snapshot:
        return dict(snapshot.scan(b"", END))


def keys(snapshot: Snapshot, start: bytes = b"", stop: bytes = END, *, reverse: bool = False) -> list[bytes]:
    return [key for key, _ in snapshot.scan(start, stop, reverse=reverse)]


# values and keys


def test_a_committed_value_is_read_back(engine: Engine) -> None:
    put(engine, a=b"1")

    with engine.read() as snapshot:
        assert snapshot.get(b"a") == b"1"
        assert snapshot.get(b"b") is None


def test_a_later_put_replaces_the_value(engine: Engine) -> None:
    put(engine, a=b"1")
    put(engine, a=b"22")

    assert everything(engine) == {b"a": b"22"}


def test_an_empty_value_is_a_value(engine: Engine) -> None:
    put(engine, a=b"")

    with engine.read() as snapshot:
        assert snapshot.get(b"a") == b""
        assert list(snapshot.scan(b"", END)) == [(b"a", b"")]


def test_what_is_handed_out_is_bytes(engine: Engine) -> None:
    with engine.write() as tx:
        tx.put(b"a", b"1")
        assert type(tx.get(b"a")) is bytes
    with engine.read() as snapshot:
        assert type(snapshot.get(b"a")) is bytes
        [(key, value)] = snapshot.scan(b"", END)
        assert type(key) is bytes and type(value) is bytes


@pytest.mark.parametrize("length", [0, MAX_KEY_BYTES + 1])
def test_a_key_outside_the_limits_is_refused_and_leaves_no_trace(engine: Engine, length: int) -> None:
    with pytest.raises(ConfigError, match="1 to 500 bytes"), engine.write() as tx:
        tx.put(b"before", b"1")
        tx.put(b"k" * length, b"1")

    assert everything(engine) == {}


def test_no_value_is_under_the_empty_key(engine: Engine) -> None:
    """An engine may keep something of its own there; callers never see it."""
    put(engine, a=b"1")
    with engine.write() as tx:
        assert tx.get(b"") is None
    with engine.read() as snapshot:
        assert snapshot.get(b"") is None and keys(snapshot) == [b"a"]


def test_the_longest_key_is_stored(engine: Engine) -> None:
    longest = b"\xff" * MAX_KEY_BYTES
    with engine.write() as tx:
        tx.put(longest, b"1")

    with engine.read() as snapshot:
        assert snapshot.get(longest) == b"1"
        assert keys(snapshot) == [longest]
        assert keys(snapshot, reverse=True) == [longest]


@pytest.mark.slow
def test_a_value_of_64_mib_is_stored(store: Store) -> None:
    value = random.Random(1).randbytes(64 << 20)
    with store.open().write() as tx:
        tx.put(b"large", value)
        assert tx.get(b"large") == value
    store.close()

    with store.open().read() as snapshot:
        assert snapshot.get(b"large") == value


# order


EDGE_KEYS = [
    b"\x00", b"\x00\x00", b"\x00\xff", b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\x7f", b"\x80",
    b"\xfe\xff", b"\xff", b"\xff\x00", b"\xff\xff", b"\xff" * 499, b"\xff" * 500,
]  # fmt: skip


def test_keys_sort_as_bytes(engine: Engine) -> None:
    shuffled = EDGE_KEYS.copy()
    random.Random(2).shuffle(shuffled)
    with engine.write() as tx:
        for key in shuffled:
            tx.put(key, key)
        assert keys(tx) == sorted(EDGE_KEYS)
        assert keys(tx, reverse=True) == sorted(EDGE_KEYS, reverse=True)

    with engine.read() as snapshot:
        assert keys(snapshot) == sorted(EDGE_KEYS)
        assert keys(snapshot, reverse=True) == sorted(EDGE_KEYS, reverse=True)


def test_a_scan_includes_its_start_and_excludes_its_stop_in_both_directions(engine: Engine) -> None:
    with engine.write() as tx:
        for key in EDGE_KEYS:
            tx.put(key, b"")
    bounds = [b"", *EDGE_KEYS, b"a\x00\x00", b"c", END]

    with engine.read() as snapshot:
        for start in bounds:
            for stop in bounds:
                expected = sorted(key for key in EDGE_KEYS if start <= key < stop)
                assert keys(snapshot, start, stop) == expected
                assert keys(snapshot, start, stop, reverse=True) == expected[::-1]


def test_a_scan_of_many_keys_can_stop_early(engine: Engine) -> None:
    with engine.write() as tx:
        for number in range(5000):
            tx.put(number.to_bytes(4), b"x" * 50)

    with engine.read() as snapshot:
        forward, backward = snapshot.scan(b"", END), snapshot.scan(b"", END, reverse=True)
        assert [int.from_bytes(next(forward)[0]) for _ in range(3)] == [0, 1, 2]
        assert [int.from_bytes(next(backward)[0]) for _ in range(3)] == [4999, 4998, 4997]


# snapshots


def test_a_snapshot_does_not_move(engine: Engine) -> None:
    put(engine, a=b"1", b=b"2")
    with engine.read() as before:
        put(engine, a=b"new", c=b"3")
        with engine.write() as tx:
            tx.delete(b"b")

        assert dict(before.scan(b"", END)) == {b"a": b"1", b"b": b"2"}
        assert before.get(b"a") == b"1" and before.get(b"c") is None

    assert everything(engine) == {b"a": b"new", b"c": b"3"}


def test_a_scan_under_way_does_not_see_later_commits(engine: Engine) -> None:
    with engine.write() as tx:
        for number in range(2000):
            tx.put(number.to_bytes(4), b"old")

    with engine.read() as snapshot:
        rows = snapshot.scan(b"", END)
        first = next(rows)
        with engine.write() as tx:
            tx.delete_range(b"", END)
            tx.put((500).to_bytes(4), b"new")
        seen = [first, *rows]

    assert len(seen) == 2000
    assert {value for _, value in seen} == {b"old"}


def test_snapshots_of_different_ages_are_kept_apart(engine: Engine) -> None:
    held = []
    for number in range(20):
        put(engine, counter=b"%d" % number)
        held.append(engine.read())

    random.Random(3).shuffle(order := list(range(20)))
    for number in order:
        assert held[number].get(b"counter") == b"%d" % number
        held[number].close()


def test_a_snapshot_does_not_see_a_transaction_under_way(engine: Engine) -> None:
    put(engine, a=b"1")
    with engine.write() as tx:
        tx.put(b"a", b"2")
        tx.put(b"b", b"2")
        with engine.read() as snapshot:
            assert dict(snapshot.scan(b"", END)) == {b"a": b"1"}
        tx.delete(b"a")

    assert everything(engine) == {b"b": b"2"}


def test_a_snapshot_can_be_closed_twice_and_by_another_thread(engine: Engine) -> None:
    put(engine, a=b"1")
    snapshot = engine.read()
    rows = snapshot.scan(b"", END)
    next(rows)

    thread = threading.Thread(daemon=True, target=snapshot.close)
    thread.start()
    thread.join(DEADLINE)

    snapshot.close()
    put(engine, a=b"2")
    assert everything(engine) == {b"a": b"2"}


def test_a_closed_snapshot_refuses_to_read(engine: Engine) -> None:
    put(engine, a=b"1", b=b"2")
    snapshot = engine.read()
    rows = snapshot.scan(b"", END)
    next(rows)
    unstarted = snapshot.scan(b"", END)
    snapshot.close()

    with pytest.raises(Closed):
        snapshot.get(b"a")
    with pytest.raises(Closed):
        list(snapshot.scan(b"", END))
    with pytest.raises(Closed):
        list(rows)
    with pytest.raises(Closed):
        list(unstarted)


@pytest.mark.parametrize("read_only", [False, True])
def test_threads_that_read_while_the_store_is_closed_hear_of_that_and_nothing_else(
    store: Store, read_only: bool
) -> None:
    if read_only and store.kind.scheme == "memory":
        read_only = False  # a store in memory goes with its writer
    first = store.open()
    put(first, a=b"1", b=b"2")
    if read_only:
        first.close()
    told: list[BaseException] = []

    def read(engine: Engine, begun: threading.Barrier) -> None:
        begun.wait(DEADLINE)
        try:
            while True:
                with engine.read() as snapshot:
                    assert snapshot.get(b"a") == b"1" and len(list(snapshot.scan(b"", END))) == 2
                engine.changes()
        except BaseException as error:
            told.append(error)

    rounds = 3 if store.kind.scheme == "slatedb" else 15
    for number in range(rounds):
        engine = store.open(read_only=read_only) if read_only or number else first
        begun = threading.Barrier(4)
        threads = [threading.Thread(target=read, args=(engine, begun)) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait(DEADLINE)
        engine.close()
        for thread in threads:
            thread.join(DEADLINE)
    assert [repr(error) for error in told if not isinstance(error, Closed)] == []
    assert len(told) == 3 * rounds


def test_many_snapshots_may_be_open_and_forgotten(engine: Engine) -> None:
    put(engine, a=b"1")
    held = [engine.read() for _ in range(50)]
    assert all(snapshot.get(b"a") == b"1" for snapshot in held)
    del held
    gc.collect()

    for number in range(200):
        engine.read().get(b"a")
        put(engine, a=b"%d" % number)
    assert everything(engine) == {b"a": b"199"}


# transactions


def test_a_transaction_counts_its_changes_and_not_its_reads(engine: Engine) -> None:
    with engine.write() as tx:
        assert tx.writes == 0
        tx.get(b"a")
        assert list(tx.scan(b"", b"z")) == []
        assert tx.writes == 0
        seen = [0]
        for change in (
            lambda: tx.put(b"a", b"1"),
            lambda: tx.put(b"a", b"1"),
            lambda: tx.delete(b"b"),
            lambda: tx.delete_range(b"c", b"d"),
        ):
            change()
            assert tx.writes > seen[-1]
            seen.append(tx.writes)
    with engine.write() as tx:
        assert tx.writes == 0


def test_a_transaction_reads_its_own_writes(engine: Engine) -> None:
    put(engine, a=b"1", b=b"2", c=b"3", d=b"4")
    with engine.write() as tx:
        tx.put(b"a", b"new")
        tx.delete(b"b")
        tx.put(b"bb", b"between")
        tx.put(b"e", b"last")
        tx.delete(b"missing")

        assert tx.get(b"a") == b"new" and tx.get(b"b") is None and tx.get(b"c") == b"3"
        expected = [(b"a", b"new"), (b"bb", b"between"), (b"c", b"3"), (b"d", b"4"), (b"e", b"last")]
        assert list(tx.scan(b"", END)) == expected
        assert list(tx.scan(b"", END, reverse=True)) == expected[::-1]
        assert list(tx.scan(b"b", b"d")) == expected[1:3]

    assert list(everything(engine).items()) == expected


def test_an_exception_rolls_everything_back(engine: Engine) -> None:
    put(engine, a=b"1", b=b"2")
    with pytest.raises(ZeroDivisionError), engine.write() as tx:
        tx.put(b"a", b"new")
        tx.delete_range(b"", END)
        tx.put(b"c", b"3")
        raise ZeroDivisionError

    assert everything(engine) == {b"a": b"1", b"b": b"2"}
    put(engine, c=b"3")
    assert everything(engine) == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_a_range_is_deleted_and_may_be_written_again(engine: Engine) -> None:
    with engine.write() as tx:
        for number in range(1000):
            tx.put(number.to_bytes(4), b"old")
    with engine.write() as tx:
        tx.put((50).to_bytes(4), b"before the deletion")
        tx.delete_range((10).to_bytes(4), (900).to_bytes(4))
        tx.put((500).to_bytes(4), b"after the deletion")
        tx.delete_range((400).to_bytes(4), (450).to_bytes(4))
        tx.delete_range((899).to_bytes(4), (950).to_bytes(4))
        tx.delete_range((30).to_bytes(4), (20).to_bytes(4))
        expected = [*range(10), 500, *range(950, 1000)]
        assert tx.get((50).to_bytes(4)) is None
        assert [int.from_bytes(key) for key in keys(tx)] == expected
        assert [int.from_bytes(key) for key in keys(tx, reverse=True)] == expected[::-1]

    found = everything(engine)
    assert [int.from_bytes(key) for key in found] == expected
    assert found[(500).to_bytes(4)] == b"after the deletion"


@pytest.mark.parametrize("reverse", [False, True])
def test_keys_behind_a_scan_may_be_changed_inside_a_transaction(engine: Engine, reverse: bool) -> None:
    numbers = range(3000)
    with engine.write() as tx:
        for number in numbers:
            tx.put(number.to_bytes(4), b"old")

    with engine.write() as tx:
        seen = []
        for key, value in tx.scan(b"", END, reverse=reverse):
            seen.append(int.from_bytes(key))
            assert value == b"old"
            if seen[-1] % 3 == 0:
                tx.delete(key)
            elif seen[-1] % 3 == 1:
                tx.put(key, b"new")

    assert seen == (list(reversed(numbers)) if reverse else list(numbers))
    assert everything(engine) == {n.to_bytes(4): b"new" if n % 3 == 1 else b"old" for n in numbers if n % 3}


def test_a_transaction_cannot_be_used_after_its_block(engine: Engine) -> None:
    with engine.write() as tx:
        tx.put(b"a", b"1")
        tx.put(b"b", b"2")
        rows = tx.scan(b"", END)
        next(rows)

    with pytest.raises(Closed):
        tx.put(b"c", b"3")
    with pytest.raises(Closed):
        tx.delete(b"a")
    with pytest.raises(Closed):
        tx.delete_range(b"", END)
    with pytest.raises(Closed):
        tx.get(b"a")
    with pytest.raises(Closed):
        list(rows)
    assert everything(engine) == {b"a": b"1", b"b": b"2"}


def test_an_unfinished_scan_does_not_hold_the_store(engine: Engine) -> None:
    put(engine, **{f"k{number:04}": b"x" * 100 for number in range(1000)})
    unfinished = []
    for number in range(10):
        with engine.write() as tx:
            rows = tx.scan(b"", END)
            next(rows)
            unfinished.append(rows)
            tx.put(b"z", b"%d" % number)

    assert everything(engine)[b"z"] == b"9"


def test_a_write_block_inside_another_of_the_same_thread_is_an_error_not_a_deadlock(engine: Engine) -> None:
    with engine.write() as tx:
        tx.put(b"a", b"1")
        with pytest.raises(PenstockError, match="same thread"), engine.write():
            pass

    assert everything(engine) == {b"a": b"1"}


def test_a_transaction_without_changes_changes_nothing(engine: Engine) -> None:
    put(engine, a=b"1")
    with engine.write():
        pass
    with engine.write() as tx:
        assert tx.get(b"a") == b"1"

    assert everything(engine) == {b"a": b"1"}


def test_a_relaxed_commit_is_visible_at_once_and_survives_closing(store: Store) -> None:
    engine = store.open()
    with engine.write(sync=False) as tx:
        tx.put(b"first", b"1")
    assert everything(engine) == {b"first": b"1"}
    engine.flush()
    engine.close()

    assert everything(store.open()) == {b"first": b"1"}


def test_process_durability_keeps_everything_across_closing(store: Store) -> None:
    engine = store.open(durability="process")
    for number in range(50):
        put(engine, **{f"k{number}": b"x"})
    engine.flush()
    put(engine, last=b"x")
    engine.close()

    assert len(everything(store.open())) == 51


# foreign, changes


def test_the_first_transaction_is_foreign_and_later_ones_are_not(store: Store) -> None:
    engine = store.open()
    with engine.write() as tx:
        assert tx.foreign
    for number in range(5):
        with engine.write() as tx:
            assert not tx.foreign
            tx.put(b"a", b"%d" % number)
    engine.close()

    with store.open().write() as tx:
        assert tx.foreign


def test_a_rolled_back_transaction_does_not_use_foreign_up(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), engine.write() as tx:
        assert tx.foreign
        raise ZeroDivisionError

    with engine.write() as tx:
        assert tx.foreign
    with engine.write() as tx:
        assert not tx.foreign


@only(second_open=True)
def test_a_commit_of_another_engine_object_is_foreign_once(store: Store) -> None:
    one, two = store.open(), store.open()
    put(one, a=b"1")
    put(two, b=b"1")
    with one.write() as tx:
        assert tx.foreign
        assert tx.get(b"b") == b"1"
    with one.write() as tx:
        assert not tx.foreign
        tx.put(b"c", b"1")
    with two.write() as tx:
        assert tx.foreign
    with two.write() as tx:
        assert not tx.foreign


def test_changes_is_another_number_after_every_commit(engine: Engine) -> None:
    seen = [engine.changes()]
    for number in range(20):
        put(engine, a=b"%d" % number)
        seen.append(engine.changes())
        assert engine.changes() == seen[-1]

    assert len(set(seen)) == len(seen)


def test_changes_stays_the_same_while_nothing_is_committed(engine: Engine) -> None:
    put(engine, a=b"1")
    before = engine.changes()
    everything(engine)
    with pytest.raises(ZeroDivisionError), engine.write() as tx:
        tx.put(b"a", b"2")
        raise ZeroDivisionError

    assert engine.changes() == before


# opening, closing, read-only


def test_a_store_is_found_again_after_closing(store: Store) -> None:
    engine = store.open()
    put(engine, a=b"1", b=b"2")
    with engine.write() as tx:
        tx.delete(b"a")
    engine.close()

    assert everything(store.open()) == {b"b": b"2"}


def test_a_closed_engine_refuses_everything_and_closes_twice(engine: Engine) -> None:
    put(engine, a=b"1")
    held = engine.read()
    engine.close()
    engine.close()

    for call in (engine.read, engine.changes, engine.flush, engine.reclaim, engine.size, engine.write):
        with pytest.raises(Closed):
            call()
    with pytest.raises(Closed):
        engine.backup("somewhere")
    with pytest.raises(Closed):
        held.get(b"a")
    with pytest.raises(Closed):
        list(held.scan(b"", END))
    held.close()


def test_closing_waits_for_the_transaction_of_another_thread(engine: Engine) -> None:
    begun, go_on = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            with engine.write() as tx:
                begun.set()
                go_on.wait(DEADLINE)
                tx.put(b"a", b"1")
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(daemon=True, target=write)
    writer.start()
    assert begun.wait(DEADLINE)
    closer = threading.Thread(daemon=True, target=engine.close)
    closer.start()
    go_on.set()
    writer.join(DEADLINE)
    closer.join(DEADLINE)

    assert not failed and not closer.is_alive()
    with pytest.raises(Closed):
        engine.read()


def test_opening_a_missing_store_for_reading_is_an_error_and_makes_nothing(store: Store) -> None:
    with pytest.raises(ConfigError, match="no store"):
        store.open(read_only=True)

    assert list(store.folder.iterdir()) == []


def test_a_store_opened_for_reading_reads_and_refuses_to_write(store: Store) -> None:
    engine = store.open()
    put(engine, a=b"1")
    engine.close()

    reader = store.open(read_only=True)
    assert reader.read_only
    assert everything(reader) == {b"a": b"1"}
    assert reader.size() > 0
    reader.changes()
    with pytest.raises(ReadOnly):
        reader.write()
    with pytest.raises(ReadOnly):
        reader.reclaim()


def test_an_unknown_durability_is_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match="disk"):
        store.open(durability="perhaps")  # type: ignore[arg-type]


@only(on_disk=True)
def test_location_names_the_place(store: Store) -> None:
    assert store.open().location == str(store.folder / "store")


@only(on_disk=True)
def test_a_store_of_another_program_or_engine_is_refused_and_left_alone(store: Store) -> None:
    foreign = store.folder / "store"
    foreign.write_bytes(b"these are somebody's notes, not a store\n" * 500)

    with pytest.raises(ConfigError):
        store.open()
    with pytest.raises(ConfigError):
        store.open(read_only=True)
    assert foreign.read_bytes() == b"these are somebody's notes, not a store\n" * 500


def open_engine_closing(url: str, *, read_only: bool = False) -> _Closing:
    return _Closing(open_engine(url, read_only=read_only))


class _Closing:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __enter__(self) -> Engine:
        return self.engine

    def __exit__(self, *_: object) -> None:
        self.engine.close()


# size, reclaim, backup


def test_size_grows_with_data_and_reclaim_gives_space_back(store: Store, engine: Engine) -> None:
    empty = engine.size()
    rng = random.Random(4)
    for batch in range(20):
        with engine.write() as tx:
            for number in range(20):
                tx.put(f"k{batch:02}{number:02}".encode(), rng.randbytes(10_000))
    full = engine.size()
    with engine.write() as tx:
        tx.delete_range(b"k00", b"k19")
    kept = everything(engine)
    engine.reclaim()

    assert full - empty >= 4_000_000
    assert engine.size() - empty < (full - empty) // (2 if store.kind.shrinks else 1) + (not store.kind.shrinks) * full
    assert everything(engine) == kept
    put(engine, after=b"1")
    assert everything(engine) == {**kept, b"after": b"1"}


def test_reclaim_leaves_open_snapshots_alone(engine: Engine) -> None:
    with engine.write() as tx:
        for number in range(300):
            tx.put(number.to_bytes(4), b"x" * 10_000)
    with engine.read() as snapshot:
        rows = snapshot.scan(b"", END)
        next(rows)
        with engine.write() as tx:
            tx.delete_range(b"", (290).to_bytes(4))
        engine.reclaim()
        put(engine, later=b"1")

        assert len(list(rows)) == 299
        assert snapshot.get((5).to_bytes(4)) == b"x" * 10_000
    assert len(everything(engine)) == 11


def test_a_backup_is_a_store_of_its_own(store: Store) -> None:
    engine = store.open()
    put(engine, a=b"1", b=b"2")
    target, url = store.backup_url()
    engine.backup(target)
    put(engine, c=b"3")

    with open_engine_closing(url) as copy:
        assert everything(copy) == {b"a": b"1", b"b": b"2"}
        put(copy, d=b"4")
    assert everything(engine) == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_a_backup_never_overwrites(store: Store) -> None:
    engine = store.open()
    put(engine, a=b"1")
    target, _ = store.backup_url()
    engine.backup(target)

    with pytest.raises(ConfigError, match="overwrites"):
        engine.backup(target)


def test_a_backup_taken_while_a_thread_writes_is_one_consistent_state(store: Store) -> None:
    engine = store.open(durability="process")
    stop = threading.Event()
    wrote = threading.Event()
    put(engine, one=b"0", two=b"0")

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with engine.write() as tx:
                tx.put(b"one", b"%d" % number)
                tx.put(b"filler%d" % (number % 500), os.urandom(2000))
                tx.put(b"two", b"%d" % number)
            wrote.set()

    thread = threading.Thread(daemon=True, target=write)
    thread.start()
    try:
        target, url = store.backup_url()
        for attempt in range(5):
            wrote.clear()
            assert wrote.wait(DEADLINE)
            engine.backup(f"{target}{attempt}")
    finally:
        stop.set()
        thread.join(DEADLINE)

    for attempt in range(5):
        with open_engine_closing(f"{url}{attempt}") as copy:
            state = everything(copy)
            assert state[b"one"] == state[b"two"] != b"0"


def test_a_store_opened_for_reading_can_be_backed_up(store: Store) -> None:
    engine = store.open()
    put(engine, a=b"1")
    engine.close()
    target, url = store.backup_url()
    store.open(read_only=True).backup(target)

    with open_engine_closing(url) as copy:
        assert everything(copy) == {b"a": b"1"}


# threads


def test_writing_threads_take_turns_and_lose_nothing(store: Store) -> None:
    engine = store.open(durability="process")
    put(engine, counter=b"0")
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(100):
                with engine.write() as tx:
                    value = int(tx.get(b"counter") or b"0")
                    tx.put(b"counter", b"%d" % (value + 1))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(daemon=True, target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)

    assert not failed
    assert everything(engine) == {b"counter": b"400"}


def test_readers_see_whole_transactions_while_others_write(store: Store) -> None:
    engine = store.open(durability="process")
    with engine.write() as tx:
        for number in range(50):
            tx.put(number.to_bytes(2), b"0")
    stop = threading.Event()
    torn: list[object] = []

    def read() -> None:
        try:
            while not stop.is_set():
                with engine.read() as snapshot:
                    values = {value for _, value in snapshot.scan(b"", END)}
                    if len(values) != 1 or snapshot.get(b"\x00\x07") not in values:
                        torn.append(values)
        except BaseException as error:
            torn.append(error)

    readers = [threading.Thread(daemon=True, target=read) for _ in range(3)]
    for thread in readers:
        thread.start()
    for version in range(150):
        with engine.write() as tx:
            for number in range(50):
                tx.put(number.to_bytes(2), b"%d" % version)
    stop.set()
    for thread in readers:
        thread.join(DEADLINE)

    assert not torn


# processes


def run(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0
    return output


COUNT = """
import sys
from penstock.core.engine.url import open_engine
engine = open_engine(sys.argv[1], durability="process")
for _ in range(int(sys.argv[2])):
    with engine.write() as tx:
        tx.put(b"counter", b"%d" % (int(tx.get(b"counter") or b"0") + 1))
engine.close()
"""


@only(shared=True)
def test_two_processes_write_one_store_and_lose_nothing(store: Store) -> None:
    engine = store.open(durability="process")
    before = engine.changes()
    others = [run(COUNT, store.url, "150") for _ in range(2)]
    for _ in range(50):
        with engine.write() as tx:
            tx.put(b"counter", b"%d" % (int(tx.get(b"counter") or b"0") + 1))
    for process in others:
        finish(process)

    assert engine.changes() != before
    with engine.write() as tx:
        assert tx.foreign
        assert tx.get(b"counter") == b"350"
    with engine.write() as tx:
        assert not tx.foreign


OPEN = """
import sys
from penstock.core.engine.url import open_engine
engine = open_engine(sys.argv[1])
with engine.write() as tx:
    tx.put(sys.argv[2].encode(), b"1")
print("open", flush=True)
sys.stdin.readline()
engine.close()
"""


@only(on_disk=True, shared=True)
def test_several_processes_may_make_the_store_at_once(store: Store) -> None:
    makers = [run(OPEN, store.url, f"maker{number}") for number in range(3)]
    for maker in makers:
        finish(maker)

    assert set(everything(store.open())) == {b"maker0", b"maker1", b"maker2"}


@only(on_disk=True, shared=False)
def test_a_store_of_a_one_process_engine_is_locked_while_open(store: Store) -> None:
    holder = run(OPEN, store.url, "a")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"
    try:
        with pytest.raises(Locked):
            store.open()
    finally:
        finish(holder)

    engine = store.open()
    assert everything(engine) == {b"a": b"1"}
    with pytest.raises(Locked):
        store.open()
    assert everything(engine) == {b"a": b"1"}


READ = """
import sys
from penstock.core.engine.url import open_engine
engine = open_engine(sys.argv[1], read_only=True)
END = b"\\xff" * 600
for line in sys.stdin:
    with engine.read() as snapshot:
        rows = list(snapshot.scan(b"", END))
        print(engine.changes(), len(rows), sum(len(value) for _, value in rows), flush=True)
"""


@only(on_disk=True, reads_beside_writer=True)
def test_a_reader_in_another_process_follows_the_writer(store: Store) -> None:
    engine = store.open()
    put(engine, a=b"1")
    reader = run(READ, store.url)
    assert reader.stdin is not None and reader.stdout is not None

    def ask() -> list[int]:
        assert reader.stdin is not None and reader.stdout is not None
        reader.stdin.write("\n")
        reader.stdin.flush()
        return [int(word) for word in reader.stdout.readline().split()]

    first = ask()
    assert first[1:] == [1, 1]
    assert ask() == first
    put(engine, b=b"22", c=b"333")
    second = ask()
    assert second[1:] == [3, 6] and second[0] != first[0]
    with engine.write() as tx:
        tx.delete_range(b"b", b"c")
        tx.put(b"large", b"x" * 1_000_000)
    third = ask()
    assert third[1:] == [3, 1_000_004] and third[0] != second[0]
    with engine.write() as tx:
        tx.delete(b"large")
    engine.reclaim()
    assert ask()[1:] == [2, 4]
    put(engine, last=b"1")
    assert ask()[1:] == [3, 5]
    finish(reader)


BUSY_WRITER = """
import random, sys
import penstock.engines.file as upkeep
from penstock.core.engine.url import open_engine

upkeep.GARBAGE_BYTES = 50_000  # so that the file engine compacts again and again
engine = open_engine(sys.argv[1], durability="process")
rng = random.Random(11)
for number in range(1, int(sys.argv[2]) + 1):
    with engine.write() as tx:
        tx.put(b"first", b"%d" % number)
        tx.put(b"log%08d" % number, b"%d " % number * rng.choice([1, 500]))
        tx.delete_range(b"log", b"log%08d" % (number - 30))
        tx.put(b"second", b"%d" % number)
    if number % 100 == 0:
        engine.reclaim()
engine.close()
"""


@only(on_disk=True, reads_beside_writer=True)
def test_a_reader_beside_a_busy_writer_sees_whole_transactions_in_order(store: Store) -> None:
    put(store.open(), first=b"0", second=b"0")
    store.close()
    commits = 500
    reader = store.open(read_only=True)
    writer = run(BUSY_WRITER, store.url, str(commits))
    last, changes = 0, -1
    while last < commits:
        ended = writer.poll() is not None
        before = reader.changes()
        with reader.read() as snapshot:
            number = int(snapshot.get(b"first") or b"-1")
            rows = dict(snapshot.scan(b"", END))
        assert number >= last
        assert rows[b"first"] == rows[b"second"] == b"%d" % number
        log = [key for key in rows if key.startswith(b"log")]
        assert log == [b"log%08d" % known for known in range(max(number - 30, 1), number + 1) if number]
        assert all(int(rows[key].split()[0]) == int(key[3:]) for key in log)
        assert number == last or not before == reader.changes() == changes
        last, changes = number, before
        assert last == commits or not ended
    finish(writer)


FORK = """
import os, sys
from penstock.core.engine.url import open_engine
from penstock.errors import Closed
engine = open_engine(sys.argv[1])
with engine.write() as tx:
    tx.put(b"a", b"1")
child = os.fork()
if child == 0:
    code = 0
    for call in (engine.read, engine.write, engine.changes):
        try:
            call()
        except Closed as error:
            code += "forked" in str(error)
    engine.close()
    os._exit(code)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 3, status
with engine.write() as tx:
    tx.put(b"b", b"2")
with engine.read() as snapshot:
    assert snapshot.get(b"a") == b"1" and snapshot.get(b"b") == b"2"
engine.close()
"""


def test_a_forked_child_is_told_to_open_the_store_again(store: Store) -> None:
    finish(run(FORK, store.url))

    if store.kind.on_disk:
        assert everything(store.open()) == {b"a": b"1", b"b": b"2"}
