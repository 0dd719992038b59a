"""Folded states kept in the store, so that a projection reads only what is new.

    p topic name-length name version key        a saved state: the entity's, or (empty key) the whole topic's

A saved state is used only when it is what folding would give: the projection has the same version, fields and kinds,
and none of the events it was folded from has been removed since. Losing one loses time, nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from penstock.engine.contract import Snapshot, WriteTx
from penstock.entity.projection.projection import Declared, Projection
from penstock.errors import ConfigError, PositionTrimmed
from penstock.journal.commit.catalog import TopicState
from penstock.journal.storage.keys import prefix_end

P = TypeVar("P", bound=Projection)

SNAPSHOT = b"p"


class Saved(msgspec.Struct, array_like=True, frozen=True):
    """A state as it lies in the store."""

    fingerprint: int
    generation: int
    """The position of the newest event in it."""
    first: int
    """The position of the oldest event in it."""
    compacted: int
    """How far compaction by key had come when it was folded."""
    state: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Saved).decode


def saved_key(topic: int, declared: Declared, key: str | None) -> bytes:
    return _versions(topic, declared) + declared.version.to_bytes(4) + (key or "").encode()


def _versions(topic: int, declared: Declared) -> bytes:
    name = declared.name.encode()
    return SNAPSHOT + topic.to_bytes(4) + len(name).to_bytes(1) + name


def load_saved(snap: Snapshot, topic: int, declared: Declared, key: str | None) -> Saved | None:
    """A saved state, or None where there is none that can be read."""
    value = snap.get(saved_key(topic, declared, key))
    if value is None or len(value) < 4 or zlib.crc32(memoryview(value)[:-4]) != int.from_bytes(value[-4:]):
        return None
    try:
        return _decode(memoryview(value)[:-4])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def saved_states(snap: Snapshot, topic: int, declared: Declared) -> Iterator[tuple[str | None, Saved]]:
    """The states of the declared version with their keys, None for the whole topic's; those that can be read."""
    low = _versions(topic, declared) + declared.version.to_bytes(4)
    for stored, _ in snap.scan(low, prefix_end(low)):
        key = stored[len(low) :].decode() or None
        saved = load_saved(snap, topic, declared, key)
        if saved is not None:
            yield key, saved


def first_saved(snap: Snapshot, topic: int, declared: Declared) -> tuple[int, Saved] | None:
    """The version and the state of the first that is saved under a projection's name, of whatever version."""
    low = _versions(topic, declared)
    for key, value in snap.scan(low, prefix_end(low)):
        try:
            return int.from_bytes(key[len(low) : len(low) + 4]), _decode(memoryview(value)[:-4])
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None


def is_valid(saved: Saved, declared: Declared, state: TopicState) -> bool:
    """Whether folding from the beginning would still give this."""
    return (
        saved.fingerprint == declared.fingerprint and saved.first > state.trimmed and saved.compacted == state.compacted
    )


def check_folded(saved: Saved, key: str | None, state: TopicState, latest: int) -> None:
    """Refuses a state of events that a topic does not have: `project` would never fold those that come there."""
    if not 1 <= saved.first <= saved.generation <= latest:
        raise ConfigError(
            f"the state of {(key or 'the whole topic')[:40]!r} says that it was folded from events {saved.first} to "
            f"{saved.generation}; the topic's are {state.began + 1} to {latest}"
        )
    check_not_dropped(saved, key, state)


def check_not_dropped(saved: Saved, key: str | None, state: TopicState) -> None:
    """PositionTrimmed when a state was folded from events of a topic that was dropped, and has been made anew."""
    if saved.first <= state.began:
        raise PositionTrimmed(
            f"the state of {(key or 'the whole topic')[:40]!r} was folded from event {saved.first} on, of a topic that "
            f"was dropped: the one made anew begins after {state.began}",
            oldest=state.began + 1,
        )


def save(tx: WriteTx, topic: int, declared: Declared, key: str | None, saved: Saved) -> None:
    """Keeps a state, unless a newer one is there already."""
    known = load_saved(tx, topic, declared, key)
    same = ("fingerprint", "compacted", "first")
    if (
        known is not None
        and known.generation >= saved.generation
        and all(getattr(known, name) == getattr(saved, name) for name in same)
    ):
        return
    body = _encode(saved)
    tx.put(saved_key(topic, declared, key), body + zlib.crc32(body).to_bytes(4))


def drop_other_versions(tx: WriteTx, topic: int, declared: Declared) -> None:
    """Removes the states of every version but the declared one."""
    low = _versions(topic, declared)
    own = low + declared.version.to_bytes(4)
    tx.delete_range(low, own)
    tx.delete_range(low + (declared.version + 1).to_bytes(4), prefix_end(low))


def drop_version(tx: WriteTx, topic: int, declared: Declared) -> None:
    """Removes every state of the declared version."""
    own = _versions(topic, declared) + declared.version.to_bytes(4)
    tx.delete_range(own, _versions(topic, declared) + (declared.version + 1).to_bytes(4))


def pack_state(projection: object) -> bytes:
    """A state's bytes; ConfigError when a field holds something that has no form in the store."""
    try:
        return msgspec.msgpack.encode(projection)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"a state of projection {type(projection).__qualname__} cannot be saved: {error}; "
            "let its fields hold plain values, dataclasses or msgspec Structs"
        ) from error


_decoders: dict[type[Any], Any] = {}


def unpack_state(projection: type[P], state: bytes) -> P:
    """A state of its own for the caller."""
    decode = _decoders.get(projection)
    if decode is None:
        try:
            decode = msgspec.msgpack.Decoder(projection).decode
        except (TypeError, NameError) as error:
            raise ConfigError(
                f"the fields of projection {projection.__qualname__} cannot be read back: {error}; "
                "annotate them with types that can be resolved where the class is defined"
            ) from error
        _decoders[projection] = decode
    found: P = decode(state)
    return found
