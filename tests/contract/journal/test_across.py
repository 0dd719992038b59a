"""Reading several topics as one log: in the order of recording, forwards, backwards and live."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from journals import DEADLINE, Place, on

import penstock
from penstock import Draft, Event, Journal, ManualClock
from penstock.api import local
from penstock.core.journal import across
from penstock.core.journal.sealed.sealing import seal_topic
from penstock.errors import Closed, ConfigError, InvalidName, PositionTrimmed

InThreads = Callable[..., threading.Thread]


def fill(journal: Journal, count: int = 12, start: int = 0) -> None:
    for n in range(start, start + count):
        journal.topic(("shop.east", "shop.west", "other")[n % 3]).append(("placed", "paid")[n % 2], n, key=f"k{n % 4}")


def payloads(events: Any) -> list[Any]:
    return [event.payload for event in events]


def take(subscription: penstock.JournalSubscription, count: int) -> list[Any]:
    found = [subscription.next(DEADLINE) for _ in range(count)]
    return [event and event.payload for event in found]


# reading


def test_events_of_one_millisecond_come_as_they_were_committed(journal: Journal) -> None:
    fill(journal)  # its clock stands still
    assert payloads(journal.read()) == list(range(12))
    assert payloads(journal.read("shop.*")) == [n for n in range(12) if n % 3 != 2]
    assert payloads(journal.read(["other", "shop.[e]ast"], limit=3, reverse=True)) == [11, 9, 8]
    assert payloads(journal.read(key="k1", kind="paid", where="payload > 4")) == [5, 9]


def test_within_one_batch_they_come_in_the_order_of_their_topics_first_event(journal: Journal) -> None:
    with journal.outbox() as outbox:
        for topic, n in (("b", 1), ("a", 2), ("c", 3), ("b", 4)):
            outbox.stage(topic, "k", n)
    assert payloads(journal.read()) == [1, 4, 2, 3]


def test_times_bound_a_read(journal: Journal, clock: ManualClock) -> None:
    moments = []
    for n in range(4):
        moments.append(datetime.fromtimestamp(clock.now_ms() / 1000, UTC))
        fill(journal, 3, 3 * n)
        clock.advance(60)
    assert payloads(journal.read(since=moments[2])) == list(range(6, 12))
    assert payloads(journal.read(since=moments[1], until=moments[3])) == list(range(3, 9))
    assert payloads(journal.topic("other").read(until=moments[1])) == [2]


def test_positions_go_on_where_a_reader_was(journal: Journal) -> None:
    fill(journal)
    positions: dict[str, int] = {}
    found = []
    while some := list(journal.read(after=positions, limit=5)):
        found += payloads(some)
        positions |= {event.topic: event.seq for event in some}
    assert found == list(range(12)) and positions == {"other": 4, "shop.east": 4, "shop.west": 4}
    fill(journal, 1, 12)
    assert payloads(journal.read(after=positions)) == [12]
    assert payloads(journal.read(after={"other": 2}, through={"other": 3, "shop.west": 1})) == [1, 8]


def test_a_long_read_is_of_one_state_in_steps_too(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(across, "STEP", 7)
    monkeypatch.setattr("penstock.core.protocol.operation.PAGE_BYTES", 300)
    for name in ("a", "b"):
        journal.topic(name).append_many([Draft("k", n) for n in range(1500)])
    journal.topic("b").append("rare", "last")
    for reverse in (False, True):
        found = journal.read(reverse=reverse)
        first = next(found)
        journal.topic("c").append("k", "later")
        assert len(list(found)) == 3000 and first.payload == ("last" if reverse else 0)
        journal.drop_topic("c")
    assert payloads(journal.read(kind="rare")) == ["last"]
    with journal.subscribe(kind="rare") as subscription:
        assert take(subscription, 1) == ["last"] and subscription.next(0) is None


@pytest.mark.parametrize("reverse", [False, True])
def test_a_merge_that_may_hold_nothing_reads_the_same(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    monkeypatch.setattr(across, "READER_BYTES", 1)
    monkeypatch.setattr(across, "FOLLOWER_BYTES", 1)
    fill(journal, 40)
    journal.topic("shop.east").append_many([Draft("placed", n) for n in range(40, 80)])
    journal.topic("other").append("placed", 80)
    expected = list(range(81))
    assert payloads(journal.read(reverse=reverse)) == expected[:: -1 if reverse else 1]
    assert payloads(journal.read(kind="paid", reverse=reverse)) == expected[1:40:2][:: -1 if reverse else 1]
    with journal.subscribe(buffer=3) as subscription:
        assert take(subscription, 81) == expected


def test_a_search_goes_on_where_each_topic_was_left(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(across, "STEP", 5)
    for n in range(90):
        journal.topic(("a", "b", "c")[n % 3]).append("rare" if n % 30 == 7 else "common", n)
    for reverse in (False, True):
        assert payloads(journal.read(kind="rare", reverse=reverse)) == [7, 37, 67][:: -1 if reverse else 1]
    with journal.subscribe(kind="rare", buffer=2) as subscription:
        assert take(subscription, 3) == [7, 37, 67] and subscription.next(0) is None


def test_what_penstock_writes_for_itself_is_read_when_it_is_named(journal: Journal) -> None:
    queue = journal.queue("mail")
    queue.push({"to": "ada"}, reply=True)
    with queue.receive() as delivery:
        assert delivery is not None
    journal.topic("exam.results").append("passed", 1)
    found = {event.topic for event in journal.read()}
    assert found == {"mail", "exam.results"}
    assert {event.topic for event in journal.read("*.results")} == {"exam.results"}
    assert {event.topic for event in journal.read("mail.*")} == {"mail.results"}
    assert {event.topic for event in journal.read(["mail", "mail.results"])} == {"mail", "mail.results"}


def test_a_trimmed_position_names_its_topic_and_where_to_go_on(journal: Journal) -> None:
    fill(journal)
    journal.topic("other").compact(3)
    assert payloads(journal.read("*")) == [0, 1, 3, 4, 6, 7, 9, 10, 11]
    with pytest.raises(PositionTrimmed, match="'other'") as raised:
        list(journal.read(after={"other": 1}))
    assert raised.value.oldest == 4
    assert payloads(journal.read(after={"other": 3, "shop.east": 4, "shop.west": 4})) == [11]


def test_what_is_too_old_is_left_out_and_passed(journal: Journal, clock: ManualClock) -> None:
    fill(journal, 6)
    journal.topic("other").configure(max_age=60)
    clock.advance(120)
    fill(journal, 3, 6)
    assert payloads(journal.read()) == [0, 1, 3, 4, 6, 7, 8]
    with pytest.raises(PositionTrimmed, match="'other'"):
        list(journal.read(after={"other": 1}))


@pytest.mark.parametrize("reverse", [False, True])
def test_sealed_history_is_read_along(place: Place, tmp_path: Path, reverse: bool) -> None:
    journal = place.open()
    for start in (0, 12):
        fill(journal, 12, start)
    seal_topic(local(journal, "sealing")._core, "other", lake=str(tmp_path / "lake"), through=6)
    expected = list(range(24))
    assert payloads(journal.read(reverse=reverse)) == expected[:: -1 if reverse else 1]


def test_what_a_fence_hides_is_not_read(journal: Journal) -> None:
    fill(journal, 3)
    with journal.subscribe() as subscription:
        with journal.fence(exclusive=False) as fence:
            fence.submit("other", "placed", "hidden")
            assert payloads(journal.read()) == [0, 1, 2] == take(subscription, 3)
            assert subscription.next(0) is None
        assert take(subscription, 1) == ["hidden"]


def test_topics_may_be_dropped_and_missing(journal: Journal) -> None:
    fill(journal)
    journal.drop_topic("other")
    assert payloads(journal.read(["other", "nothing", "shop.west"], {"other": 2})) == [1, 4, 7, 10]
    assert list(journal.read("nobody.*")) == []


@pytest.mark.parametrize(
    "bad",
    [
        *({"topics": bad} for bad in ([], "a b*", [3])),
        *({"after": bad} for bad in (3, {"a": -1}, {"a b": 1})),
        *({"through": "latest"}, {"limit": -1}, {"kind": 3}),
    ],
)
def test_bad_arguments_are_refused(journal: Journal, bad: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, InvalidName)):
        list(journal.read(**bad))


# following


def test_history_of_all_comes_first_and_then_what_is_appended(journal: Journal, in_threads: InThreads) -> None:
    fill(journal)
    with journal.subscribe() as subscription:
        assert take(subscription, 12) == list(range(12))
        in_threads(lambda: [journal.topic(f"new.{n}").append("k", n) for n in range(3)])
        assert take(subscription, 3) == [0, 1, 2]
        assert subscription.next(0) is None
        expected = {"new.0": 1, "new.1": 1, "new.2": 1, "other": 4, "shop.east": 4, "shop.west": 4}
        assert subscription.positions == expected


def test_a_follower_goes_on_elsewhere_after_its_positions(journal: Journal) -> None:
    fill(journal)
    with journal.subscribe("shop.*") as subscription:
        assert take(subscription, 3) == [0, 1, 3]
        positions = subscription.positions
    with journal.subscribe("shop.*", positions) as subscription:
        assert take(subscription, 5) == [4, 6, 7, 9, 10]


def test_only_what_comes_also_of_topics_made_later(journal: Journal) -> None:
    fill(journal)
    with journal.subscribe(["shop.*"], "latest", kind="paid") as subscription:
        journal.topic("shop.north").append("placed", "no")
        journal.topic("shop.north").append("paid", "yes")
        journal.topic("elsewhere").append("paid", "no")
        journal.topic("shop.east").append("paid", "too")
        assert take(subscription, 2) == ["yes", "too"]


def test_a_follower_of_all_can_be_iterated_asynchronously(journal: Journal) -> None:
    fill(journal, 3)

    async def follow() -> list[Any]:
        found = []
        async with journal.subscribe() as subscription:
            async for event in subscription:
                found.append(event.payload)
                if len(found) == 3:
                    await asyncio.to_thread(fill, journal, 2, 3)
                if len(found) == 5:
                    break
        return found

    assert asyncio.run(follow()) == [0, 1, 2, 3, 4]


def test_nothing_is_lost_or_doubled_while_several_append(journal: Journal, in_threads: InThreads) -> None:
    def append(name: str) -> None:
        for n in range(50):
            journal.topic(name).append("k", n)

    names = ["a", "b", "c"]
    with journal.subscribe(buffer=7) as subscription:
        for name in names:
            in_threads(append, name)
        found = [subscription.next(DEADLINE) for _ in range(150)]
    for name in names:
        assert [event.seq for event in found if event and event.topic == name] == list(range(1, 51))


def test_a_follower_that_met_a_trimmed_position_gets_what_it_had_not_been_given(journal: Journal) -> None:
    fill(journal, 12)
    with journal.subscribe(buffer=3) as subscription:
        assert take(subscription, 3) == [0, 1, 2]
        fill(journal, 300, 12)
        assert take(subscription, 3) == [3, 4, 5]
        positions = subscription.positions
        assert positions == {"other": 2, "shop.east": 2, "shop.west": 2}
        journal.topic("other").compact(90)
        found, error = [], None
        try:
            while (event := subscription.next(0)) is not None:
                found.append(event)
        except PositionTrimmed as raised:
            error = raised
    given = {(event.topic, event.seq) for event in found}
    assert error is not None and error.oldest == 91
    for topic in ("other", "shop.east", "shop.west"):
        last = subscription.positions[topic]
        assert {(topic, seq) for seq in range(3, last + 1)} <= given


@on("sqlite")
def test_a_follower_with_a_long_backlog_looks_for_other_processes_topics_on_its_way(place: Place) -> None:
    writer, reader = place.open(), place.open(read_only=True)
    for n in range(200):
        writer.topic("busy").append("k", n)
    with reader.subscribe(buffer=1) as subscription:
        assert take(subscription, 1) == [0]
        writer.topic("new").append("k", "new")
        local(reader, "following")._core.hub.notify_all()  # as the watcher does that sees the commit
        given = [event.topic for event in (subscription.next(0) for _ in range(200)) if event]
    assert given.count("busy") == 199 and given.count("new") == 1


def test_closing_the_journal_wakes_followers_of_all(place: Place, in_threads: InThreads) -> None:
    journal = place.open()
    subscription = journal.subscribe()
    ended: list[BaseException] = []

    def follow() -> None:
        try:
            subscription.next(DEADLINE)
        except Closed as error:
            ended.append(error)

    thread = in_threads(follow)
    journal.topic("a").append("k")
    thread.join(DEADLINE)
    thread = in_threads(follow)
    journal.close()
    thread.join(DEADLINE)
    assert not thread.is_alive() and ended


@on("sqlite")
def test_commits_of_another_process_wake_a_follower_of_all(place: Place) -> None:
    writer = place.open()
    writer.topic("t0").append("k", 0)
    reader = place.open(read_only=True)
    with reader.subscribe("t*") as subscription:
        assert take(subscription, 1) == [0] and subscription.next(0) is None
        writer.topic("t1").append("k", 1)
        assert take(subscription, 1) == [1] and payloads(reader.read()) == [0, 1]


# cursors


def test_a_named_cursor_is_the_consumers_in_each_topic(journal: Journal) -> None:
    fill(journal)
    assert journal.cursor("billing") == {}
    events: list[Event] = list(journal.read("shop.*", limit=5))
    journal.commit("billing", {event.topic: event.seq for event in events})
    assert journal.cursor("billing") == {"shop.east": 3, "shop.west": 2}
    assert payloads(journal.read("shop.*", journal.cursor("billing"))) == [7, 9, 10]
    assert journal.topic("shop.west").lag("billing") == 2
    assert journal.topic("shop.west").compact(4).removed == 2, "compaction waits for it"
    journal.commit("billing", {"shop.east": 1, "other": 4, "gone": 3})
    assert journal.cursor("billing") == {"other": 4, "shop.east": 3, "shop.west": 2}


def test_a_cursor_beyond_the_end_moves_none_of_them(journal: Journal) -> None:
    fill(journal)
    with pytest.raises(ConfigError, match="ends at 4"):
        journal.commit("billing", {"other": 2, "shop.east": 9})
    assert journal.cursor("billing") == {}
