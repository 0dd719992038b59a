"""Objects staged by many and published by one: all at once, once per mark, whatever goes wrong in between."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.buffer import Consumer, Metadata
from penstock.buffer.arrow import arrow_to_block
from penstock.buffer.format import Manifest, Mark, append, encode_entries, parse_manifest
from penstock.buffer.manifest import BufferCounters, BufferPaths, ManifestObject
from penstock.buffer.producer import Publisher, StagedObject
from penstock.core.clock import ManualClock, SystemClock
from penstock.core.observe.metrics import Registry
from penstock.errors import ConfigError, Corrupt, StorageError
from penstock.objects.store import ObjectStore

from .conftest import Buffer
from .faults import FaultyStore, Killed

PLACE = BufferPaths("ingest/manifest", "ingest")


def publisher(store: ObjectStore, **options) -> Publisher:
    return Publisher(store, PLACE, pause=lambda seconds: None, **options)


def stage(store: ObjectStore, *entries: bytes, **options) -> StagedObject:
    block = arrow_to_block(pa.array(entries, pa.binary()))
    return publisher(store, **options).stage(block, [Metadata(0, 5, b"m")], len(entries), "none")


def delivered(store: ObjectStore) -> list[list[bytes]]:
    """What a new consumer gets, and removes."""
    found = []
    with Consumer(store, gc_interval=None) as consumer:
        while (batch := consumer.next_batch()) is not None:
            found.append(batch.entries)
            consumer.ack(batch.sequence)
    return found


# ── the bytes ──


@given(st.lists(st.binary(max_size=40)), st.integers(0, 5))
def test_arrow_entries_are_encoded_like_any_others(entries: list[bytes], skipped: int):
    array = pa.array(entries, pa.binary()).slice(skipped)
    assert bytes(arrow_to_block(array)) == encode_entries(entries[skipped:])
    assert bytes(arrow_to_block(array.cast(pa.large_binary()))) == encode_entries(entries[skipped:])


def test_text_is_encoded_as_utf_8():
    assert bytes(arrow_to_block(pa.array(["é", ""]))) == encode_entries(["é".encode(), b""])


def test_a_mark_is_with_the_last_entry_and_readers_do_not_notice():
    entries = [("a", ()), ("b", (Metadata(0, 1, b"payload"),))]
    marked = Manifest(append(parse_manifest(None), entries, Mark("query:1", 7)))
    plain = Manifest(append(parse_manifest(None), entries))
    assert list(marked) == list(plain)
    assert list(marked.marks()) == [("query:1", 7)]
    assert list(marked.marks(through=0)) == []
    assert list(plain.marks()) == []


def test_a_payload_that_ends_like_a_mark_is_none():
    payload = b"name" + (7).to_bytes(8, "little") + (4).to_bytes(2, "little") + b"PSmk"
    manifest = Manifest(append(parse_manifest(None), [("a", (Metadata(0, 1, payload),))]))
    assert list(manifest.marks()) == []
    both = Manifest(append(parse_manifest(None), [("a", (Metadata(0, 1, payload),))], Mark("real", 1)))
    assert list(both.marks()) == [("real", 1)]


@pytest.mark.parametrize("mark", [Mark("", 1), Mark("x" * 513, 1), Mark("x", -1), Mark("x", 1 << 64)])
def test_a_mark_that_cannot_be_written_is_refused(mark: Mark):
    with pytest.raises(ConfigError, match="mark"):
        append(parse_manifest(None), [("a", ())], mark)


# ── publishing ──


def test_all_shares_appear_with_one_write(store: ObjectStore):
    shares = [stage(store, b"a", b"b"), stage(store, b"c")]
    assert parse_manifest(store.get(PLACE.manifest)).count == 0
    assert publisher(store).publish(shares)
    assert delivered(store) == [[b"a", b"b"], [b"c"]]


def test_work_that_is_done_again_finds_itself_done(store: ObjectStore):
    mark = Mark("query:q", 3)
    assert publisher(store).publish([stage(store, b"a")], mark)
    assert not publisher(store).publish([stage(store, b"a")], mark)
    assert not publisher(store).publish([stage(store, b"older")], Mark("query:q", 2))
    assert publisher(store).publish([stage(store, b"other")], Mark("query:other", 0))
    assert publisher(store).publish([stage(store, b"b")], Mark("query:q", 4))
    assert delivered(store) == [[b"a"], [b"other"], [b"b"]]


def test_it_finds_itself_done_after_its_entries_were_consumed_and_everything_else_was_forgotten(memory: ObjectStore):
    assert publisher(memory).publish([stage(memory, b"a")], Mark("query:q", 3))
    assert delivered(memory) == [[b"a"]]
    memory.delete(["ingest/manifest.trail"])
    for _ in range(3):
        publisher(memory).publish([stage(memory, b"x")])
    assert delivered(memory) == [[b"x"]] * 3
    assert not publisher(memory).publish([stage(memory, b"a")], Mark("query:q", 3))
    assert delivered(memory) == []


def test_damaged_marks_are_named_and_nothing_is_written(memory: ObjectStore):
    publisher(memory).publish([stage(memory, b"a")], Mark("query:q", 3))
    memory.put("ingest/manifest.marks", b"{]")
    with pytest.raises(Corrupt, match=r"ingest/manifest\.marks"):
        publisher(memory).publish([stage(memory, b"b")], Mark("query:q", 4))
    assert parse_manifest(memory.get(PLACE.manifest)).count == 1


def test_more_names_than_are_kept_forget_those_not_heard_of_for_longest(memory: ObjectStore, monkeypatch):
    monkeypatch.setattr("penstock.buffer.manifest.MARK_NAMES", 2)
    clock = ManualClock()
    buffer = Buffer(memory)
    for name in ("one", "two", "three"):
        publisher(memory).publish([stage(memory, name.encode())], Mark(name, 1))
        consumer = buffer.consumer(clock=clock)
        consumer.ack_through(consumer.read_manifest().next_sequence - 1)
        clock.advance(1)
    found = ManifestObject(memory, PLACE.manifest, SystemClock(), BufferCounters(Registry()).for_role("producer"))
    assert [found.latest_mark(name) for name in ("one", "two", "three")] == [None, 1, 1]


@pytest.mark.parametrize("mark", [None, Mark("query:q", 1)])
def test_an_answer_that_was_lost_makes_no_second_copy(memory: ObjectStore, mark: Mark | None):
    faulty = FaultyStore(memory)
    shares = [stage(memory, b"a"), stage(memory, b"b")]
    faulty.on("put_if", "lose")
    publisher(faulty).publish(shares, mark)
    assert delivered(memory) == [[b"a"], [b"b"]]


@pytest.mark.parametrize("mark", [None, Mark("query:q", 1)])
def test_a_refused_write_is_tried_again(memory: ObjectStore, mark: Mark | None):
    faulty = FaultyStore(memory)
    faulty.on("put_if", "fail", "fail")
    assert publisher(faulty).publish([stage(memory, b"a")], mark)
    assert delivered(memory) == [[b"a"]]


def test_a_store_that_stays_silent_is_given_up_and_the_repetition_finds_out(memory: ObjectStore):
    faulty = FaultyStore(memory)
    faulty.on("put_if", "lose")
    faulty.on("read", "ok", "ok", *["fail"] * 1000)
    shares = [stage(memory, b"a")]
    with pytest.raises(StorageError):
        publisher(faulty, patience=0).publish(shares, Mark("query:q", 1))
    assert not publisher(memory).publish([stage(memory, b"a")], Mark("query:q", 1))
    assert delivered(memory) == [[b"a"]]


def test_a_write_that_arrives_after_its_writer_was_killed_and_replaced_comes_once(memory: ObjectStore):
    """The killed one's put is still on its way when its successor has looked for the mark."""
    mark = Mark("query:q", 1)
    first = [stage(memory, b"a")]
    second = [stage(memory, b"a")]

    def late(act):
        publisher(memory).publish(first, mark)
        return act()

    faulty = FaultyStore(memory)
    faulty.on("put_if", late)
    assert not publisher(faulty).publish(second, mark)
    assert delivered(memory) == [[b"a"]]


def test_killed_in_the_middle_the_repetition_writes_what_is_missing(memory: ObjectStore):
    def die(act):
        raise Killed

    faulty = FaultyStore(memory)
    faulty.on("put_if", die)
    with pytest.raises(Killed):
        publisher(faulty).publish([stage(memory, b"a")], Mark("query:q", 1))
    assert publisher(memory).publish([stage(memory, b"a")], Mark("query:q", 1))
    assert delivered(memory) == [[b"a"]]


# ── beside a collector ──


def test_shares_nobody_published_are_collected(memory: ObjectStore):
    clock = ManualClock()
    lost = stage(memory, b"lost", clock=clock)
    clock.advance(601)
    assert Buffer(memory).consumer(clock=clock).collect_garbage() == 1
    assert memory.get(lost.location) is None


def test_shares_that_waited_long_are_stored_again_before_they_are_published(memory: ObjectStore):
    clock = ManualClock()
    old = stage(memory, b"old", clock=clock)
    clock.advance(300)
    new = stage(memory, b"new", clock=clock)
    assert publisher(memory, clock=clock).publish([old, new])
    names = [location for _, location in parse_manifest(memory.get(PLACE.manifest)).locations()]
    assert names[0] != old.location and names[1] == new.location
    clock.advance(500)
    assert Buffer(memory).consumer(clock=clock).collect_garbage() == 1
    assert delivered(memory) == [[b"old"], [b"new"]]


def test_a_share_that_was_collected_stops_the_publication_and_nothing_is_half_written(memory: ObjectStore):
    clock = ManualClock()
    old = stage(memory, b"old", clock=clock)
    clock.advance(601)
    Buffer(memory).consumer(clock=clock).collect_garbage()
    with pytest.raises(StorageError, match="gc_grace"):
        publisher(memory, clock=clock).publish([old, stage(memory, b"new", clock=clock)], Mark("query:q", 1))
    assert parse_manifest(memory.get(PLACE.manifest)).count == 0
