"""Every decoder, given anything: it decodes, or raises an error of penstock's tree.

The corpus (`tests/torture/corpus`, one folder per decoder) holds inputs that once raised something else, or might;
hypothesis adds bytes and texts of its own, and whole inputs are changed here and there.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import PenstockError
from server.serving import serving
from torture.crafted import try_crafted
from torture.decoders import BYTES, DEEP, TEXTS, changed, corpus, only_ours

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
"""Changed inputs of each decoder."""


@pytest.mark.parametrize("name", BYTES)
def test_changed_bytes_decode_or_are_refused_with_an_error_of_ours(name: str) -> None:
    decode, samples = BYTES[name]
    wholes = samples()
    assert wholes
    rng = random.Random(f"fuzz {name}")
    for data in [*corpus(name), *DEEP]:
        only_ours(decode, data)
    for number in range(EXAMPLES):
        only_ours(decode, changed(wholes[number % len(wholes)], rng))


@pytest.mark.parametrize("name", BYTES)
def test_any_bytes_decode_or_are_refused_with_an_error_of_ours(name: str) -> None:
    decode = BYTES[name][0]

    @given(st.binary(max_size=200))
    @settings(max_examples=max(60, EXAMPLES // 5), deadline=None, database=None)
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


def test_a_crafted_block_is_refused_with_its_place_or_is_readable_by_everything() -> None:
    found = try_crafted(1, most=EXAMPLES)
    assert not found.broken
    assert found.refused and found.stored and found.refused + found.stored == EXAMPLES
