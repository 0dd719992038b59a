"""The past in numbers: rows a minute that a restart does not lose, a ring that does not grow, what a row can hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock import ManualClock
from penstock.core.journal import keys
from penstock.core.observe.sample import QueueSample, Sample, TopicSample
from penstock.core.queue.state.records import GroupRecord, encode
from penstock.core.sampling import history as history_module
from penstock.core.sampling.collect import take_sample
from penstock.core.sampling.history import (
    FIELDS,
    TIERS,
    History,
    HistoryRow,
    Tier,
    between,
    combined,
    measured,
    quantile_ms,
)
from penstock.core.sampling.history import series as series_of
from penstock.limits import HISTORY_ROW_BYTES

START = 1_699_999_200.0
"""A full half hour."""
assert START % 1800 == 0

ENGINES = ["sqlite", "rocksdb", "file"]


def sample(at: float, latest: int, ready: int = 0, **more: int) -> Sample:
    topics = {"jobs": TopicSample("jobs", latest, latest)} | {
        name: TopicSample(name, count, count) for name, count in more.items()
    }
    queues = {"jobs": [QueueSample("jobs", "default", ready, 0, 0, 0, 2.0, settled=latest - ready)]}
    return Sample(at, topics, queues, 0.0, 0, 0, 0)


def dated(taken: Sample, at: float) -> Sample:
    taken.at = at
    return taken


def minutes(history: History, count: int, *, first: int = 0, each: int = 60) -> float:
    """A sample at every full minute; `each` messages a minute, of which ten wait."""
    at = START
    for minute in range(first, first + count + 1):
        at = START + 60 * minute
        history.add(sample(at, each * minute, 10))
    return at


@pytest.mark.parametrize("engine", ENGINES)
def test_the_past_survives_a_restart(tmp_path: Path, engine: str) -> None:
    url = f"{engine}:{tmp_path / 'journal'}"
    with penstock.open(url) as journal:
        now = minutes(History(journal), 90)
    with penstock.open(url) as journal:
        history = History(journal)
        hour = history.over(3600, now)
        assert len(hour) == 60
        assert [row.at for row in hour] == [now - 60 * (59 - n) for n in range(60)]
        assert {row.values[series_of("queue", "jobs", "default")] for row in hour} == {(60, 60, 10, 0, 0, 0, 0, 2)}
        day = history.over(86_400, now)
        assert [row.seconds for row in day] == [300] * 18
        assert {row.values[series_of("topic", "jobs")] for row in day} == {(300, 0, 0)}
        week = history.over(604_800, now)
        assert [(row.seconds, row.values["all"][0]) for row in week] == [(1800, 1800)] * 3
        # It goes on where it was, without a spike for what came while nobody counted.
        minutes(history, 2, first=120)
        assert [row.values["all"][0] for row in history.over(3600, now + 1920)][-2:] == [60, 60]


def test_a_reader_of_a_journal_sees_its_past_and_writes_nothing(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "j.db") as journal:
        now = minutes(History(journal), 5)
        with penstock.open(tmp_path / "j.db", read_only=True) as reader:
            history = History(reader)
            assert len(history.over(3600, now)) == 5
            minutes(history, 3, first=10)
            assert len(history.over(3600, now + 480)) == 8
        assert len(History(journal).over(3600, now + 480)) == 5


def stored(journal: penstock.Journal) -> tuple[int, int]:
    """Rows of the ring and their bytes."""
    with journal._engine.read() as snap:
        rows = list(snap.scan(keys.HISTORY, keys.prefix_end(keys.HISTORY)))
    return len(rows), sum(len(key) + len(value) for key, value in rows)


@pytest.mark.slow
def test_the_ring_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(tier.rows for tier in TIERS) * (HISTORY_ROW_BYTES + 5) < 1_640 << 10
    small = (Tier(60, 18), Tier(300, 28), Tier(1800, 33))
    monkeypatch.setattr(history_module, "TIERS", small)
    with penstock.open(tmp_path / "j.db", durability="process") as journal:
        history = History(journal)
        many = {f"topic-{n}": 0 for n in range(120)}
        for minute in range(20 * 60 + 1):
            for n in range(120):
                many[f"topic-{n}"] += n * n
            history.add(sample(START + 60 * minute, minute, 1, **many))
        rows, size = stored(journal)
        assert rows == 18 + 28 + 33
        assert size < rows * (HISTORY_ROW_BYTES + 5)
        with journal._engine.read() as snap:
            prefix = keys.HISTORY + b"r"
            sizes = [len(value) for _, value in snap.scan(prefix, keys.prefix_end(prefix))]
        assert HISTORY_ROW_BYTES - 40 < max(sizes) <= HISTORY_ROW_BYTES
        assert len(History(journal).over(33 * 1800, START + 60 * 20 * 60)) == 33


def test_a_minute_costs_less_than_half_a_percent_of_a_minute(tmp_path: Path) -> None:
    """With a hundred busy topics and twenty queues: the sample, the row, and the commit that makes it last."""
    with penstock.open(tmp_path / "j.db") as journal:
        for n in range(20):
            journal.queue(f"queue-{n}").push("x")
        history = History(journal)
        took = []
        for minute in range(12):
            with journal.transaction() as together:
                for n in range(100):
                    together.append(f"topic-{n}", "k", n)
            begun = time.perf_counter()
            taken = take_sample(journal)
            taken.at = START + 60 * minute
            history.add(taken)
            took.append(time.perf_counter() - begun)
        assert sorted(took)[len(took) // 2] < 0.005 * 60


def test_settle_times_cost_less_than_a_percent_of_taking_and_acknowledging(tmp_path: Path) -> None:
    """A take and an ack each write the group's record; what the histogram in it adds is measured beside them."""
    with penstock.open(tmp_path / "j.db") as journal:
        queue = journal.queue("q")
        queue.push_many(list(range(200)))

        def handle() -> None:
            delivery = queue.take()
            assert delivery is not None
            delivery.ack()

        message = fastest(handle, 40, time.perf_counter)
    times = dict.fromkeys(range(1, 9), 12_345)
    plain, full = GroupRecord(next_lease=99_999), GroupRecord(next_lease=99_999, settle_times=times)

    def count() -> None:
        times[5] = times.get(5, 0) + (int(START) + 17 - int(START)).bit_length()

    def added() -> float:
        return 2 * (fastest(lambda: encode(full), 2_000) - fastest(lambda: encode(plain), 2_000)) + fastest(
            count, 2_000
        )

    assert any(added() < 0.01 * message for _ in range(10))  # what else runs on the machine can only add to it


def fastest(work: Callable[[], object], times: int, clock: Callable[[], float] = time.thread_time) -> float:
    """Seconds that one call takes, in the best of five rounds; of this thread alone, unless the clock is another."""
    rounds = []
    for _ in range(5):
        begun = clock()
        for _ in range(times):
            work()
        rounds.append((clock() - begun) / times)
    return min(rounds)


def test_settle_times_are_kept_by_minute_and_survive_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    with penstock.open(tmp_path / "j.db", clock=clock) as journal:
        queue, history = journal.queue("mails"), History(journal)
        queue.push_many(list(range(100)))
        history.add(dated(take_sample(journal), START))
        quick, slow = queue.take_many(98), queue.take_many(2)
        clock.advance(0.1)
        for delivery in quick:
            delivery.ack()
        clock.advance(9.9)
        for delivery in slow:
            delivery.ack()
        history.add(dated(take_sample(journal), START + 60))
        queue.push("given back")
        delivery = queue.take()
        assert delivery is not None
        delivery.nack()
        history.add(dated(take_sample(journal), START + 120))
    with penstock.open(tmp_path / "j.db") as journal:
        first, second = History(journal).over(3600, START + 120)
        series = series_of("settle", "mails", "default")
        assert sum(first.values[series]) == 100
        median, slowest = quantile_ms(first.values[series], 0.5), quantile_ms(first.values[series], 0.99)
        assert median is not None and 64 <= median <= 128
        assert slowest is not None and 8_192 <= slowest <= 16_384
        assert series not in second.values  # giving back is not settling


@pytest.mark.parametrize(
    ("counts", "share", "found"),
    [([0, 0], 0.5, None), ([4], 0.5, 0.5), ([0, 0, 10], 0.99, 3.98), ([9, 0, 1], 0.5, 0.5556)],
)
def test_a_quantile_lies_within_its_bucket(counts: list[int], share: float, found: float | None) -> None:
    value = quantile_ms(counts, share)
    assert value == (found if found is None else pytest.approx(found, rel=1e-3))


def test_the_busiest_series_have_room_and_the_others_are_unknown_not_zero(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "j.db") as journal:
        history = History(journal)
        for minute in range(2):
            counts = {f"topic-{n}": 1_000 * n * minute for n in range(200)}
            history.add(sample(START + 60 * minute, minute, **counts))
        (row,) = History(journal).over(3600, START + 60)
        assert row.cut and row.field(series_of("topic", "topic-199"), 0) == 199_000
        assert row.field(series_of("topic", "topic-1"), 0) is None
        assert row.field("all", 0) == 1 + sum(1_000 * n for n in range(200))
        (whole,) = history.over(3600, START + 60)
        assert whole.field(series_of("topic", "topic-1"), 0) == 1_000
        assert whole.field(series_of("topic", "topic-0"), 0) == 0


def test_two_servers_of_one_journal_write_rows_that_both_can_read(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "j.db") as journal:
        servers = History(journal), History(journal)
        for at, (history, name) in enumerate(zip(servers, ("mornings", "evenings"), strict=True)):
            for minute in range(2):
                history.add(sample(START + 600 * at + 60 * minute, minute, **{name: 7 * minute}))
        first, second = History(journal).over(3600, START + 1200)
        assert (first.field("topic:mornings", 0), first.field("topic:evenings", 0)) == (7, 0)
        assert (second.field("topic:mornings", 0), second.field("topic:evenings", 0)) == (0, 7)


def test_a_late_look_counts_as_a_minute(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "j.db") as journal:
        history = History(journal)
        history.add(sample(START, 0))
        history.add(sample(START + 240, 400))
        (row,) = history.over(3600, START + 240)
        assert row.values[series_of("topic", "jobs")] == (100, 0, 0)


def test_the_last_minutes_are_finer_while_somebody_looks(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "j.db") as journal:
        history = History(journal)
        now = minutes(history, 3)
        for second in range(1, 60):
            history.add(sample(now + second, 180 + 2 * second, 10))
        rows = history.over(900, now + 60)
        assert [row.seconds for row in rows] == [60, 60, 60] + [5.0] * 11
        assert {row.values[series_of("topic", "jobs")][0] for row in rows[3:]} == {10}


def test_minutes_in_which_nobody_looked_are_drawn_between_those_in_which_somebody_did(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "jobs.db") as journal:
        history = History(journal)
        watched = [*range(0, 60, 5), *range(60, 600, 60), *range(600, 661, 5)]
        for second in watched:
            history.add(sample(START + second, second))
        rows = history.over(900, START + 660)
        assert [row.seconds for row in rows] == [5] * 12 + [60] * 9 + [5] * 12
        ends = [row.at - START for row in rows]
        assert ends == sorted(ends) and set(range(120, 601, 60)) <= set(ends), "every minute of the gap"


def test_letters_are_dead_in_their_queue_and_counted_once_in_all(tmp_path: Path) -> None:
    emails = QueueSample("emails", "default", 0, 0, 0, 0, None, dead=3)
    letters = QueueSample("emails.dead", "default", 0, 0, 0, 0, None, letters=3)
    found = measured(Sample(START, {}, {"emails": [emails], "emails.dead": [letters]}, 0.0, 0, 0, 0))
    dead = FIELDS["queue"].index("dead")
    assert [found[series_of("queue", name, "default")][dead] for name in ("emails", "emails.dead")] == [3, 3]
    assert found["all"][FIELDS["all"].index("dead")] == 3


def test_a_damaged_row_is_left_out(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "j.db") as journal:
        now = minutes(History(journal), 4)
        whole = History(journal).over(3600, now)
        with journal._engine.read() as snap:
            row, _ = next(iter(snap.scan(keys.HISTORY, keys.prefix_end(keys.HISTORY))))
        journal._core.run(lambda commit: commit.tx.put(row, b"\xc1"))
        assert len(History(journal).over(3600, now)) == len(whole) - 1


def test_what_is_reset_and_what_is_new_counts_right() -> None:
    before = {"flow:a/b": (1000, 5, 10, 0), "topic:t": (50, 0, 9), "queue:q/default": (9, 9, 0, 0, 0, 0, 0, 0)}
    after = {
        "flow:a/b": (200, 5, 10, 0),
        "topic:t": (50, 0, 9),
        "topic:new": (7, 0, 9),
        "queue:q/default": (9, 8, 1, 0, 0, 0, 0, 0),
        "queue:old/default": (5000, 5000, 0, 0, 0, 0, 0, 0),
    }
    assert between(before, after) == {
        "flow:a/b": (200, 5, 10, 0),
        "topic:new": (7, 0, 9),
        "queue:q/default": (0, 0, 1, 0, 0, 0, 0, 0),
    }


def test_coarser_rows_add_counts_and_keep_the_highest() -> None:
    rows = [HistoryRow(60, 60, {"topic:t": (5, 100, 9)}), HistoryRow(120, 60, {"topic:t": (7, 20, 8)}, cut=True)]
    assert combined(rows, 120, 120) == HistoryRow(120, 120, {"topic:t": (12, 100, 9)}, cut=True)
