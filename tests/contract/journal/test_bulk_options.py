"""Blocks whose events ask for something: judged as one batch of drafts, whether they are staged in steps or not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from bulk_steps import publish_in_steps

from penstock import Journal, ManualClock
from penstock.core.journal.blocks import (
    Columns,
    PendingWire,
    RowOptions,
    Wire,
    build_wire,
    decode_pending,
    encode_wire,
    with_options,
)
from penstock.core.journal.bulk import PreparedPiece, stage, staged_batches
from penstock.core.journal.checking import checked_wire
from penstock.core.journal.writer import WriteRequest
from penstock.errors import ConfigError, Conflict, FenceActive, PenstockError, QueueFull
from penstock.transfer.publishing import Blocks, BulkCommit, publish_blocks, publish_staged

BATCH = b"0123456789abcdef"


@pytest.fixture(autouse=True, params=["at once", "in steps"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in steps":
        publish_in_steps(monkeypatch)


def wire(*numbers: int, keys: list[str | None] | None = None, **options: list[Any]) -> Wire:
    columns = Columns(["bulk"] * len(numbers), [b'{"n":%d}' % n for n in numbers], key=keys)
    return with_options(build_wire(columns, 0, 0, 0), RowOptions(**options))


def write(journal: Any, *wires: Wire, queue: str | None = None, mark: str | None = None, version: int = 1) -> bool:
    pieces = [(queue or "orders", one) for one in wires]
    blocks = Blocks(iter(pieces), 1_000, sum(one.count for one in wires), True)
    return publish_blocks(journal, blocks, mark, version, queue)


def numbers(journal: Any, topic: str = "orders") -> list[int]:
    return [event.payload["n"] for event in journal.topic(topic).read()]


def staged(journal: Any) -> int:
    with journal._engine.read() as snap:
        return len(list(staged_batches(snap)))


def test_duplicates_are_found_within_a_block_across_blocks_and_in_the_topic(journal: Any, reopen: Any) -> None:
    journal.topic("orders").append("one", {"n": -1}, dedup="a")
    write(journal, wire(0, 1, 2, dedup=["a", "b", None]), wire(3, 4), wire(5, 6, dedup=["b", "c"]))
    assert numbers(journal) == [-1, 1, 2, 3, 4, 6] and staged(journal) == 0
    journal = reopen(journal)
    assert journal.topic("orders").append("one", {"n": 9}, dedup="c").seq == 6
    write(journal, wire(7, 8, dedup=["b", "c"]))
    assert len(numbers(journal)) == 6


def test_a_window_is_about_earlier_writes(journal: Any, clock: ManualClock) -> None:
    journal.topic("orders").configure(dedup_window=10)
    write(journal, wire(0, dedup=["a"]))
    clock.advance(9)
    write(journal, wire(1, dedup=["a"]))
    clock.advance(2)
    write(journal, wire(2, dedup=["a"]), wire(3, dedup=["a"]))
    assert numbers(journal) == [0, 2]


def test_every_expectation_is_about_the_entity_before_the_write(journal: Any) -> None:
    at = journal.topic("orders").append("one", {"n": -1}, key="k").seq
    write(journal, wire(0, keys=["k"], expect=[at]), wire(1, 2, keys=["k", "new"], expect=[at, 0]))
    assert numbers(journal) == [-1, 0, 1, 2]
    with pytest.raises(Conflict, match=r"position 3, not 1.*kind 'bulk' with key 'k'"):
        write(journal, wire(3), wire(4, keys=["x"], expect=[0]), wire(5, keys=["k"], expect=[at]), mark="job")
    assert numbers(journal) == [-1, 0, 1, 2] and staged(journal) == 0
    assert write(journal, wire(3), mark="job"), "a write that failed has left no mark"


def test_a_verified_topic_and_two_topics_in_one_write(journal: Any) -> None:
    journal.topic("orders").configure(verified=True)
    pieces = [
        ("orders", wire(0, 1, keys=["k", "k"], dedup=["a", "b"])),
        ("other", wire(2, dedup=["a"])),
        ("orders", wire(3, keys=["k"], dedup=["a"])),
    ]
    publish_blocks(journal, Blocks(iter(pieces), 1_000, 4, True), None, 0)
    assert (numbers(journal), numbers(journal, "other")) == ([0, 1], [2])
    assert journal.topic("orders").verify().events == 2


def test_a_write_that_is_repeated_is_known_by_its_mark_before_anything_is_judged(journal: Any) -> None:
    first = wire(0, keys=["k"], expect=[0], dedup=["a"])
    assert write(journal, first, mark="job")
    assert not write(journal, first, mark="job") and numbers(journal) == [0]


def test_delays_and_priorities_count_from_the_commit(journal: Any, clock: ManualClock) -> None:
    queue = journal.queue("work", priority=True)
    soon = clock.now_ms() + 20_000
    asked = wire(0, 1, 2, 3, delay=[10_000, None, None, 0], not_before=[None, soon, None, None], priority=[1, 2, 3, 4])
    clock.advance(5)
    write(journal, asked, queue="work")
    assert [delivery.payload["n"] for delivery in queue.take_many(9)] == [3, 2]
    clock.advance(9.9)
    assert queue.take() is None
    clock.advance(0.1)
    assert queue.take().payload["n"] == 0
    clock.advance(5)
    assert queue.take().payload["n"] == 1


def test_own_budgets_and_groups(journal: Any) -> None:
    queue = journal.queue("work", mode="fanout")
    queue.add_group("late")
    write(journal, wire(0, 1, max_attempts=[1, None]), wire(2, 3, priority=[2147483647, None]), queue="work")
    for group in ("early", "late"):
        taken = queue.take_many(9, group=group)
        assert [delivery.payload["n"] for delivery in taken] == [2, 0, 1, 3]
        for delivery in taken:
            delivery.nack()
        assert [event.payload["n"] for event in queue.failed(group)] == [0]


def test_a_queue_is_as_full_as_what_is_new(journal: Any) -> None:
    queue = journal.queue("work", max_size=3)
    write(journal, wire(0, 1, dedup=["a", "b"]), queue="work")
    with pytest.raises(QueueFull, match="holds 2 messages of at most 3; 2 more"):
        write(journal, wire(2, 3, 4, dedup=["b", "c", "d"]), queue="work")
    write(journal, wire(2, 3, 4, dedup=["b", "c", "c"]), queue="work")
    assert len(queue) == 3 and staged(journal) == 0


def test_a_throttle_and_a_debounce_see_every_message(journal: Any, clock: ManualClock) -> None:
    first, newest = journal.queue("first", throttle=10), journal.queue("newest", debounce=10, max_size=3)
    for queue in (first, newest):
        write(journal, wire(0, 1, keys=["a", "b"]), wire(2, 3, keys=["a", None]), queue=queue.name)
        if queue is newest:
            clock.advance(11)
    assert [event.payload["n"] for event in first] == [0, 1, 3]
    assert sorted(delivery.payload["n"] for delivery in newest.take_many(5)) == [1, 2, 3]


def test_lanes_get_their_turns_beside_messages_that_wait(journal: Any, clock: ManualClock) -> None:
    queue = journal.queue("work", fair_by="key:/")
    write(journal, wire(0, 1, 2, 3, keys=["a/1", None, "a/2", "b/1"], delay=[None, 10_000, None, None]), queue="work")
    assert [delivery.payload["n"] for delivery in queue.take_many(9)] == [0, 3, 2]
    clock.advance(10)
    assert queue.take().payload["n"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": [None, 1]}, "no priorities.*: {.n.:1}"),
        ({"priority": [None, 1 << 40]}, "32 bits"),
        ({"delay": [None, -5]}, "delay must be at least 0"),
        ({"max_attempts": [0, None]}, "max_attempts must be"),
        ({"delay": [5, None], "not_before": [5, None]}, "not both"),
        ({"keys": ["k", None], "delay": [5, None]}, "key= cannot be combined"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_a_push_refuses_is_refused_in_the_commit_as_well(journal: Any, options: Any, message: str) -> None:
    journal.queue("work")
    with pytest.raises(ConfigError, match=message):
        write(journal, wire(5), wire(0, 1, **options), queue="work")
    assert numbers(journal, "work") == [] and staged(journal) == 0
    if "priority" in options:
        with pytest.raises(ConfigError, match="only a queue understands"):
            write(journal, wire(0, 1, **options))


def test_nothing_passes_an_exclusive_fence(journal: Any) -> None:
    with journal.fence() as fence:
        for one in (wire(0), wire(1, dedup=["a"])):
            with pytest.raises(FenceActive):
                write(journal, one, mark="job")
        fence.submit("orders", "one", {"n": 9})
    assert numbers(journal) == [9]
    assert write(journal, wire(1, dedup=["a"]), mark="job")


def test_blocks_from_elsewhere_are_checked(journal: Any) -> None:
    good = wire(0, 1, keys=["k", None], dedup=["a", None], expect=[3, None])
    assert isinstance(checked_wire("orders", encode_wire(good)), PendingWire)
    plain = checked_wire("orders", encode_wire(wire(0, 1)))
    assert type(plain) is Wire and type(decode_pending(encode_wire(wire(0)))) is Wire
    for bad, message in (
        (wire(0, 1, dedup=["a"]), "has options for"),
        (wire(0, 1, dedup=["a", ""]), "dedup must be text that is not empty"),
        (wire(0, 1, keys=["k", None], expect=[None, 3]), "of event 1 needs key="),
        (wire(0, 1, keys=["k", None], expect=[-1, None]), "must be a position"),
        (wire(0, 1, priority=["high", None]), "cannot be taken.*does not decode"),
        (wire(0, 1, not_before=[None, 1 << 62]), "event 1: not_before must be in the years"),
    ):
        with pytest.raises(ConfigError, match=message):
            checked_wire("orders", encode_wire(bad))


def test_stored_blocks_carry_no_options(journal: Any) -> None:
    made = PreparedPiece([("orders", wire(0, 1, dedup=["a", "b"])), ("orders", wire(2, 3))])
    journal._core.run(lambda commit: stage(commit, BATCH, 0, made))
    assert publish_staged(journal, BulkCommit([BATCH]))
    assert numbers(journal) == [0, 1, 2, 3]
    with journal._engine.read() as snap:
        stored = [value for _, value in snap.scan(b"", b"\xff")]
    assert not any(value in stored for value in made.values[:1])
    assert not any(
        isinstance(found, list) and len(found) > len(Wire.__struct_fields__) for found in map(_decoded, stored)
    )


def _decoded(value: bytes) -> object:
    try:
        return msgspec.msgpack.decode(value[:-4])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def test_a_commit_that_is_done_a_second_time_loses_nothing(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operation of the same commit fails half-way, and both are done again, one by one."""
    writer = journal._core.writer  # type: ignore[attr-defined]
    inner = writer.run

    def spoil(commit: Any) -> None:
        commit.set_mark("spoiled", 1)
        raise PenstockError("half-way")

    def run(operation: WriteRequest[Any]) -> Any:
        writer._commit((operation, WriteRequest(spoil)))
        if operation.error is not None:
            raise operation.error
        return operation.value

    monkeypatch.setattr(writer, "run", run)
    assert write(journal, wire(0, 1), wire(2, dedup=["a"]), mark="job")
    monkeypatch.setattr(writer, "run", inner)
    assert numbers(journal) == [0, 1, 2]
