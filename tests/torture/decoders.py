"""Every decoder of what penstock reads, with whole inputs to change: what the fuzzing goes over."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

import penstock
from penstock.buffer.format import (
    Mark,
    append,
    decode_arrow,
    decode_mark,
    encode_batch,
    encode_mark,
    open_batch,
    parse_manifest,
)
from penstock.core.clock import parse_duration
from penstock.core.engine.url import parse_url
from penstock.core.entity import receipts
from penstock.core.entity.copying import MANIFEST, CopyFormat, import_file, load_manifest
from penstock.core.entity.proof import InclusionProof, check_proof
from penstock.core.events import Draft
from penstock.core.journal import commit, keys
from penstock.core.journal.blocks import RowOptions, decode_pending, encode_wire, read_block, with_options
from penstock.core.journal.checking import checked_wire
from penstock.core.journal.index.runs import read_chunk
from penstock.core.journal.sealed import segments
from penstock.core.model.conditions import predicate
from penstock.core.names import shown_url
from penstock.core.queue.dead_letters import _attempts as read_attempts
from penstock.core.queue.schedule import Cron
from penstock.core.queue.state.leases import read_lease, read_token
from penstock.core.queue.state.records import (
    AttemptRow,
    FailureTrail,
    read_group,
    read_message,
    read_queue,
    read_special,
    read_trail,
    read_traits,
)
from penstock.core.units import parse_moment, parse_size
from penstock.engines.slatedb.lease import LeaseRecord
from penstock.engines.slatedb.lease import _decode as decode_writer
from penstock.errors import PenstockError
from penstock.objects.store import Stored, open_store
from penstock.remote.client import Client
from penstock.transfer.objects import decode_piece, encode_piece

CORPUS = Path(__file__).parent / "corpus"
DEEP = [b"[" * 5000, b'{"x":' * 5000, b'[{"x":' + b"[" * 5000, b"\x91" * 5000, b"\xdc\x00\x20" * 5000]
"""Nested deeper than a decoder can go, in JSON and MessagePack."""


def stored(*prefixes: bytes) -> list[bytes]:
    """What a journal of every kind of record stores under these keys."""
    with penstock.open("memory:") as journal:
        topic, queue = journal.topic("t"), journal.queue("q", mode="fanout")
        queue.add_group("g")
        for number in range(4):
            topic.append_many([Draft("k", {"n": row}, key=str(row), headers={"h": "v"}) for row in range(5)])
            queue.push(number, key="k")
            queue.push(number, delay=number + 1)
        queue.take(group="g")
        journal.maintain()
        with journal._engine.read() as snap:
            return [value for key, value in snap.scan(b"", b"\xff") if key.startswith(prefixes)]


BYTES: dict[str, tuple[Callable[[bytes], Any], Callable[[], list[bytes]]]] = {
    "block": (lambda data: read_block(data, "t"), lambda: stored(keys.BLOCK)),
    "batch": (
        lambda data: open_batch(data).entries,
        lambda: [encode_batch([b"one", b"two"], "none"), encode_batch([b"one", b"two" * 50], "zstd")],
    ),
    "batch as Arrow": (
        decode_arrow,
        lambda: [encode_batch([b"one", b"two"], "none"), encode_batch([b"1"] * 9, "zstd")],
    ),
    "manifest": (
        lambda data: (
            list(parse_manifest(data)),
            list(parse_manifest(data).marks()),
            parse_manifest(data).after(None, 9),
        ),
        lambda: [append(parse_manifest(None), [("a", ()), ("b", ())], Mark("query", 7), {"a": 1, "b": 2})],
    ),
    "mark": (lambda data: decode_mark(data, 0, len(data)), lambda: [encode_mark(Mark("query", 7))]),
    "index chunk": (lambda data: read_chunk(data, "t"), lambda: stored(b"k")),
    "dedup": (
        partial(keys.stored, commit._decode, what="a row"),
        lambda: [msgspec.msgpack.encode(commit.Original(1, bytes(10), 5, "c"))],
    ),
    "root": (receipts._decode, lambda: [msgspec.msgpack.encode((bytes(32), bytes(32), 5))]),
    "segment": (
        lambda data: keys.stored(segments._decode_segment, data, "a row").files[0].load_pieces(),
        lambda: [
            msgspec.msgpack.encode(
                segments.Segment(1, 2, 2, "lake", "a", 9, 7, 0, 0, (), segments.packed_pieces(((4, 5), (9, 6))))
            )
        ],
    ),
    "seals": (
        partial(keys.stored, segments._decode_seals, what="a row"),
        lambda: [msgspec.msgpack.encode(segments.Seals("token", {"lake": "t"}))],
    ),
    "queue": (lambda data: read_queue(data, "q"), lambda: stored(b"qr")),
    "traits": (lambda data: read_traits(data, "q"), lambda: stored(b"qt")),
    "special": (lambda data: read_special(data, "q"), lambda: stored(b"qt")),
    "group": (lambda data: read_group(data, "q"), lambda: stored(b"qg")),
    "message": (lambda data: read_message(data, "q"), lambda: stored(b"qg")),
    "lease": (lambda data: read_lease(data, "q"), lambda: stored(b"qg")),
    "attempts": (
        lambda data: read_trail(data, "q").shown(),
        lambda: [msgspec.msgpack.encode(FailureTrail([AttemptRow(1, 5, 9, "failed", "c", "h", "e")] * 3, "trace"))],
    ),
    "staged block": (lambda data: checked_wire("t", data), lambda: staged_blocks()),
    "pending block": (decode_pending, lambda: staged_blocks()),
    "staged piece": (
        lambda data: [checked_wire(topic, block) for topic, block in decode_piece(data)],
        lambda: [encode_piece([("t", block) for block in staged_blocks()])],
    ),
    "writer's lease": (
        lambda data: decode_writer(Stored(data, "v"), "j").who(),
        lambda: [
            msgspec.json.encode(
                LeaseRecord(owner="o", host="h", system="s", pid=1, started="1", epoch=1, since_ms=5, seconds=3.0)
            )
        ],
    ),
    "proof": (lambda data: check_given_proof(data), lambda: proofs()),
    "export manifest": (lambda data: read_given_manifest(data), lambda: manifests()),
    "export as lines": (lambda data: import_given("jsonl")(data), lambda: exported("jsonl")),
    "export as Parquet": (lambda data: import_given("parquet")(data), lambda: exported("parquet")),
    "export as Arrow": (lambda data: import_given("arrow")(data), lambda: exported("arrow")),
}


def proofs() -> list[bytes]:
    with penstock.open("memory:") as journal:
        topic = journal.topic("t")
        topic.configure(verified=True)
        topic.append_many([Draft("k", {"n": row}, key=str(row), headers={"h": "v"}) for row in range(9)])
        topic.verify()
        return [topic.proof(position).to_json().encode() for position in (1, 5)]


def check_given_proof(data: bytes) -> None:
    proof = InclusionProof.from_json(data)
    check_proof(proof)
    proof.event  # noqa: B018


def staged_blocks() -> list[bytes]:
    """Blocks as tasks stage them, with and without what their events ask for."""
    plain = [value[:-4] for value in stored(keys.BLOCK)][:2]
    wire = decode_pending(plain[0])
    asking = with_options(wire, RowOptions(dedup=["d"] * wire.count, priority=[1] * wire.count))
    return [*plain, bytes(encode_wire(asking))]


def exported(format: str) -> list[bytes]:
    with penstock.open("memory:") as journal, TemporaryDirectory() as folder:
        journal.topic("t").append_many([Draft("k", {"n": row}, key=str(row), headers={"h": "v"}) for row in range(9)])
        journal.export(Path(folder) / f"one.{format}", topics=["t"])
        return [(Path(folder) / f"one.{format}").read_bytes()]


def import_given(format: CopyFormat) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        with penstock.open("memory:") as journal:
            return import_file(journal._core, BytesIO(data), "t", format, name="given")

    return read


def manifests() -> list[bytes]:
    with penstock.open("memory:") as journal, TemporaryDirectory() as folder:
        journal.topic("t").append("k", 1)
        journal.export(Path(folder) / "export")
        return [(Path(folder) / "export" / MANIFEST).read_bytes()]


def read_given_manifest(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        Path(folder, MANIFEST).write_bytes(data)
        load_manifest(Path(folder))


def open_server(text: str) -> None:
    """What a client reads of an address, without going there."""
    Client(text, None, 1.0).close()


NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEXTS: dict[str, tuple[Callable[[str], Any], list[str]]] = {
    "token": (read_token, ["a" * 24, "mfrggzdfmztwq2lk"]),
    "url": (lambda text: (parse_url(text), shown_url(text)), ["sqlite:///a/b", "s3://bucket/x", "memory:name"]),
    "server": (open_server, ["http://127.0.0.1:9", "http://[::1]:80/x"]),
    "store": (
        lambda text: None if text.startswith(("file:", "s3", "gs", "az", "gcs", "azure")) else open_store(text),
        ["memory://", "s4://x"],
    ),
    "cron": (lambda text: Cron(text).next(NOW), ["*/5 * * * *", "0 0 L * *", "0 9 * * mon#2", "1-70 * * * *"]),
    "condition": (predicate, ["payload.n > 3 and has(key)", "kind in ('a', 'b')", 'key == "x" or not (seq < 5)']),
    "duration": (parse_duration, ["5m", "1.5h", "1e308d"]),
    "moment": (lambda text: parse_moment(text, NOW), ["2026-01-01", "5m ago", "yesterday"]),
    "size": (parse_size, ["64MiB", "1e400"]),
    "attempts in a header": (
        read_attempts,
        [
            '[{"number":1,"delivered_at":"2026-01-01T00:00:00Z","ended_at":"2026-01-01T00:00:01Z","ended":"failed"}]',
            "[" * 5000,
            '[{"x":' + "[" * 5000,
        ],
    ),
}


def only_ours(decode: Callable[[Any], Any], data: Any) -> None:
    with suppress(PenstockError):
        decode(data)


def changed(whole: bytes, rng: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 2, 8])):
        match rng.randrange(4):
            case 0 if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 1 if data:
                del data[rng.randrange(len(data)) :]
            case 2:
                data[rng.randrange(len(data) + 1) : 0] = rng.randbytes(rng.choice([1, 4, 9]))
            case _:
                at = rng.randrange(len(data) + 1)
                data[at : at + 4] = b"\xff\xff\xff\x7f"
    return bytes(data)


def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name.replace(" ", "-")).glob("*"))]
