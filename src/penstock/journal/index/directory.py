"""The directory of a topic's entity index: which runs there are, and through which position they are complete.

    k topic 0                 the directory
    k topic run f             a run's filter: which terms are certainly not in it
    k topic run e mark        a chunk of entities' events   (see `rows`)
    k topic run c mark        a chunk of causes             marks only: what an event caused
    k topic run r mark        a chunk of correlations       marks only

A run covers a range of positions and never changes. Runs are written by and by, in commits that need not be on disk;
a run counts from the commit that lists it in the directory, and the rows of one that is not listed are rubbish.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

import msgspec

from penstock.engine.contract import Snapshot, WriteTx
from penstock.errors import Corrupt

INDEX = b"k"
FILTER, ENTITIES, CAUSES, CORRELATIONS = b"f", b"e", b"c", b"r"


class Run(msgspec.Struct, array_like=True, frozen=True):
    """A sorted part of the index."""

    id: int
    first: int
    last: int
    """The positions it covers: first … last."""
    level: int
    size: int
    """Bytes of its chunks, about."""
    entities: int
    """How many terms its filter knows; 0 when it has none."""
    sections: str
    """Which kinds of chunks it has."""


class Directory(msgspec.Struct, array_like=True, frozen=True):
    """The index of one topic."""

    epoch: int = 0
    """Another number after the whole index was dropped."""
    through: int = 0
    """Every event up to this position is in a run, if it has anything to be found by."""
    next: int = 1
    """The number of the next run."""
    runs: tuple[Run, ...] = ()
    """In order of their positions, without gaps that matter."""
    building: tuple[tuple[int, int], ...] = ()
    """Runs being written, and since when (milliseconds)."""
    rubbish: tuple[int, ...] = ()
    """Runs whose chunks are still to be deleted."""


NOTHING = Directory()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Directory).decode


directory_key: Callable[[int], bytes] = partial(struct.Struct(">cI4x").pack, INDEX)


def run_key(topic: int, run: int, section: bytes = b"", mark: bytes = b"") -> bytes:
    return INDEX + topic.to_bytes(4) + run.to_bytes(4) + section + mark


def load_directory(snap: Snapshot, topic: int, name: str) -> Directory:
    value = snap.get(directory_key(topic))
    if value is None:
        return NOTHING
    try:
        return _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"the directory of the entity index does not decode: {error}", topic=name) from error


def save_directory(tx: WriteTx, topic: int, directory: Directory) -> None:
    tx.put(directory_key(topic), _encode(directory))


def drop_index(tx: WriteTx, topic: int, name: str) -> None:
    """Forgets the whole index; whatever was read from it in memory is void, and it will be built anew.

    The rows of its runs become rubbish, which the indexer deletes a little at a time.
    """
    old = load_directory(tx, topic, name)
    rubbish = (*old.rubbish, *(run.id for run in old.runs))
    save_directory(tx, topic, Directory(old.epoch + 1, next=old.next, building=old.building, rubbish=rubbish))


def trim_index(tx: WriteTx, topic: int, name: str, through: int) -> None:
    """Forgets the runs of positions that were removed."""
    directory = load_directory(tx, topic, name)
    gone = [run for run in directory.runs if run.last <= through]
    if gone:
        left = tuple(run for run in directory.runs if run.last > through)
        rubbish = (*directory.rubbish, *(run.id for run in gone))
        save_directory(tx, topic, msgspec.structs.replace(directory, runs=left, rubbish=rubbish))
