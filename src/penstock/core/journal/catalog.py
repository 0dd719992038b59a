"""The writer's view of each topic, so that it need not ask the store: the topic's id, settings and end.

Only the thread that leads the writer changes a `Head`. When another process has committed, the writer drops everything
cached and reads it again in the next transaction.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from penstock.core.engine.contract import Snapshot, WriteTx
from penstock.core.journal import keys
from penstock.core.journal.blocks import (
    Block,
    Columns,
    read_block,
    reference_in,
    resolve_reference,
)
from penstock.core.model.durations import Seconds
from penstock.errors import Corrupt
from penstock.limits import (
    TOPIC_DEDUP_WINDOW,
)

T = TypeVar("T")


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The retention settings of a topic: values that can be compared, printed and stored."""

    max_age: Seconds | None = None
    """Events that were recorded more than this many seconds ago are removed in the background."""
    max_events: int | None = None
    """About this many of the newest events are kept."""
    max_bytes: int | None = None
    """The oldest events are removed when the topic's blocks take more than this; the newest block always stays."""
    by_key: bool = False
    """A state topic: settled history keeps only the newest event of every key."""
    dedup_window: Seconds | None = TOPIC_DEDUP_WINDOW
    """The seconds for which a dedup key is remembered; None for forever."""
    verified: bool = False
    """True if commits keep a hash of every event, so that `verify` finds every later change of an event."""
    indexed: bool = True
    """True if events are indexed by key, cause and correlation in the background; without an index, look-ups read
    the whole topic.
    """


class TopicRecord(msgspec.Struct, frozen=True, array_like=True):
    """The stored record of a topic."""

    topic_id: keys.TopicId
    settings: Settings = Settings()
    check: bytes = b""
    """The CRC-32 of the name and of the fields above: with a damaged id, another topic's events would appear under
    this name.
    """


class TopicState(msgspec.Struct, frozen=True, array_like=True):
    """The counters of a topic that outlive its removed events."""

    trimmed: keys.StoredPosition = 0
    """Every position up to this one was removed."""
    removed: int = 0
    """The number of events that were ever removed."""
    latest: keys.StoredPosition = 0
    """The highest assigned position at the time when the last block was removed; existing blocks take precedence."""
    recorded_ms: int = 0
    last_id: bytes = b""
    compacted: keys.StoredPosition = 0
    """Positions up to this position may have been compacted by key; it grows whenever compaction removes events."""
    sealed: keys.StoredPosition = 0
    """Positions up to this position are in Parquet files of a lake; see `penstock.core.journal.sealed.files`."""
    unreadable: str = ""
    """The reason why housekeeping could not read the topic at its last attempt; empty after success."""
    began: keys.StoredPosition = 0
    """The topic began after this position; earlier positions belonged to dropped topics of this name."""
    unreadable_at: keys.StoredPosition = 0
    """The position of the block that `unreadable` is about; 0 for another reason."""
    referred: keys.StoredPosition = 0
    """After this position the topic has no segment; between `sealed` and this position, segments are among hot
    blocks.
    """

    erased: int = 0
    """The number of commits that have erased contents of events."""

    @property
    def version(self) -> int:
        """Grows whenever events were taken out or erased: a state that was folded before is void."""
        return self.compacted + self.erased

    @property
    def in_files(self) -> int:
        """The position after which no event is in a Parquet file."""
        return max(self.sealed, self.referred)


_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(TopicRecord).decode
_decode_state = msgspec.msgpack.Decoder(TopicState).decode
_decode_looks = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode


def topic_names(snap: Snapshot) -> Iterator[str]:
    """Returns the names of all topics, sorted."""
    return (keys.stored_name(key[1:]) for key, _ in snap.scan(keys.TOPIC, keys.prefix_end(keys.TOPIC)))


def load_record(snap: Snapshot, name: str) -> TopicRecord | None:
    value = snap.get(keys.topic_key(name))
    if value is None:
        return None
    record = _checked(_decode_record, value, name)
    if record.check and record.check != _record_check(name, value):
        raise Corrupt(f"the record of topic {name!r} fails its checksum", topic=name)
    return record


def save_record(tx: WriteTx, name: str, record: TopicRecord) -> None:
    value: bytes = _encode(TopicRecord(record.topic_id, record.settings, bytes(4)))
    tx.put(keys.topic_key(name), value[:-4] + _record_check(name, value))


def _record_check(name: str, value: bytes) -> bytes:
    return zlib.crc32(value[:-4], zlib.crc32(name.encode())).to_bytes(4)


def mark_aged(tx: WriteTx, name: str, settings: Settings) -> None:
    """Notes whether a topic has a `max_age`: such topics need retention even when no process appends to them.

    The row has a value while the clock is behind the topic's recording time; see `retention_bound`.
    """
    if settings.max_age is not None:
        tx.put(keys.aged_key(name), b"")
    else:
        tx.delete(keys.aged_key(name))


def load_looks(snap: Snapshot, name: str) -> list[tuple[int, int]]:
    """Returns the time when retention looked at a topic while the clock was behind its recording time, and the newest
    position then."""
    value = snap.get(keys.aged_key(name))
    return _checked(_decode_looks, value, name) if value else []


def load_state(snap: Snapshot, topic_id: int, name: str) -> TopicState:
    value = snap.get(keys.state_key(topic_id))
    return TopicState() if value is None else _checked(_decode_state, value, name)


def save_with_end(tx: WriteTx, head: Head, state: TopicState) -> None:
    """Saves a topic's state with the topic's end, because the last block may be gone."""
    ended = (head.latest, head.recorded_ms, head.last_id.to_bytes(16))
    save_state(tx, head.topic_id, replace(state, latest=ended[0], recorded_ms=ended[1], last_id=ended[2]))


def save_state(tx: WriteTx, topic_id: int, state: TopicState) -> None:
    tx.put(keys.state_key(topic_id), _encode(state))


def _checked(decode: Callable[[bytes], T], value: bytes, name: str) -> T:
    try:
        return decode(value)  # inline, because every commit and read passes here: this saves the call of `keys.stored`
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the record of topic {name!r} does not decode: {error}", topic=name) from error


def last_block(snap: Snapshot, topic_id: int, name: str) -> Block | None:
    """Returns the newest block of a topic."""
    for key, value in snap.scan(*keys.block_range(topic_id), reverse=True):
        return open_block(snap, key, value, name)
    return None


def first_block(snap: Snapshot, topic_id: int, name: str) -> Block | None:
    """Returns the oldest block of a topic."""
    for key, value in snap.scan(*keys.block_range(topic_id)):
        return open_block(snap, key, value, name)
    return None


def missing(topic: str, first: int, last: int) -> Corrupt:
    """Returns the error for missing positions."""
    which = f"event {first} is" if first == last else f"events {first} to {last} are"
    return Corrupt(f"{which} missing, and no compaction removed them", topic=topic, seq=first)


def open_block(snap: Snapshot, key: bytes, value: bytes, topic: str) -> Block:
    """Returns a stored block, wherever it is stored, after a check against its key."""
    first = keys.block_first(key)
    try:
        found = reference_in(value, topic)
        block = read_block(value, topic) if found is None else resolve_reference(snap, found, topic)
    except Corrupt as error:
        raise Corrupt(error.args[0].split(" (")[0], topic=topic, seq=first) from error
    if block.first != first:
        raise Corrupt(f"a block that begins at {block.first} is at the place of {first}", topic=topic, seq=first)
    return block


RecentBlock = tuple[int, int, int, Columns]
"""The events of one commit: their first position, their recording time, their first id, and their columns."""


class RecentBlocks(msgspec.Struct, eq=False, weakref=False):
    """Neighbouring small blocks at the end of a topic, each of one commit."""

    stamp: int
    """The catalogue's count at the beginning; the tail is invalid when others have exchanged blocks since."""
    parts: list[RecentBlock]
    size: int = 0
    next: int = 0
    """The position after the last block; 0 without blocks."""


class Head(msgspec.Struct, eq=False):
    """The end of a topic, as far as the writer knows it."""

    name: str
    topic_id: int
    settings: Settings
    latest: int
    recorded_ms: int
    last_id: int
    newest: dict[str, int] | None = None
    """After the first look-up: the newest position of entities that were looked up or written after `since`."""
    since: int = 0
    tail: RecentBlocks | None = None
    """The newest small blocks, while the writer still knows their contents."""
    id_bits: int = 0
    """The bits that all ids of the topic's events share: see `keys.id_bits`."""
    unfolded: bool = False
    """True if the store already lists this topic among the topics whose causes and correlations must be noted."""
    slowest: tuple[str, int] | None = None
    """The slowest cursor and its position, while the writer knows it."""

    def ended(self, latest: int, recorded_ms: int, last_id: int, *, unfolded: bool) -> Head:
        """Returns the head after further events."""
        settings, bits = self.settings, self.id_bits
        head = Head(self.name, self.topic_id, settings, latest, recorded_ms, last_id, id_bits=bits, unfolded=unfolded)
        head.slowest = self.slowest
        return head


class Barrier:
    """A barrier in the catalog, which keeps all callers except its owner from appending."""

    __slots__ = ("owner", "passing")

    def __init__(self) -> None:
        self.passing = False
        """True while the owner's operation runs."""
        self.owner = ""
        """The process that raised the barrier, for people, when it is another process."""


FindFence = Callable[[WriteTx], str]
"""Returns the process with an open exclusive fence, for people; "" for none.

May remove the fences of dead processes.
"""


class Catalog:
    """The heads of the topics this writer has touched."""

    def __init__(self) -> None:
        self.heads: dict[str, Head] = {}
        self.last_id = 0
        """The newest id of this process: ids of one millisecond are in the order of the commits."""
        self.barrier: Barrier | None = None
        self.elsewhere = Barrier()
        """The barrier for exclusive fences of other processes."""
        self.find_fence: FindFence | None = None
        """The function that finds an exclusive fence of another process, where other processes may write the store."""
        self.epoch = 0
        """A number that changes with every `forget`, so that the layers above know when to drop their caches."""
        self.undone = 0
        """A number that grows when a commit fails: blocks that were read inside the commit may never have been
        written.
        """
        self.reshaped = 0
        """A number that grows whenever others than the housekeeper may have exchanged blocks."""
        self.unfolded = 0
        """The number of topics that commits have noted as unfolded."""
        self.exchanged = 0
        """A number that grows whenever others than the writer may have exchanged blocks."""

    def refresh_barrier(self, tx: WriteTx) -> None:
        """Reads the fence again after a commit of another process, which may have opened or ended an exclusive
        fence.
        """
        if self.find_fence is not None and (self.barrier is None or self.barrier is self.elsewhere):
            self.elsewhere.owner = self.find_fence(tx)
            self.barrier = self.elsewhere if self.elsewhere.owner else None

    def forget(self, *, foreign: bool = False) -> None:
        """Drops everything cached: another process wrote (`foreign`), or a commit failed."""
        self.heads.clear()
        self.undone += not foreign
        if self.find_fence is not None and self.barrier is None:
            self.barrier = self.elsewhere  # so that the next append checks: the removal of a fence may have failed
        self.epoch += 1
        self.reshaped += 1
        self.exchanged += 1

    def load(self, tx: WriteTx, name: str) -> Head | None:
        """Reads the head of a topic that is not in `heads`; None when the topic does not exist."""
        record = load_record(tx, name)
        if record is None:
            return None
        head = self.heads[name] = load_head(tx, name, record)
        return head


def load_head(tx: Snapshot, name: str, record: TopicRecord) -> Head:
    state = load_state(tx, record.topic_id, name)
    latest, recorded, last_id = state.latest, state.recorded_ms, int.from_bytes(state.last_id)
    block = last_block(tx, record.topic_id, name)
    if block is not None and block.last >= latest:
        latest, recorded, last_id = block.last, block.last_recorded_ms, block.last_id
    return Head(name, record.topic_id, record.settings, latest, recorded, last_id, id_bits=keys.id_bits(name))


def create_topic(tx: WriteTx, name: str, settings: Settings | None = None) -> Head:
    """Gives a new topic its id and its beginning, which follows every earlier position of its name.

    So a position always identifies one event. A position of a dropped topic counts as trimmed in the next topic of this
    name.
    """
    value = tx.get(keys.NEXT_TOPIC)
    topic_id = keys.unpack_seq(value) if value else 1
    tx.put(keys.NEXT_TOPIC, keys.pack_seq(topic_id + 1))
    record = TopicRecord(topic_id, settings or Settings())
    save_record(tx, name, record)
    tx.put(keys.NAME + keys.hashed_topic(name, topic_id), name.encode())
    if value is None:  # a new store: every topic will have such a row
        tx.put(keys.NAME, b"")
    bits = keys.id_bits(name)
    ended = ended_topic(tx, name)
    if ended is None:
        return Head(name, topic_id, record.settings, 0, 0, 0, id_bits=bits)
    tx.delete(keys.ended_key(name))
    last, recorded_ms, last_id = ended.last, ended.recorded_ms, ended.last_id
    save_state(tx, topic_id, TopicState(last, last, last, recorded_ms, last_id, began=last))
    return Head(name, topic_id, record.settings, last, recorded_ms, int.from_bytes(last_id), id_bits=bits)


class EndedTopic(msgspec.Struct, frozen=True, array_like=True):
    """The end of a topic that was dropped."""

    last: keys.StoredPosition
    recorded_ms: int
    last_id: bytes


_decode_ended = msgspec.msgpack.Decoder(EndedTopic).decode


def ended_topic(snap: Snapshot, name: str) -> EndedTopic | None:
    """Returns the end of a topic of this name that was dropped; None for a name that never had an event, or has a
    topic."""
    value = snap.get(keys.ended_key(name))
    return None if value is None else _checked(_decode_ended, value, name)


def save_end(tx: WriteTx, head: Head) -> None:
    """Saves the end of a topic that is being dropped."""
    if head.latest:
        ended = EndedTopic(head.latest, head.recorded_ms, head.last_id.to_bytes(16))
        tx.put(keys.ended_key(head.name), _encode(ended))
