"""SlateDB's private names that the bridge leans on are there, and mean what they did."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import slatedb.uniffi as sl
from slatedb.uniffi._slatedb_uniffi import slatedb as generated

from penstock.engines.slatedb import bridge


@pytest.fixture
def database(tmp_path: Path) -> sl.Db:
    builder = sl.DbBuilder(str(tmp_path / "db"), sl.ObjectStore.resolve("file:///"))
    database = bridge.call(builder.build(), 30)
    yield database
    bridge.call(database.shutdown(), 30)


def test_bytes_are_lowered_with_one_copy() -> None:
    assert generated._UniffiFfiConverterBytes.lower is bridge._lower


@pytest.mark.parametrize("size", [0, 1, 3, 4, 255, 65_536, 1_000_003])
def test_lowered_bytes_are_those_of_the_generated_code(size: int) -> None:
    value = random.Random(size).randbytes(size)
    buffer = bridge._lower(value)
    try:
        assert ctypes.string_at(buffer.data, buffer.len) == size.to_bytes(4, "big") + value
        assert buffer.capacity >= buffer.len == size + 4
    finally:
        buffer.free()


def test_rows_come_back_as_they_were_put(database: sl.Db) -> None:
    rng = random.Random(5)
    rows = sorted(
        {rng.randbytes(rng.randrange(1, 300)): rng.randbytes(rng.randrange(0, 70_000)) for _ in range(60)}.items()
    )
    batch = sl.WriteBatch()
    for key, value in rows:
        batch.put(key, value)
    bridge.call(database.write(batch), 30)
    everything = sl.KeyRange(start=None, start_inclusive=True, end=b"\xff" * 400, end_inclusive=False)
    iterator = bridge.call(database.scan(everything), 30)

    found = []
    while batch_of := bridge.next_rows(iterator, 7, 30):
        found += batch_of
    assert found == rows
    assert bridge.call(database.get(rows[3][0]), 30) == rows[3][1]


def test_a_call_works_inside_a_running_event_loop_and_leaves_it_running(database: sl.Db) -> None:
    async def main() -> bytes | None:
        bridge.call(database.put(b"a", b"1"), 30)
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is not None
        return bridge.call(database.get(b"a"), 30)

    assert asyncio.run(main()) == b"1"


def test_a_call_ends_at_its_deadline_and_the_next_one_works(database: sl.Db) -> None:
    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    begun = time.monotonic()
    with pytest.raises(bridge.TimedOut):
        bridge.call(never(), 0.05)
    assert time.monotonic() - begun < 10
    assert asyncio._get_running_loop() is None
    assert bridge.call(database.get(b"missing"), 30) is None


def test_threads_call_at_the_same_time(database: sl.Db) -> None:
    wrong: list[object] = []

    def work(name: int) -> None:
        for number in range(100):
            key = b"%d-%d" % (name, number)
            bridge.call(database.put(key, key * 3), 30)
            if bridge.call(database.get(key), 30) != key * 3:
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


FORK = """
import os, sys
import penstock
penstock.open(f"slatedb:{sys.argv[1]}/parent").close()
if (child := os.fork()) == 0:
    try:
        penstock.open(f"slatedb:{sys.argv[1]}/child")
    except penstock.errors.ConfigError as error:
        os._exit(3 if "fork" in str(error) else 4)
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_forked_after_use_gets_a_sentence_instead_of_hanging(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], check=True, timeout=60)


def test_a_panic_in_rust_is_an_error_of_slatedb() -> None:
    async def panicking() -> None:
        raise generated.InternalError("range end index 12 out of range")

    with pytest.raises(sl.Error.Internal, match="out of range"):
        bridge.call(panicking(), 30)
