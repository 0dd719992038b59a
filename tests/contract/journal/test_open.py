"""Opening, describing, copying and sharing journals."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from journals import DEADLINE, Place, on, only, payloads, seen

import penstock
from engines import KINDS
from penstock import Draft, Journal, ManualClock
from penstock.core.journal import keys
from penstock.core.journal.core import StoreRecord
from penstock.errors import Closed, ConfigError, Locked, ReadOnly

InThreads = Callable[..., threading.Thread]


# urls and environment


def test_a_bare_path_is_sqlite(tmp_path: Path) -> None:
    for url in (tmp_path / "a.db", str(tmp_path / "b.db"), f"sqlite:{tmp_path}/c.db", f"sqlite://{tmp_path}/d.db"):
        with penstock.open(url) as journal:
            assert journal.describe().engine == "sqlite"
            journal.topic("t").append("k")
    assert {path.name for path in tmp_path.glob("*.db")} == {"a.db", "b.db", "c.db", "d.db"}


def test_without_a_url_the_environment_says_where_and_else_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for blank in (None, "", "  "):
        if blank is None:
            monkeypatch.delenv("PENSTOCK_URL", raising=False)
        else:
            monkeypatch.setenv("PENSTOCK_URL", blank)
        with penstock.open() as journal:
            assert journal.describe().location == str(tmp_path / "penstock.db")
    monkeypatch.setenv("PENSTOCK_URL", "file:elsewhere")
    with penstock.open() as journal:
        assert journal.describe().engine == "file" and (tmp_path / "elsewhere").is_dir()
    with penstock.open("memory:") as journal:
        assert journal.describe().engine == "memory"


def test_the_environment_stands_in_for_arguments_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DURABILITY", "process")
    monkeypatch.setenv("PENSTOCK_WRITER_CAPACITY", "17")
    with penstock.open("memory:") as journal:
        described = journal.describe()
        assert (described.durability, described.writer_capacity, journal.pressure().capacity) == ("process", 17, 17)
    with penstock.open("memory:", durability="disk", writer_capacity=5) as journal:
        assert (journal.describe().durability, journal.pressure().capacity) == ("disk", 5)
    monkeypatch.setenv("PENSTOCK_DURABILITY", " ")
    monkeypatch.setenv("PENSTOCK_WRITER_CAPACITY", "")
    with penstock.open("memory:") as journal:
        assert (journal.describe().durability, journal.pressure().capacity) == ("disk", 4096)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PENSTOCK_DURABILITY", "eventually"),
        ("PENSTOCK_WRITER_CAPACITY", "many"),
        ("PENSTOCK_WRITER_CAPACITY", "0"),
        ("PENSTOCK_URL", "postgres://db"),
    ],
)
def test_a_bad_environment_is_refused_and_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=value.partition(":")[0]):
        penstock.open(None if name == "PENSTOCK_URL" else "memory:")


@pytest.mark.parametrize(
    "options",
    [
        {"url": "postgres://db"}, {"url": ""}, {"url": 5}, {"url": "sqlite:"}, {"url": ":memory:"}, {"url": b"a"},
        {"durability": "none"}, {"writer_capacity": 0}, {"writer_capacity": "9"}, {"writer_capacity": True},
        {"pressure": 0}, {"pressure": 1.1}, {"pressure": "high"}, {"pressure": float("nan")},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        penstock.open(**{"url": "memory:", **options})


def test_an_unknown_scheme_names_the_known_ones_and_the_extras() -> None:
    with pytest.raises(ConfigError) as refused:
        penstock.open("redis:x")
    text = str(refused.value)
    assert all(kind.scheme in text for kind in KINDS) and "pip install" in text and "penstock[rocksdb]" in text


def test_memory_journals_are_apart_unless_they_are_named(place: Place) -> None:
    with penstock.open("memory:") as one, penstock.open("memory:") as other:
        one.topic("t").append("k")
        assert other.topics() == []


# describing


@only()
def test_describe_says_what_there_is(journal: Journal, place: Place) -> None:
    for name in ("b", "a"):
        journal.topic(name).append("k", random.Random(name).randbytes(100_000))
    described = journal.describe()
    assert described.engine == place.kind.scheme and described.topics == ["a", "b"]
    assert described.size_bytes >= 200_000 and not described.read_only
    if place.kind.on_disk:
        assert described.location == str(place.folder / "store")
        assert f"{place.kind.scheme}:{place.folder}" in repr(journal)
    assert "closed" not in repr(journal)
    journal.close()
    assert "closed" in repr(journal)


# reading only


@only(on_disk=True)
def test_a_read_only_journal_refuses_every_change(place: Place) -> None:
    with place.open() as writer:
        writer.topic("t").append_many([Draft("k", n, key="a") for n in range(3)])
        writer.topic("t").commit("c", 1)
    journal = place.open(read_only=True)
    topic = journal.topic("t")
    changes: list[Callable[[], Any]] = [
        lambda: topic.append("k"),
        lambda: topic.append_many([Draft("k")]),
        lambda: topic.submit("k"),
        lambda: topic.submit_many([Draft("k")]),
        lambda: topic.try_submit("k"),
        lambda: topic.commit("c", 2),
        lambda: topic.seek("c", 0),
        lambda: topic.forget("c"),
        lambda: topic.compact(1),
        lambda: topic.compact_keys(),
        lambda: topic.configure(max_events=1),
        lambda: journal.transaction().__enter__(),
        lambda: journal.maintain(),
        lambda: journal.topic("new").append("k"),
    ]
    for change in changes:
        with pytest.raises(ReadOnly):
            change()
    assert payloads(topic.read()) == [0, 1, 2] and topic.cursors() == {"c": 1} and len(topic) == 3
    assert journal.describe().read_only and journal.topics() == ["t"] and journal.pressure().idle
    journal.flush()
    with topic.subscribe() as subscription:
        event = subscription.next(0)
        assert event is not None and event.seq == 1


@only(on_disk=True)
def test_reading_only_what_is_not_there_is_refused(place: Place) -> None:
    with pytest.raises(ConfigError):
        place.open(read_only=True)
    assert not list(place.folder.iterdir())


BESIDE = """
    import sys
    import penstock
    journal = penstock.open(sys.argv[1], read_only=True)
    topic = journal.topic("t")
    print(topic.latest, flush=True)
    for line in sys.stdin:
        events = list(topic.read())
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        print(len(events), flush=True)
    journal.close()
"""


@only(on_disk=True, reads_beside_writer=True)
def test_a_reader_in_another_process_sees_what_the_writer_commits(place: Place) -> None:
    topic = place.open(durability="process").topic("t")
    topic.append("k")
    command = [sys.executable, "-c", textwrap.dedent(BESIDE), place.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        assert reader.stdout.readline() == "1\n"
        for n in range(2, 12):
            topic.append("k", n)
            if n == 6:
                topic.journal.maintain()
            reader.stdin.write("look\n")
            reader.stdin.flush()
            assert int(reader.stdout.readline()) == n
        reader.stdin.close()
        assert reader.wait(DEADLINE) == 0


@only(on_disk=True, shared=False)
def test_a_second_writer_is_told_that_the_store_is_open(place: Place) -> None:
    journal = place.open()
    journal.topic("t").append("k")
    code = "import sys, penstock; penstock.open(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, place.url], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode != 0 and "Locked" in done.stderr
    with pytest.raises(Locked):
        place.open()
    journal.close()
    assert place.open().topic("t").append("k").seq == 2


@only(second_open=True)
def test_two_journals_on_one_store_agree(place: Place) -> None:
    one, two = place.open(), place.open()
    for n in range(20):
        journal = (one, two)[n % 2]
        assert journal.topic("t").append("k", n, dedup=f"d{n}").seq == n + 1
        assert (two, one)[n % 2].topic("t").append("k", dedup=f"d{n}").seq == n + 1
    one.topic("t").compact(20)
    assert two.topic("t").append("k").seq == 21 and two.topic("t").oldest == 21
    two.topic("t").configure(dedup_window=5)
    one.topic("new").append("k")
    assert two.topics() == ["new", "t"] and one.topic("t").settings.dedup_window == 5
    two.topic("t").append("k", dedup="x")
    assert one.topic("t").append("k", dedup="x").duplicate


# backups


def test_a_backup_is_a_whole_journal_of_its_own(journal: Journal, place: Place, clock: ManualClock) -> None:
    topic = journal.topic("t")
    topic.append_many([Draft("k", n, key=str(n), dedup=str(n)) for n in range(100)])
    topic.commit("c", 50)
    topic.compact(10)
    before = seen(topic.read())
    path, url = place.backup_urls()
    journal.backup(path)
    topic.append("k", "after")
    with penstock.open(url, clock=clock) as copy:
        assert seen(copy.topic("t").read()) == before
        assert copy.topic("t").cursors() == {"c": 50} and copy.topic("t").latest == 100
        assert copy.topic("t").append("k", dedup="5").duplicate and copy.topic("t").append("k").seq == 101
    with pytest.raises(ConfigError):
        journal.backup(path)
    assert topic.latest == 101


def test_a_backup_of_a_live_journal_is_consistent(place: Place, in_threads: InThreads) -> None:
    journal = place.open(durability="process")
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            with journal.transaction() as tx:
                tx.append_many("a", [Draft("k")] * 3)
                tx.append_many("b", [Draft("k")] * 3)

    writer = in_threads(write)
    for _ in range(3):
        path, url = place.backup_urls()
        journal.backup(path)
        with penstock.open(url) as copy:
            assert copy.topic("a").latest == copy.topic("b").latest == len(list(copy.topic("a").read()))
            assert copy.topic("a").latest % 3 == 0
    over.set()
    writer.join(DEADLINE)


# versions and forks


def test_a_store_of_another_format_is_refused_with_its_number(place: Place) -> None:
    journal = place.open()
    record = StoreRecord(99, journal.id, 0)
    with journal._engine.write() as tx:
        tx.put(keys.STORE, msgspec.msgpack.encode(record))
    journal.close()
    for read_only in (False, True):
        with pytest.raises(ConfigError, match="format 99"):
            place.open(read_only=read_only)
    with pytest.raises(ConfigError, match="format 99"):  # the refusal has let go of the store
        place.open()


def test_a_store_whose_record_is_something_else_is_refused(place: Place) -> None:
    journal = place.open()
    with journal._engine.write() as tx:
        tx.put(keys.STORE, b"\xc1 not a record")
    journal.close()
    with pytest.raises(ConfigError, match="no penstock journal"):
        place.open()


@only(on_disk=True)
def test_a_forked_child_is_told_to_open_its_own(place: Place) -> None:
    journal = place.open()
    topic = journal.topic("t")
    topic.append("k")
    reader, writer = os.pipe()
    with journal.transaction() as tx:  # the lead is held: the child must not wait for a thread it does not have
        tx.append("t", "k")
        child = os.fork()
        if child == 0:
            told = b"nothing"
            try:
                list(topic.read())
            except Closed:
                try:
                    topic.append("k")
                except Closed as error:
                    told = b"told" if "forked" in str(error) else b"unclear"
            finally:
                os.write(writer, told)
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 100) == b"told"
    os.close(reader)
    os.close(writer)
    assert topic.append("k").seq == 3


# the current journal


def test_current_is_the_journal_in_use() -> None:
    with pytest.raises(ConfigError, match="use"):
        penstock.current()
    with penstock.open("memory:") as one, penstock.open("memory:") as two:
        with penstock.use(one) as given:
            assert given is one and penstock.current() is one
            with penstock.use(two):
                assert penstock.current() is two
            assert penstock.current() is one
            with pytest.raises(RuntimeError), penstock.use(two):
                raise RuntimeError
            assert penstock.current() is one
        with pytest.raises(ConfigError):
            penstock.current()


def test_each_thread_and_task_has_its_own_current_journal(in_threads: InThreads) -> None:
    with penstock.open("memory:") as one, penstock.open("memory:") as two, penstock.use(one):

        def elsewhere() -> None:
            with pytest.raises(ConfigError):
                penstock.current()
            with penstock.use(two):
                assert penstock.current() is two

        in_threads(elsewhere).join(DEADLINE)

        async def task() -> Journal:
            assert penstock.current() is one
            with penstock.use(two):
                await asyncio.sleep(0)
                return penstock.current()

        async def work() -> None:
            assert await asyncio.gather(task(), task()) == [two, two]
            assert await asyncio.to_thread(penstock.current) is one
            assert penstock.current() is one

        asyncio.run(work())
        assert penstock.current() is one


@on("memory")
def test_the_clock_can_be_given(place: Place) -> None:
    clock = ManualClock(86_400_000)
    journal = place.open(clock=clock)
    journal.topic("t").append("k")
    event = journal.topic("t").get(1)
    assert event is not None and event.recorded_at.isoformat() == "1970-01-02T00:00:00+00:00"


def test_a_clock_before_1970_counts_as_1970() -> None:
    with penstock.open("memory:", clock=ManualClock(-5000)) as journal:
        journal.topic("t").append("k")
        event = journal.topic("t").get(1)
        assert event is not None and event.recorded_at.timestamp() == 0
