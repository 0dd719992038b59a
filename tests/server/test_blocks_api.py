"""Events by the block: stored bytes as they are, some at a time, for ranges that are cut between blocks."""

from __future__ import annotations

import gzip
import random
import socket
from pathlib import Path
from typing import Any

import penstock
from penstock import Draft
from penstock.api import local
from penstock.core.journal import keys
from penstock.core.journal.blocks import Block
from penstock.core.protocol.bulk import blocks_of, message_of, values_of
from penstock.server.application import make_app
from penstock.server.limits import BLOCKS_BYTES, Limits
from penstock.spark.sealing import seal
from server.serving import READ, Answer, Served, serving
from waiting import eventually


def fill(journal: penstock.Journal, commits: int = 5, each: int = 100) -> None:
    for commit in range(commits):
        journal.topic("orders").append_many([Draft("made", {"n": commit * each + n}) for n in range(each)])


def blocks(answer: Answer) -> list[Block]:
    assert answer.status == 200, answer.data
    return blocks_of(answer.data, "orders")


def positions(found: list[Block]) -> list[int]:
    return [seq for block in found for seq in block.seqs]


def stored(journal: penstock.Journal) -> list[bytes]:
    with local(journal, "a test")._engine.read() as snap:
        return [value for _, value in snap.scan(keys.BLOCK, keys.prefix_end(keys.BLOCK))]


def test_blocks_are_sent_as_they_are_stored(served: Served, journal: penstock.Journal) -> None:
    fill(journal)
    answer = served.get("/v1/topics/orders/blocks", after=0, through=500)
    sent = [bytes(value) for value in values_of(answer.data)]
    assert sent and all(value in stored(journal) for value in sent)
    assert positions(blocks(answer)) == list(range(1, 501))
    assert answer.headers["X-Penstock-Journal"] == journal.id
    assert answer.headers["X-Penstock-Reached"] == "500"
    assert answer.headers["Content-Type"] == "application/vnd.penstock.blocks"


def test_a_range_gets_the_blocks_that_hold_it(served: Served, journal: penstock.Journal) -> None:
    journal.topic("orders").configure()
    fill(journal)
    journal.maintain()  # merged blocks are blocks
    found = positions(blocks(served.get("/v1/topics/orders/blocks", after=150, through=160)))
    assert set(range(151, 161)) <= set(found)
    assert positions(blocks(served.get("/v1/topics/orders/blocks", after=160, through=160))) == []
    assert positions(blocks(served.get("/v1/topics/orders/blocks", after=500, through=900))) == []


def test_a_packed_answer_holds_the_same(served: Served, journal: penstock.Journal) -> None:
    fill(journal)
    plain = served.get("/v1/topics/orders/blocks", through=500)
    packed = served.ask("GET", "/v1/topics/orders/blocks?through=500", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip" and len(packed.data) < len(plain.data)
    assert gzip.decompress(packed.data) == plain.data


def test_an_answer_ends_when_it_is_large_and_says_how_far_it_came(served: Served, journal: penstock.Journal) -> None:
    journal.topic("orders").append_many([Draft("made", random.Random(n).randbytes(50_000)) for n in range(200)])
    after, seen, answers = 0, [], 0
    while after < 200:
        answer = served.get("/v1/topics/orders/blocks", after=after, through=200)
        assert len(answer.data) < 2 * BLOCKS_BYTES
        seen += [seq for seq in positions(blocks(answer)) if seq > after]
        after = int(answer.headers["X-Penstock-Reached"])
        answers += 1
    assert seen == list(range(1, 201)) and answers > 1


def test_removed_events_are_a_problem_unless_the_rest_is_wanted(served: Served, journal: penstock.Journal) -> None:
    fill(journal)
    journal.topic("orders").compact(230)
    refused = served.get("/v1/topics/orders/blocks", after=100, through=300)
    assert refused.status == 410 and refused.json["oldest"] == 231 and "101 to 230" in refused.json["detail"]
    rest = positions(blocks(served.get("/v1/topics/orders/blocks", after=100, through=300, strict="false")))
    assert [seq for seq in rest if seq <= 300] == list(range(231, 301))


def test_holes_left_by_compaction_stay_holes(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("states")
    topic.append_many([Draft("set", n, key=f"k{n % 3}") for n in range(30)])
    topic.compact_keys()
    topic.append("set", 99, key="k0")
    answer = served.get("/v1/topics/states/blocks", through=31)
    assert positions(blocks_of(answer.data, "states")) == [event.seq for event in topic.read()]


def test_sealed_history_is_sent_as_blocks_too(served: Served, journal: penstock.Journal, tmp_path: Path) -> None:
    fill(journal)
    seal(journal, "orders", lake=str(tmp_path / "lake"), through=300)
    found = blocks(served.get("/v1/topics/orders/blocks", through=500))
    assert positions(found) == list(range(1, 501))
    assert [event.payload["n"] for block in found for event in block.events()] == list(range(500))


def test_ends_sizes_and_cuts_are_what_a_plan_needs(served: Served, journal: penstock.Journal) -> None:
    fill(journal)
    journal.topic("other").append("made")
    journal.topic("orders").compact(100)
    said = served.get("/v1/ends", topic=["orders", "nowhere"]).json
    ends = {"trimmed": 100, "latest": 500, "began": 0, "whole": 100}
    assert said == {"journal": journal.id, "ends": {"orders": ends}}
    assert set(served.get("/v1/ends").json["ends"]) >= {"orders", "other"}
    bounds = served.get("/v1/topics/orders/cuts", after=100, through=500, pieces=4, exactly="true").json["bounds"]
    assert bounds[0] == 100 and bounds[-1] == 500 and len(bounds) == 5
    assert served.get("/v1/topics/orders/cuts", after=5, through=5).json == {"bounds": []}
    asked = [("orders", 100, 500), ("orders", 5, 5), ("orders", 600, 700), ("nowhere", 0, 9), ("orders", 100, 300)]
    ranges = [{"topic": topic, "after": after, "through": through} for topic, after, through in asked]
    whole, *nothing, half = served.post("/v1/sizes", ranges).json["sizes"]
    assert whole > half > 1000 and nothing == [0, 0, 0]
    assert served.post("/v1/sizes", ranges[:1] * 10_001).status == 400
    assert served.get("/v1/topics/nowhere/blocks", through=1).json["error"] == "UnknownTopic"


def test_blocks_of_a_topic_that_was_dropped_are_trimmed_in_the_one_made_anew(
    served: Served, journal: penstock.Journal
) -> None:
    fill(journal)
    journal.drop_topic("orders")
    assert served.get("/v1/topics/orders/blocks", after=400, through=500).json["error"] == "UnknownTopic"
    fill(journal)
    refused = served.get("/v1/topics/orders/blocks", after=400, through=500)
    assert (refused.status, refused.json["error"], refused.json["oldest"]) == (410, "PositionTrimmed", 501)
    assert not blocks(served.get("/v1/topics/orders/blocks", after=400, through=500, strict="false"))
    assert served.post("/v1/sizes", [{"topic": "orders", "after": 400, "through": 500}]).json == {"sizes": [0]}
    assert positions(blocks(served.get("/v1/topics/orders/blocks", after=500, through=1000))) == list(range(501, 1001))


def test_correlations_of_many_events_are_found_at_once(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("orders")
    cause = topic.append("placed", 1)
    effect = topic.append("paid", 2, cause=cause)
    found = served.post("/v1/correlations", [cause.id, effect.id, "no id"]).json["correlations"]
    assert found == {cause.id: cause.correlation_id, effect.id: effect.correlation_id}
    assert served.post("/v1/correlations", ["x"] * 10_001).status == 400


def test_blocks_need_the_role_read_and_say_what_a_token_may(guarded: Served, journal: penstock.Journal) -> None:
    fill(journal, 1)
    assert guarded.ask("GET", "/v1/topics/orders/blocks?through=1", token="wrong-token-0123456789").status == 401
    assert guarded.ask("GET", "/v1/topics/orders/blocks?through=1", token=READ).status == 200
    assert guarded.ask("GET", "/v1", token=READ).json["role"] == "read"
    assert guarded.get("/v1").json["role"] == "admin"


def test_slow_readers_hold_a_bounded_part_of_the_servers_memory(journal: penstock.Journal) -> None:
    journal.topic("orders").append_many([Draft("made", random.Random(n).randbytes(100_000)) for n in range(100)])
    app: Any = make_app(journal, limits=Limits(max_held=3 * BLOCKS_BYTES))
    app.penstock = app.state.service
    budget = app.state.service.budget
    with serving(journal, app=app) as served:
        slow = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(6)]
        try:
            for one in slow:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.sendall(b"GET /v1/topics/orders/blocks?through=100 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            eventually(lambda: budget.held > BLOCKS_BYTES)
            assert served.get("/v1/topics/orders/blocks", through=100).status in (200, 503)
            assert budget.held <= 3 * BLOCKS_BYTES + 2 * 100_000
        finally:
            for one in slow:
                one.close()
        eventually(lambda: budget.held == 0)
        assert blocks(served.get("/v1/topics/orders/blocks", through=9))


def test_a_message_that_was_cut_is_noticed() -> None:
    message = message_of([b"one", b"two"])
    assert [bytes(value) for value in values_of(message)] == [b"one", b"two"]
    for end in range(1, len(message)):
        if end != 7:
            try:
                list(values_of(message[:end]))
            except ValueError:
                continue
            raise AssertionError(end)
