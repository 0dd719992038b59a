"""Entities: reading one costs what it has, its generation is its newest position, and `expect=` guards it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from journals import Place, eventually, on, only, payloads, seqs
from msgspec.structs import replace
from small_index import small_index

from penstock import Draft, Journal, Topic
from penstock.core.journal.blocks import Block
from penstock.core.journal.index.indexer import worth_merging
from penstock.core.journal.index.runs import Directory, Run, load_directory, save_directory
from penstock.errors import ConfigError, Conflict

Reopen = Callable[[Journal], Journal]
KEYS = ["a", "b", "aa", "\x00", "a\x00b", "ü", "k" * 400]


@pytest.fixture(autouse=True)
def runs_after_a_few_events() -> Iterator[None]:
    with small_index():
        yield


def directory(journal: Journal, topic: str = "orders") -> Directory:
    with journal._engine.read() as snap:
        return load_directory(snap, 1, topic)


def fill(topic: Topic, rounds: int = 20) -> None:
    for number in range(rounds):
        topic.append_many([Draft("e", [key, number], key=key) for key in KEYS])
        topic.append("e", number)


def test_an_entity_has_its_own_events_in_order(journal: Journal, topic: Topic, reopen: Reopen) -> None:
    fill(topic)
    for step in ("tail", "runs", "one run", "reopened"):
        if step == "runs":
            journal._core.indexer.index("orders")
        if step == "one run":
            journal.maintain()
        if step == "reopened":
            journal = reopen(journal)
            topic = journal.topic("orders")
        for key in KEYS:
            assert payloads(topic.read(key=key)) == [[key, number] for number in range(20)]
            assert payloads(topic.read(key=key, reverse=True)) == [[key, number] for number in range(19, -1, -1)]
            assert payloads(topic.read(key=key, limit=3)) == [[key, number] for number in range(3)]
            assert topic.position_of(key) == seqs(topic.read(key=key))[-1]
        assert list(topic.read(key="nobody")) == [] and topic.position_of("nobody") == 0
        assert sorted(topic.entities()) == sorted(KEYS)
    assert directory(journal).through == topic.latest


def test_positions_limits_kinds_and_scopes_narrow_an_entity(journal: Journal, topic: Topic) -> None:
    for number in range(60):
        topic.append(f"kind{number % 3}", number, key=f"k{number % 2}", scope=f"s{number % 5}")
    for _ in range(2):
        every = [number for number in range(60) if number % 2 == 0]
        assert payloads(topic.read(21, key="k0")) == [number for number in every if number + 1 > 21]
        assert payloads(topic.read(21, key="k0", through=40)) == [n for n in every if 21 < n + 1 <= 40]
        assert payloads(topic.read(21, key="k0", through=40, reverse=True, limit=2)) == [38, 36]
        assert payloads(topic.read(key="k0", kind="kind1")) == [n for n in every if n % 3 == 1]
        assert payloads(topic.read(key="k0", kind=["kind1", "kind2"], scope="s4")) == [4, 14, 34, 44]
        journal.maintain()


def test_reading_an_entity_opens_few_blocks_of_a_large_topic(
    journal: Journal, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append_many([Draft("e", number, key=f"k{number % 100}") for number in range(5_000)])
    journal.maintain()
    list(topic.read(key="k7"))
    opened: list[int] = []
    monkeypatch.setattr(Block, "__init__", _counting(Block.__init__, opened))
    assert len(list(topic.read(key="k7"))) == 50
    assert sum(opened) < 500


def test_commits_to_another_topic_make_no_reader_open_a_block_again(
    topic: Topic, journal: Journal, reopen: Callable[[Journal], Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append_many([Draft("e", number, key=f"k{number % 10}") for number in range(1_000)])
    journal = reopen(journal)
    topic = journal.topic("orders")
    list(topic.read(key="k7"))
    journal.topic("others").append("e", 1)
    opened: list[int] = []
    monkeypatch.setattr(Block, "__init__", _counting(Block.__init__, opened))
    assert len(list(topic.read(key="k7"))) == 100
    assert sum(opened) < 500


def _counting(original: Callable[..., None], opened: list[int]) -> Callable[..., None]:
    """What the calling thread opens: the indexer's may still be looking at the topic."""
    reader = threading.get_ident()

    def init(self: Block, *args: object) -> None:
        original(self, *args)
        if threading.get_ident() == reader:
            opened.append(self.count)

    return init


def test_a_topic_without_keys_has_no_index(journal: Journal, topic: Topic) -> None:
    topic.append_many([Draft("e", number) for number in range(100)])
    journal.maintain()
    assert directory(journal).runs == () and directory(journal).through == 100


def test_a_topic_can_do_without_the_index(journal: Journal, topic: Topic) -> None:
    topic.configure(indexed=False)
    fill(topic)
    journal.maintain()
    assert directory(journal).through == 0
    assert len(list(topic.read(key="a"))) == 20
    with pytest.raises(ConfigError, match="indexed"):
        topic.configure(indexed="no")


def test_many_small_runs_become_few(journal: Journal, topic: Topic) -> None:
    for number in range(30):
        topic.append_many([Draft("e", number, key=key) for key in KEYS * 3])
        journal._core.indexer.index("orders")
    runs = directory(journal).runs
    assert len(runs) <= 6 and max(run.level for run in runs) >= 2
    assert directory(journal).rubbish == () and directory(journal).building == ()
    for key in KEYS:
        assert payloads(topic.read(key=key)) == [number for number in range(30) for _ in range(3)]


def test_the_index_can_be_built_anew(journal: Journal, topic: Topic) -> None:
    fill(topic)
    journal.maintain()
    topic.reindex()
    assert len(list(topic.read(key="ü"))) == 20
    journal.maintain()
    assert len(list(topic.read(key="ü"))) == 20 and len(directory(journal).runs) == 1


@on("memory", "sqlite")
def test_look_ups_beside_writers_and_indexing_see_everything_committed(
    journal: Journal, topic: Topic, in_threads: Callable[..., threading.Thread]
) -> None:
    written: dict[str, int] = {}

    def write(key: str) -> None:
        for number in range(150):
            topic.append("e", number, key=key)
            written[key] = number
            if number % 40 == 0:
                journal._core.indexer.index("orders")

    def look(key: str) -> None:
        while written.get(key, -1) < 149:
            known = written.get(key, -1)
            found = payloads(topic.read(key=key))
            assert found == list(range(len(found))) and len(found) > known

    for key in ("x", "y"):
        in_threads(write, key)
        for _ in range(3):
            in_threads(look, key)


@only(second_open=True)
def test_two_journals_may_build_the_index_at_once(
    place: Place, journal: Journal, topic: Topic, in_threads: Callable[..., threading.Thread]
) -> None:
    journals = [journal, place.open(durability="process")]

    def work(own: Journal, key: str) -> None:
        for number in range(60):
            own.topic("orders").append("e", number, key=key)
            if number % 5 == 0:
                own._core.indexer.index("orders")

    for thread in [in_threads(work, own, f"k{number}") for number, own in enumerate(journals)]:
        thread.join()
    for own in journals:
        own.maintain()
        for number in range(2):
            assert payloads(own.topic("orders").read(key=f"k{number}")) == list(range(60))
    assert directory(journal).building == () and directory(journal).rubbish == ()


@on("memory", "sqlite")
def test_a_calm_journal_merges_its_runs_without_being_asked(
    journal: Journal, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.journal.index.indexer.INDEX_CALM_SECONDS", 0.01)
    for number in range(2):  # fewer runs than make a merge worth it
        topic.append_many([Draft("e", number, key=key) for key in KEYS * 3])
        journal._core.indexer.index("orders")
    assert len(directory(journal).runs) == 2 and not journal._core.indexer.at_rest("orders")
    journal._core.indexer.request("orders")
    eventually(lambda: journal._core.indexer.at_rest("orders"))
    assert len(directory(journal).runs) == 1
    assert payloads(topic.read(key="ü")) == [0] * 3 + [1] * 3


def test_runs_of_another_format_are_built_anew(journal: Journal, topic: Topic) -> None:
    fill(topic)
    before = payloads(topic.read(key="ü"))
    journal.maintain()
    with journal._engine.write() as tx:
        found = load_directory(tx, 1, "orders")
        save_directory(tx, 1, replace(found, format=0))
    old = {run.id for run in found.runs}
    assert old and directory(journal).through == 0 and old <= set(directory(journal).rubbish)
    assert payloads(topic.read(key="ü")) == before
    journal.maintain()
    assert directory(journal).rubbish == () and not old & {run.id for run in directory(journal).runs}
    assert payloads(topic.read(key="ü")) == before and len(directory(journal).runs) == 1


@on("memory", "sqlite")
def test_a_look_up_that_had_to_ask_many_runs_has_them_merged(
    journal: Journal, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.journal.index.indexer.INDEX_CALM_SECONDS", 0.01)
    monkeypatch.setattr("penstock.core.journal.index.indexer.INDEX_FAN_IN", 100)
    for number in range(8):
        topic.append_many([Draft("e", number, key=key) for key in KEYS * 3])
        journal._core.indexer.index("orders")
    assert len(directory(journal).runs) == 8
    assert payloads(topic.read(key="nobody")) == []  # the filters say so: no run is asked
    assert journal._core.indexer._thread is None
    assert len(payloads(topic.read(key="b"))) == 24
    eventually(lambda: journal._core.indexer.at_rest("orders"))
    assert len(payloads(topic.read(key="b"))) == 24 and len(directory(journal).runs) == 1


def runs(levels: str) -> list[Run]:
    return [Run(at, at, at, int(level), 10 ** int(level), 0, "e") for at, level in enumerate(levels)]


@pytest.mark.parametrize(
    ("levels", "merged"),
    [("00", ""), ("000", "000"), ("1000", "000"), ("2111000", "000"), ("21011", "1011"), ("2100", "")],
)
def test_neighbours_of_a_level_are_merged_with_lower_ones_among_them(levels: str, merged: str) -> None:
    assert "".join(str(run.level) for run in worth_merging(runs(levels), thorough=False)) == merged


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────


@only(second_open=True)
def test_another_journal_sees_what_was_written_and_compacted_here(place: Place, journal: Journal, topic: Topic) -> None:
    other = place.open(durability="process")
    seen = other.topic("orders")
    fill(topic, 5)
    assert len(list(seen.read(key="a"))) == 5
    fill(topic, 5)
    assert len(list(seen.read(key="a"))) == 10
    journal.maintain()
    assert len(list(seen.read(key="a"))) == 10
    topic.compact_keys()
    assert len(list(seen.read(key="a"))) == 1
    seen.append("e", "theirs", key="a", expect=seen.position_of("a"))
    with pytest.raises(Conflict):
        topic.append("e", "mine", key="a", expect=topic.latest - 1)
    assert payloads(topic.read(key="a"))[-1] == "theirs"


# ── expect ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("indexed", [False, True])
def test_expect_lets_only_one_of_two_decisions_through(journal: Journal, topic: Topic, indexed: bool) -> None:
    fill(topic, 5)
    if indexed:
        journal.maintain()
    generation = topic.position_of("b")
    first = topic.append("e", "one", key="b", expect=generation)
    with pytest.raises(Conflict, match="'b'") as conflict:
        topic.append("e", "other", key="b", expect=generation)
    assert (conflict.value.expected, conflict.value.actual) == (generation, first.seq)
    assert payloads(topic.read(key="b"))[-1] == "one"
    topic.append("e", "two", key="b", expect=first.seq)


@on("memory", "sqlite")
def test_expect_among_many_threads_loses_no_update(
    journal: Journal, topic: Topic, in_threads: Callable[..., threading.Thread]
) -> None:
    def count() -> None:
        done = 0
        while done < 25:
            generation = topic.position_of("counter")
            newest = topic.get(generation)
            try:
                topic.append("e", (newest.payload if newest else 0) + 1, key="counter", expect=generation)
                done += 1
            except Conflict:
                continue

    threads = [in_threads(count) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert payloads(topic.read(key="counter")) == list(range(1, 101))
