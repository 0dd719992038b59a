"""Blocks on their way in: staged where nobody sees them, published at once, once; refused when they are not sound."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock.api import local
from penstock.core.journal.blocks import CodedText, Columns, Headers, PlainText, Wire, build_wire, encode_wire
from penstock.core.journal.bulk import staged_batches
from penstock.core.journal.reading import TopicView
from penstock.server.limits import Limits
from penstock.transfer.objects import StagingArea
from server.serving import READ, TOKENS, WRITE, Answer, Served, serving

STAGED = {"Content-Type": "application/vnd.penstock.staged"}


def wire(count: int = 10, first: int = 0, **columns: Any) -> Wire:
    numbers = range(first, first + count)
    return build_wire(Columns(["made"] * count, [b'{"n":%d}' % n for n in numbers], **columns), 0, 0, 0)


def put(
    served: Served, batch: str, piece: int = 0, wires: Any = None, token: str | None = None, job: str = "job"
) -> Answer:
    pairs = [("orders", encode_wire(one)) for one in (wires or [wire()])]
    path = f"/v1/staging/{batch}/{piece}?job={job}"
    return served.ask("PUT", path, msgspec.msgpack.encode(pairs), headers=STAGED, token=token)


def commit(served: Served, *batches: str, **request: Any) -> Answer:
    journal = request.pop("journal", served.journal.id)
    return served.post("/v1/commits", {"journal": journal, "batches": list(batches), **request})


def numbers(journal: penstock.Journal) -> list[int]:
    return [event.payload["n"] for event in journal.topic("orders").read()]


def staged(journal: penstock.Journal) -> int:
    with local(journal, "a test")._engine.read() as snap:
        return len(list(staged_batches(snap)))


@pytest.fixture
def batch() -> str:
    return uuid.uuid4().hex


def test_staged_blocks_become_events_with_the_commit(served: Served, journal: penstock.Journal, batch: str) -> None:
    assert put(served, batch, 1, [wire(5, 10)]).json["events"] == 5
    assert put(served, batch, 0, [wire(10, 0)]).status == 200
    assert put(served, batch, 0, [wire(10, 0)]).status == 200  # the answer was lost, and it is sent again
    assert journal.topics() == []
    assert commit(served, batch).json == {"committed": True}
    assert numbers(journal) == list(range(15))
    assert commit(served, batch).json == {"committed": False}
    assert numbers(journal) == list(range(15)) and staged(journal) == 0


def test_a_mark_and_a_version_make_a_commit_harmless_to_repeat(
    served: Served, journal: penstock.Journal, batch: str
) -> None:
    put(served, batch)
    assert commit(served, batch, mark="job", version=1).json["committed"]
    assert commit(served, batch, mark="job", version=1).json == {"committed": False}
    again = uuid.uuid4().hex
    put(served, again)
    assert commit(served, again, mark="job", version=1).json == {"committed": False}
    assert numbers(journal) == list(range(10)) and staged(journal) == 0


def test_a_commit_of_what_is_not_there_changes_nothing(served: Served, journal: penstock.Journal, batch: str) -> None:
    put(served, batch)
    answer = commit(served, batch, uuid.uuid4().hex)
    assert answer.status == 500 and "not there any more" in answer.json["detail"]
    assert journal.topics() == []
    assert commit(served, batch, journal="another").json["error"] == "ConfigError"
    assert journal.topics() == []


def test_a_job_is_dropped_by_its_own_token(journal: penstock.Journal, batch: str) -> None:
    other = "other-token-0123456789"
    with serving(journal, tokens={**TOKENS, other: "write"}, token=WRITE) as served:
        put(served, batch)
        put(served, uuid.uuid4().hex, token=other)
        assert served.ask("DELETE", "/v1/staging?job=job").json["bytes"] > 0
        assert staged(journal) == 1
        assert served.ask("DELETE", "/v1/staging?job=nothing").json == {"bytes": 0}
        assert served.ask("DELETE", "/v1/staging").status == 400


def test_a_token_stages_only_so_much(journal: penstock.Journal, batch: str) -> None:
    with serving(journal, tokens=TOKENS, token=WRITE, limits=Limits(max_staged=2_500)) as served:
        big = wire(100)
        assert put(served, batch, 0, [big]).status == 200
        refused = put(served, batch, 1, [big, big])
        assert refused.status == 507 and "at the most" in refused.json["detail"]
        assert commit(served, batch).json["committed"] and len(journal.topic("orders")) == 100
        assert put(served, uuid.uuid4().hex, 0, [big]).status == 200


def test_what_is_staged_survives_the_server(tmp_path: Path, batch: str) -> None:
    with penstock.open(tmp_path / "shop.db") as journal, serving(journal) as served:
        put(served, batch)
    with penstock.open(tmp_path / "shop.db") as journal, serving(journal) as served:
        assert commit(served, batch).json["committed"] and numbers(journal) == list(range(10))


def test_writing_needs_the_role_write(guarded: Served, batch: str) -> None:
    assert put(guarded, batch, token=READ).status == 403
    assert guarded.ask("POST", "/v1/commits", {"journal": "x", "batches": []}, token=READ).status == 403


def test_messages_are_pushed_within_the_queues_policy(served: Served, journal: penstock.Journal, batch: str) -> None:
    queue = journal.queue("orders", max_size=15)
    put(served, batch)
    assert commit(served, batch, queue="orders").json["committed"]
    full = uuid.uuid4().hex
    put(served, full)
    assert commit(served, full, queue="orders").json["error"] == "QueueFull"
    assert len([queue.take(lease=60) for _ in range(10)]) == 10 and queue.take(lease=60) is None


def test_large_batches_are_staged_and_read_like_others(served: Served, journal: penstock.Journal, batch: str) -> None:
    payload = b'"' + b"x" * 1_000 + b'"'
    for piece in range(6):
        block = build_wire(Columns(["made"] * 1_000, [payload] * 1_000), 0, 0, 0)
        assert put(served, batch, piece, [block]).status == 200
    assert commit(served, batch).json["committed"]
    topic = journal.topic("orders")
    assert topic.latest == 6_000 and sum(1 for event in topic.read() if len(event.payload) == 1_000) == 6_000
    topic.compact(6_000)
    journal.maintain()
    with local(journal, "a test")._engine.read() as snap:
        assert list(snap.scan(b"x", b"y")) == []


UNSOUND: dict[str, Any] = {
    "not a block": b"\x93\x01",
    "a payload that is no JSON": build_wire(Columns(["made"], [b"{"]), 0, 0, 0),
    "a kind of nothing": build_wire(Columns([""], [b"1"]), 0, 0, 0),
    "an empty key": build_wire(Columns(["made"], [b"1"], key=[""]), 0, 0, 0),
    "a long key": build_wire(Columns(["made"], [b"1"], key=["k" * 2_000]), 0, 0, 0),
    "no events": msgspec.structs.replace(wire(1), count=0),
    "more than it holds": msgspec.structs.replace(wire(1), count=2),
    "lengths that do not fit": msgspec.structs.replace(wire(1), lengths=3),
    "a kind that is not listed": msgspec.structs.replace(wire(1), kind_codes=1),
    "positions": msgspec.structs.replace(wire(1), seqs=bytes(8)),
    "another format": msgspec.structs.replace(wire(1), format=99),
    "a time that no date says": msgspec.structs.replace(wire(1), occurred=1 << 62),
    "a header without a name": build_wire(Columns(["made"], [b"1"], headers=[{"": "v"}]), 0, 0, 0),
    "a header name that is missing": msgspec.structs.replace(
        wire(1), headers=Headers(1, 1, CodedText([None], 0), CodedText(["v"], 0))
    ),
    "two headers of one name": msgspec.structs.replace(
        wire(1), headers=Headers(2, 2, CodedText(["h"], 0), CodedText(["v"], 0))
    ),
    "headers without end": msgspec.structs.replace(wire(1), headers=Headers(1 << 31, 1, None, None)),
    "headers that are too large": build_wire(Columns(["made"], [b"1"], headers=[{"h": "v" * 70_000}]), 0, 0, 0),
    "a key that is a map": msgspec.structs.replace(wire(1), key=[1, [{"a": 1}], 0]),  # type: ignore[arg-type]
    "a key that is a list": msgspec.structs.replace(wire(1), key=[1, ["k", ["u"]], 0]),  # type: ignore[arg-type]
    "a key that is too long": msgspec.structs.replace(wire(2), key=CodedText(["k", "k" * 401], b"\0\1")),
    "half a character": msgspec.structs.replace(wire(2), key=PlainText(1, "é".encode())),
    "a payload that is no text": build_wire(Columns(["made"], [b'"\xff"']), 0, 0, 0),
    "a payload without a bottom": build_wire(Columns(["made"], [b"[" * 5_000]), 0, 0, 0),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_a_block_that_could_not_be_read_is_refused(
    served: Served, journal: penstock.Journal, batch: str, what: str
) -> None:
    block = UNSOUND[what]
    body = block if isinstance(block, bytes) else encode_wire(block)
    sent = msgspec.msgpack.encode([("orders", encode_wire(wire())), ("orders", body)])
    answer = served.ask("PUT", f"/v1/staging/{batch}/0", sent, headers=STAGED)
    assert answer.status == 400, answer.data
    assert "topic 'orders' cannot be taken: " in answer.json["detail"]
    assert staged(journal) == 0


@pytest.mark.parametrize(
    "keys", [CodedText(["k", "k" * 401], 0), CodedText(["k", "k"], b"\0\1"), CodedText(["k", "l"], b"\0\0\0\0")]
)
def test_a_block_that_is_packed_otherwise_is_stored_as_an_append_stores_it(
    served: Served, journal: penstock.Journal, batch: str, keys: CodedText
) -> None:
    assert put(served, batch, 0, [msgspec.structs.replace(wire(2), key=keys)]).status == 200
    assert commit(served, batch).json["committed"]
    assert [event.seq for event in journal.topic("orders").read(key="k")] == [1, 2] and numbers(journal) == [0, 1]
    with local(journal, "a test")._engine.read() as snap:
        view = TopicView.open(snap, "orders")
        assert view is not None and [block.wire.key for block in view.blocks(0, 2)] == [CodedText(["k"], 0)]


@pytest.mark.parametrize("path", ["short/0", "z" * 32 + "/0", "0" * 32 + "/x", "0" * 32 + "/99999999"])
def test_names_that_are_none_are_refused(served: Served, path: str) -> None:
    assert served.ask("PUT", f"/v1/staging/{path}", msgspec.msgpack.encode([]), headers=STAGED).status == 400
    assert served.ask("PUT", "/v1/staging/" + "0" * 32 + "/0", b"junk", headers=STAGED).status == 400
    bad = msgspec.msgpack.encode([("no such name!", encode_wire(wire()))])
    assert served.ask("PUT", "/v1/staging/" + "0" * 32 + "/0", bad, headers=STAGED).status == 400


# ── objects ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_objects_are_fetched_from_places_the_server_was_given_and_nowhere_else(
    journal: penstock.Journal, batch: str, tmp_path: Path
) -> None:
    area = StagingArea(f"file://{tmp_path}/staging")
    body = msgspec.msgpack.encode([("orders", encode_wire(wire()))])
    path = area.put("job", 0, batch, 0, body)
    (tmp_path / "secret").write_bytes(body)

    def take(served: Served, **changed: Any) -> Answer:
        wanted = {"area": area.url, "path": path, "size": len(body), **changed}
        return served.post(f"/v1/staging/{batch}/0/object?job=job", wanted)

    with serving(journal) as closed:
        answer = take(closed)
        assert answer.status == 400 and "only from nowhere" in answer.json["detail"]
    with serving(journal, staging=[area.url], limits=Limits(max_body=10_000, max_staged=2_000)) as served:
        assert served.get("/v1").json["staging"] == [area.url]
        refused = {
            400: [{"area": f"file://{tmp_path}"}, {"path": "../secret"}, {"path": "blocks/../../secret"}, {"size": 0}],
            413: [{"size": 10_001}],
            500: [{"path": f"{path}1"}, {"size": len(body) + 1}, {"size": len(body) - 1}],
        }
        for status, changes in refused.items():
            for change in changes:
                assert take(served, **change).status == status, change
        assert take(served).json["events"] == 10 and take(served).json["events"] == 10
        assert take(served, path=area.put("job", 0, batch, 1, b"x" * 2_000), size=2_000).status == 507
        bad = area.put("job", 0, batch, 2, b"no blocks")
        assert "no staged blocks" in take(served, path=bad, size=9).json["detail"]
        assert commit(served, batch).json == {"committed": True} and numbers(journal) == list(range(10))
