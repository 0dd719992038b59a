"""Long scans, whose next rows a thread fetches: the same rows, and nothing left behind when they end early."""

from __future__ import annotations

import threading

import pytest
from object_homes import Home
from store_proxy import StoreProxy

from penstock.engines.slatedb.reading import READ_AHEAD_BYTES, READ_AHEAD_TASKS
from penstock.errors import StorageError
from waiting import eventually

KEYS = [b"k%05d" % number for number in range(300)]


def fill(home: Home, repeat: int = 2_000) -> dict[bytes, bytes]:
    rows = {key: key * repeat for key in KEYS}
    engine = home.open()._engine
    with engine.write() as tx:
        for key, value in rows.items():
            tx.put(key, value)
    return rows


def scanning() -> int:
    return sum(thread.name.startswith("penstock-scan") for thread in threading.enumerate())


@pytest.mark.parametrize("reverse", [False, True])
def test_a_long_scan_has_every_row_in_order(home: Home, reverse: bool) -> None:
    rows = fill(home)
    writer = home.opened[0]._engine
    reader = home.open(read_only=True)._engine
    with writer.write() as tx:
        tx.delete(KEYS[7])
        tx.put(KEYS[250], b"new")
    del rows[KEYS[7]]
    rows[KEYS[250]] = b"new"
    eventually(lambda: _value(reader, KEYS[250]) == b"new")
    for engine in (writer, reader):
        with engine.read() as snap:
            assert list(snap.scan(b"k", b"l", reverse=reverse)) == sorted(rows.items(), reverse=reverse)
    eventually(lambda: not scanning())


def _value(engine: object, key: bytes) -> bytes | None:
    with engine.read() as snap:  # type: ignore[attr-defined]
        return snap.get(key)  # type: ignore[no-any-return]


def test_a_scan_that_is_given_up_ends_its_thread(folder: Home) -> None:
    fill(folder)
    with folder.opened[0]._engine.read() as snap:
        rows = snap.scan(b"k", b"l")
        for _ in range(200):
            next(rows)
        assert scanning() == 1
        rows.close()  # type: ignore[attr-defined]
        eventually(lambda: not scanning())


def test_a_store_that_falls_silent_in_a_long_scan_is_an_error_that_says_so(behind: Home, proxy: StoreProxy) -> None:
    fill(behind, 3 * READ_AHEAD_TASKS * READ_AHEAD_BYTES // (6 * len(KEYS)))  # more than is on its way at once
    behind.opened[0]._engine.reclaim()  # rows of the log would be in the reader's memory
    behind.opened[0].close()
    reader = behind.open_reader(timeout=1)._engine
    with reader.read() as snap:
        rows = snap.scan(b"k", b"l")
        next(rows)
        proxy.cut()
        with pytest.raises(StorageError, match=r"could not be read.*try again"):
            list(rows)
        proxy.heal()
    eventually(lambda: not scanning())
    with reader.read() as snap:
        assert [key for key, _ in snap.scan(b"k", b"l")] == KEYS
