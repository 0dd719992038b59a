"""Every decoder, given anything: it decodes, or raises an error of penstock's tree.

The corpus (`tests/torture/corpus`, one folder per decoder) holds inputs that once raised something else, or might;
hypothesis adds bytes and texts of its own, and whole inputs are changed here and there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock
from penstock.buffer.format.batch import decode_arrow, encode_batch, open_batch
from penstock.buffer.format.manifest import append, parse_manifest
from penstock.buffer.format.mark import Mark, decode_mark, encode_mark
from penstock.buffer.store import open_store
from penstock.documents.conditions import predicate
from penstock.engine.url import parse_url
from penstock.errors import PenstockError
from penstock.events import Draft
from penstock.journal.index.rows import read_chunk, read_marks
from penstock.journal.storage import keys
from penstock.journal.storage.block import read_block
from penstock.names import shown_url
from penstock.queue.run.cron import Cron
from penstock.queue.state.records import read_group, read_lease, read_message, read_queue, read_special, read_traits
from penstock.queue.token import read_token
from penstock.units import parse_duration, parse_moment, parse_size
from server.serving import serving

CORPUS = Path(__file__).parent / "corpus"


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
        lambda data: open_batch(data).entries(),
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
    "index marks": (lambda data: read_marks(data, "t"), lambda: stored(b"k")),
    "queue": (lambda data: read_queue(data, "q"), lambda: stored(b"qr")),
    "traits": (lambda data: read_traits(data, "q"), lambda: stored(b"qt")),
    "special": (lambda data: read_special(data, "q"), lambda: stored(b"qt")),
    "group": (lambda data: read_group(data, "q"), lambda: stored(b"qg")),
    "message": (lambda data: read_message(data, "q"), lambda: stored(b"qg")),
    "lease": (lambda data: read_lease(data, "q"), lambda: stored(b"qg")),
}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEXTS: dict[str, tuple[Callable[[str], Any], list[str]]] = {
    "token": (read_token, ["a" * 24, "mfrggzdfmztwq2lk"]),
    "url": (lambda text: (parse_url(text), shown_url(text)), ["sqlite:///a/b", "s3://bucket/x", "memory:name"]),
    "store": (
        lambda text: None if text.startswith(("file:", "s3", "gs", "az", "gcs", "azure")) else open_store(text),
        ["memory://", "s4://x"],
    ),
    "cron": (lambda text: Cron(text).next(NOW), ["*/5 * * * *", "0 0 L * *", "0 9 * * mon#2", "1-70 * * * *"]),
    "condition": (predicate, ["payload.n > 3 and has(key)", "kind in ('a', 'b')", 'key == "x" or not (seq < 5)']),
    "duration": (parse_duration, ["5m", "1.5h", "1e308d"]),
    "moment": (lambda text: parse_moment(text, NOW), ["2026-01-01", "5m ago", "yesterday"]),
    "size": (parse_size, ["64MiB", "1e400"]),
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


@pytest.mark.parametrize("name", BYTES)
def test_changed_bytes_decode_or_are_refused_with_an_error_of_ours(name: str) -> None:
    decode, samples = BYTES[name]
    wholes = samples()
    assert wholes
    rng = random.Random(f"fuzz {name}")
    for data in corpus(name):
        only_ours(decode, data)
    for number in range(300):
        only_ours(decode, changed(wholes[number % len(wholes)], rng))


@pytest.mark.parametrize("name", BYTES)
def test_any_bytes_decode_or_are_refused_with_an_error_of_ours(name: str) -> None:
    decode = BYTES[name][0]

    @given(st.binary(max_size=200))
    @settings(max_examples=60, deadline=None, database=None)
    @example(b"")
    def anything(data: bytes) -> None:
        only_ours(decode, data)

    anything()


@pytest.mark.parametrize("name", TEXTS)
def test_any_text_is_read_or_refused_with_an_error_of_ours(name: str) -> None:
    parse, samples = TEXTS[name]
    alphabet = "".join(samples) + " ()\"'[]{}.,:;/\\%*?#@+-0123456789²½\x00\ud800é€eE"
    for data in corpus(name):
        only_ours(parse, data.decode("utf-8", "surrogateescape"))

    @given(st.one_of(st.text(max_size=80), st.text(alphabet, max_size=60), st.sampled_from(samples)))
    @settings(max_examples=150, deadline=None, database=None)
    def anything(text: str) -> None:
        only_ours(parse, text)

    anything()
    rng = random.Random(f"fuzz {name}")
    for number in range(200):
        data = changed(samples[number % len(samples)].encode(), rng)
        only_ours(parse, data.decode("utf-8", "replace"))


def test_a_condition_that_was_read_is_asked_without_another_error() -> None:
    with penstock.open("memory:") as journal:
        journal.topic("t").append("k", {"n": [1, {"a": None}]}, key="x")
        for text in ("payload.n[1].a == 3", "payload.n > 'x'", "has(payload.n[9])", "payload == 1", "seq > 1e999"):
            with suppress(PenstockError):
                list(journal.topic("t").read(where=text))


BODIES: list[tuple[str, str, bytes]] = [
    ("POST", "/v1/topics/t/events", b'{"kind":"k","payload":{"n":1},"key":"x","headers":{"h":"v"},"expect":0}'),
    ("POST", "/v1/append", b'{"events":[{"topic":"t","kind":"k","payload":1}]}'),
    ("PUT", "/v1/queues/q", b'{"lease":30,"max_attempts":5,"retry":{"base":1.0}}'),
    ("POST", "/v1/queues/q/push", b'{"payload":1,"delay":5,"priority":1}'),
    ("POST", "/v1/queues/q/take", b'{"limit":2,"wait":0}'),
    ("POST", "/v1/queues/q/ack", b'{"tokens":["mfrggzdfmztwq2lk"]}'),
    ("PUT", "/v1/topics/t/cursors/c", b'{"seq":1}'),
    ("PATCH", "/v1/topics/t/settings", b'{"max_age":100,"by_key":false}'),
]
QUERIES = [
    "/v1/topics/t/events?after=0&limit=5&where=seq>0",
    "/v1/topics/t/events?since=1h&kind=a",
    "/v1/queues/q/failed",
]


def test_no_body_and_no_query_makes_the_server_fail() -> None:
    rng = random.Random("fuzz http")
    with penstock.open("memory:") as journal, serving(journal) as served:
        for number in range(160):
            method, path, whole = BODIES[number % len(BODIES)]
            body = changed(whole, rng) if number >= len(BODIES) else whole
            answer = served.ask(method, path, body, headers={"Content-Type": "application/json"})
            assert answer.status < 500, (method, path, body, answer.data)
        for number in range(60):
            path, _, query = QUERIES[number % len(QUERIES)].partition("?")
            odd = quote(changed(query.encode() or b"group=g", rng), safe="=&")
            answer = served.ask("GET", f"{path}?{odd}")
            assert answer.status < 500, (path, odd, answer.data)
