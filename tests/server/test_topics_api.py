from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import penstock
from penstock.api import local
from penstock.core.protocol import topics as wire
from penstock.server.limits import Limits
from server.serving import Served, serving


def seqs(answer: object) -> list[int]:
    return [event["seq"] for event in answer.json["events"]]  # type: ignore[attr-defined]


@pytest.fixture
def orders(journal: penstock.Journal) -> penstock.Topic:
    topic = journal.topic("orders")
    topic.append_many(
        [penstock.Draft("placed" if n % 2 else "paid", {"n": n}, key=f"k{n % 3}", scope="eu") for n in range(1, 11)]
    )
    return topic


# ── appending ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_one_event_is_appended_and_its_receipt_comes_back(served: Served, journal: penstock.Journal) -> None:
    body = {"kind": "placed", "payload": {"a": [1, None]}, "key": "k", "headers": {"h": "v"}, "scope": "eu"}
    answer = served.post("/v1/topics/orders/events", body)
    assert answer.status == 201
    event = journal.topic("orders").get(1)
    assert event is not None
    assert answer.json == {"topic": "orders", "seq": 1, "id": event.id}
    assert (event.kind, event.payload, event.key, event.scope) == ("placed", {"a": [1, None]}, "k", "eu")
    assert dict(event.headers) == {"h": "v"}


def test_many_events_are_appended_all_or_nothing(served: Served, journal: penstock.Journal) -> None:
    answer = served.post("/v1/topics/orders/events", [{"kind": "k", "payload": n} for n in range(3)])
    assert answer.status == 201 and [one["seq"] for one in answer.json["receipts"]] == [1, 2, 3]
    bad = [{"kind": "k", "payload": 1}, {"kind": "", "payload": 2}]
    assert served.post("/v1/topics/orders/events", bad).json["error"] == "ConfigError"
    assert len(journal.topic("orders")) == 3
    assert served.post("/v1/topics/orders/events", []).json == {"receipts": []}


def test_lines_are_appended_as_one_batch(served: Served, journal: penstock.Journal) -> None:
    lines = b'{"kind": "k", "payload": 1}\n\n{"kind": "k", "payload": 2}\n'
    answer = served.ask("POST", "/v1/topics/t/events", lines, headers={"Content-Type": "application/x-ndjson"})
    assert [one["seq"] for one in answer.json["receipts"]] == [1, 2]


def test_dedup_makes_a_repeat_harmless(served: Served, journal: penstock.Journal) -> None:
    body = {"kind": "k", "payload": 1, "dedup": "once"}
    first, second = (served.post("/v1/topics/t/events", body) for _ in range(2))
    assert (first.status, second.status) == (201, 200)
    assert second.json == {**first.json, "duplicate": True}
    headers = {"Idempotency-Key": "abc"}
    for _ in range(2):
        served.ask("POST", "/v1/topics/t/events", {"kind": "k", "payload": 2}, headers=headers)
    assert len(journal.topic("t")) == 2


def test_bytes_travel_as_base64(served: Served, journal: penstock.Journal) -> None:
    data = bytes(range(256))
    body = {"kind": "k", "payload": base64.b64encode(data).decode(), "binary": True}
    served.post("/v1/topics/t/events", body)
    event = journal.topic("t").get(1)
    assert event is not None and event.payload == data
    (shown,) = served.get("/v1/topics/t/events").json["events"]
    assert shown["binary"] is True and base64.b64decode(shown["payload"]) == data


def test_the_trace_of_a_request_is_carried_by_its_events(served: Served, journal: penstock.Journal) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    served.ask("POST", "/v1/topics/t/events", {"kind": "k"}, headers={"traceparent": trace})
    event = journal.topic("t").get(1)
    assert event is not None and event.headers["traceparent"] == trace


def test_one_batch_over_several_topics(served: Served, journal: penstock.Journal) -> None:
    body = [
        {"topic": "a", "kind": "first", "payload": 1},
        {"topic": "b", "kind": "second", "payload": 2, "cause": 0},
    ]
    receipts = served.post("/v1/append", body).json["receipts"]
    assert [(one["topic"], one["seq"]) for one in receipts] == [("a", 1), ("b", 1)]
    event = journal.topic("b").get(1)
    assert event is not None and event.causation_id == receipts[0]["id"]
    body[1]["kind"] = ""
    assert served.post("/v1/append", body).status == 400
    assert len(journal.topic("a")) == 1
    assert "draft 0" in served.post("/v1/append", [{"kind": "x"}]).json["detail"]


def test_a_stale_expectation_is_a_conflict_with_its_numbers(served: Served) -> None:
    served.post("/v1/topics/t/events", {"kind": "k", "key": "e"})
    answer = served.post("/v1/topics/t/events", {"kind": "k", "key": "e", "expect": 0})
    assert answer.status == 409
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert {"error": "Conflict", "expected": 0, "actual": 1, "status": 409}.items() <= answer.json.items()


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_read_is_paged(served: Served, orders: penstock.Topic) -> None:
    page = served.get("/v1/topics/orders/events", limit=4)
    assert seqs(page) == [1, 2, 3, 4] and page.json["next"] == 4 and page.json["latest"] == 10
    assert seqs(served.get("/v1/topics/orders/events", limit=4, after=4)) == [5, 6, 7, 8]
    last = served.get("/v1/topics/orders/events", limit=4, after=8)
    assert seqs(last) == [9, 10] and last.json["next"] is None
    exact = served.get("/v1/topics/orders/events", limit=10)
    assert exact.json["next"] is None


def test_a_read_backwards_is_paged_too(served: Served, orders: penstock.Topic) -> None:
    page = served.get("/v1/topics/orders/events", limit=3, reverse="true")
    assert seqs(page) == [10, 9, 8] and page.json["next"] == 7
    assert seqs(served.get("/v1/topics/orders/events", limit=3, reverse="true", through=7)) == [7, 6, 5]


def test_reads_are_filtered(served: Served, orders: penstock.Topic) -> None:
    path = "/v1/topics/orders/events"
    assert seqs(served.get(path, kind="paid")) == [2, 4, 6, 8, 10]
    assert seqs(served.get(path, kind=["paid", "placed"], key="k0")) == [3, 6, 9]
    assert seqs(served.get(path, scope="us")) == []
    assert seqs(served.get(path, where="payload.n > 8")) == [9, 10]
    assert seqs(served.get(path, where="payload.n > 2", limit=2)) == [3, 4]
    assert seqs(served.get(path, since="1h", through=2)) == [1, 2]
    future = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert seqs(served.get(path, since=future)) == []
    assert seqs(served.get(path, until="1h")) == []


def test_a_rare_condition_ends_a_page_early_and_says_where_to_go_on(
    served: Served, orders: penstock.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.local.topics.FILTER_SCAN_LIMIT", 3)
    page = served.get("/v1/topics/orders/events", where="payload.n = 10", limit=2)
    assert seqs(page) == [] and page.json["next"] == 5
    assert seqs(served.get("/v1/topics/orders/events", where="payload.n = 10", limit=2, after=5)) == [10]


def test_a_stream_of_lines_gives_everything(served: Served, journal: penstock.Journal) -> None:
    journal.topic("big").append_many([penstock.Draft("k", {"n": n}) for n in range(9_000)])
    answer = served.ask("GET", "/v1/topics/big/events", headers={"Accept": "application/x-ndjson"})
    assert [event["seq"] for event in answer.lines] == list(range(1, 9_001))
    assert answer.headers["Content-Type"].startswith("application/x-ndjson")
    some = served.ask("GET", "/v1/topics/big/events?after=10&limit=3000", headers={"Accept": "application/x-ndjson"})
    assert [event["seq"] for event in some.lines] == list(range(11, 3_011))
    few = served.ask(
        "GET", "/v1/topics/big/events?where=payload.n%20%3E%208996", headers={"Accept": "application/x-ndjson"}
    )
    assert [event["seq"] for event in few.lines] == [8998, 8999, 9000]


@pytest.mark.slow
def test_a_stream_of_record_batches_is_arrow(served: Served, journal: penstock.Journal) -> None:
    journal.topic("big").append_many([penstock.Draft("k", {"n": n}, key="a") for n in range(70_000)])
    arrow = {"Accept": "application/vnd.apache.arrow.stream"}
    answer = served.ask("GET", "/v1/topics/big/events", headers=arrow)
    table = pa.ipc.open_stream(answer.data).read_all()
    assert table.num_rows == 70_000 and table.column("seq")[69_999].as_py() == 70_000
    assert json.loads(table.column("payload")[5].as_py()) == {"n": 5}
    some = served.ask("GET", "/v1/topics/big/events?after=5&limit=7", headers=arrow)
    assert pa.ipc.open_stream(some.data).read_all().column("seq").to_pylist() == list(range(6, 13))
    assert served.ask("GET", "/v1/topics/big/events?key=a", headers=arrow).json["error"] == "ConfigError"


def test_trimmed_history_is_gone_with_the_oldest_position(served: Served, orders: penstock.Topic) -> None:
    orders.compact(6)
    for headers in ({}, {"Accept": "application/x-ndjson"}, {"Accept": "application/vnd.apache.arrow.stream"}):
        answer = served.ask("GET", "/v1/topics/orders/events?after=2", headers=headers)
        assert answer.status == 410
        assert (answer.json["error"], answer.json["oldest"]) == ("PositionTrimmed", 7)
    assert seqs(served.get("/v1/topics/orders/events")) == [7, 8, 9, 10]


def test_one_event_by_position_and_by_id(served: Served, orders: penstock.Topic) -> None:
    event = served.get("/v1/topics/orders/events/3").json
    assert event["payload"] == {"n": 3}
    assert served.get(f"/v1/topics/orders/events/{event['id']}").json == event
    for name in ("11", "0", "nonsense", "9" * 30):
        assert served.get(f"/v1/topics/orders/events/{name}").status == 404


def test_topics_and_their_state(served: Served, orders: penstock.Topic) -> None:
    assert served.get("/v1/topics").json == {"topics": ["orders"]}
    shown = served.get("/v1/topics/orders").json
    assert (shown["latest"], shown["oldest"], shown["events"], shown["cursors"]) == (10, 1, 10, {})
    assert served.get("/v1/topics/nobody").json["latest"] == 0
    assert served.get("/v1/topics").json == {"topics": ["orders"]}


# ── cursors, settings, compaction ────────────────────────────────────────────────────────────────────────────────────
def test_cursors_are_committed_moved_and_forgotten(served: Served, orders: penstock.Topic) -> None:
    path = "/v1/topics/orders/cursors/billing"
    assert served.get(path).json == {"consumer": "billing", "position": None, "lag": 10, "moved_at": None}
    moved = served.ask("PUT", path, {"position": 6}).json
    assert (moved["position"], moved["lag"]) == (6, 4) and moved["moved_at"].startswith("20")
    assert served.ask("PUT", path, {"position": 3}).json["position"] == 6
    assert served.ask("PUT", path, {"position": 3, "seek": True}).json["position"] == 3
    assert served.ask("PUT", path, {"to": "end", "seek": True}).json["lag"] == 0
    assert served.ask("PUT", path, {"time": "1h", "seek": True}).json["position"] == 0
    [listed] = served.get("/v1/topics/orders/cursors").json["cursors"]
    assert (listed["consumer"], listed["position"], listed["lag"]) == ("billing", 0, 10) and listed["moved_at"]
    for bad in ({}, {"position": 1, "to": "end"}, {"to": "middle"}, {"position": 99}, {"position": -1}, {"place": 1}):
        assert served.ask("PUT", path, bad).status == 400
    assert served.ask("DELETE", path).json == {"forgotten": True}
    assert served.ask("DELETE", path).json == {"forgotten": False}


def test_a_consumer_may_be_called_anything(served: Served, orders: penstock.Topic) -> None:
    assert served.ask("PUT", "/v1/topics/orders/cursors/a%2Fb%20%C3%BC", {"position": 2}).status == 200
    assert orders.cursors() == {"a/b ü": 2}


def test_settings_and_compaction(served: Served, orders: penstock.Topic) -> None:
    changed = served.ask("PATCH", "/v1/topics/orders/settings", {"max_age": 3600}).json
    assert changed["max_age"] == 3600
    assert served.ask("PATCH", "/v1/topics/orders/settings", {"color": 1}).status == 400
    orders.commit("slow", 4)
    report = served.post("/v1/topics/orders/compact", {"through": 8}).json
    assert (report["removed"], report["stopped_at"]) == (4, "slow")
    assert served.post("/v1/topics/orders/compact", {"through": 8, "force": True}).json["remaining"] == 2
    assert served.post("/v1/topics/orders/compact", {}).status == 400
    assert served.post("/v1/topics/orders/compact", {"keys": True}).status == 200


def test_a_topic_is_dropped_and_what_stands_in_the_way_is_named(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("orders")
    topic.append("placed", 1)
    topic.commit("billing", 1)
    journal.queue("orders")
    refused = served.ask("DELETE", "/v1/topics/orders")
    assert (refused.status, refused.json["error"]) == (409, "TopicInUse")
    assert "'billing'" in refused.json["detail"] and "the queue 'orders'" in refused.json["detail"]
    answer = served.ask("DELETE", "/v1/topics/orders?force=true")
    assert (answer.status, answer.json) == (200, {"topic": "orders", "events": 1, "files": []})
    assert journal.topics() == journal.queues() == []
    gone = served.ask("DELETE", "/v1/topics/orders")
    assert (gone.status, gone.json["error"]) == (404, "UnknownTopic")


def test_a_position_is_found_by_time(served: Served, orders: penstock.Topic) -> None:
    assert served.get("/v1/topics/orders/position", time="1h").json == {"position": 0}
    future = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert served.get("/v1/topics/orders/position", time=future).json == {"position": 10}
    assert served.get("/v1/topics/orders/position").status == 400


def test_a_correlation_is_gathered_over_topics(served: Served, journal: penstock.Journal) -> None:
    first = journal.topic("a").append("first", 1)
    second = journal.topic("b").append("second", 2, cause=first)
    journal.topic("a").append("third", 3, cause=second)
    found = served.get(f"/v1/correlated/{first.id}").json["events"]
    assert [event["kind"] for event in found] == ["first", "second", "third"]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[1]", "body"),
        (b'{"payload": 1}', "kind"),
        (b'{"kind": 3}', "kind"),
        (b'{"kind": "k", "payload": "\xff"}', "body"),
        (b'{"kind": "k", "occurred_at": "2024-05-01T00:00:00"}', "occurred_at"),
        (b'{"kind": "k", "binary": true, "payload": "!"}', "base64"),
        (b'{"kind": "k", "expect": 1}', "key"),
    ],
)
def test_a_bad_body_is_a_problem_that_says_why(served: Served, body: bytes, words: str) -> None:
    answer = served.ask("POST", "/v1/topics/t/events", body, headers={"Content-Type": "application/json"})
    assert answer.status == 400 and answer.json["error"] == "ConfigError" and words in answer.json["detail"]


def test_other_media_types_methods_and_paths_are_refused(served: Served) -> None:
    answer = served.ask("POST", "/v1/topics/t/events", b"x", headers={"Content-Type": "text/plain"})
    assert (answer.status, answer.json["error"]) == (415, "UnsupportedMediaType")
    answer = served.ask("DELETE", "/v1/topics/t/events")
    assert (answer.status, answer.json["error"]) == (405, "MethodNotAllowed")
    answer = served.get("/v1/other")
    assert (answer.status, answer.json["error"]) == (404, "NotFound")
    assert served.get("/v1/topics/a%20b").json["error"] == "InvalidName"


def test_a_body_above_the_limit_is_refused(journal: penstock.Journal) -> None:
    with serving(journal, limits=Limits(max_body=1000)) as served:
        answer = served.post("/v1/topics/t/events", {"kind": "k", "payload": "x" * 2000})
        assert (answer.status, answer.json["error"]) == (413, "TooLarge")
        chunks = (b"x" * 400 for _ in range(10))
        connection = served.connect()
        connection.request(
            "POST", "/v1/topics/t/events", chunks, {"Content-Type": "application/json"}, encode_chunked=True
        )
        assert connection.getresponse().status == 413
        connection.close()
        assert served.post("/v1/topics/t/events", {"kind": "k"}).status == 201


def test_a_body_that_does_not_arrive_is_given_up(journal: penstock.Journal) -> None:
    with serving(journal, limits=Limits(body_timeout=0.2)) as served:
        connection = served.connect()
        connection.putrequest("POST", "/v1/topics/t/events")
        connection.putheader("Content-Length", "100")
        connection.putheader("Content-Type", "application/json")
        connection.endheaders()
        assert connection.getresponse().status == 408
        connection.close()


def test_a_read_only_journal_refuses_to_be_changed(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "t.db") as journal:
        journal.topic("t").append("k")
    with penstock.open(tmp_path / "t.db", read_only=True) as looking, serving(looking) as served:
        assert len(served.get("/v1/topics/t/events").json["events"]) == 1
        answer = served.post("/v1/topics/t/events", {"kind": "k"})
        assert (answer.status, answer.json["error"]) == (403, "ReadOnly")


def test_a_defect_is_logged_and_not_shown(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("secret details")

    monkeypatch.setattr("penstock.core.local.backend.LocalBackend.log", broken)
    answer = served.get("/v1/topics/t")
    assert (answer.status, answer.json["error"]) == (500, "InternalError")
    assert b"secret" not in answer.data and "secret details" in caplog.text


def test_receipts_of_a_batch_say_what_single_ones_say(served: Served) -> None:
    from penstock.core.documents.events import ReceiptDocument

    events = [
        {"kind": "a", "payload": 1, "dedup": "once"},
        {"kind": "b", "payload": 2, "dedup": "once"},
        {"kind": "c", "payload": 3, "correlation": 'a "quoted" correlation'},
    ]
    said = served.post("/v1/topics/t/events", events).json["receipts"]
    assert [msgspec.convert(one, ReceiptDocument).seq for one in said] == [1, 1, 2]
    assert said[1]["duplicate"] is True and said[1]["id"] == said[0]["id"]
    assert said[2]["correlation_id"] == 'a "quoted" correlation' and "duplicate" not in said[2]
    stored = [served.get(f"/v1/topics/t/events/{one['seq']}").json["id"] for one in said]
    assert [one["id"] for one in said] == stored


def test_plain_drafts_and_full_ones_become_the_same_events(served: Served, journal: penstock.Journal) -> None:
    plain = [{"kind": "k", "payload": {"n": 1}, "key": "a"}, {"kind": "k"}]
    full = [{**draft, "headers": {}} for draft in plain]
    served.post("/v1/topics/plain/events", plain)
    served.post("/v1/topics/full/events", full)
    looks = [[(e.kind, e.payload, e.key) for e in journal.topic(name).read()] for name in ("plain", "full")]
    assert looks[0] == looks[1] == [("k", {"n": 1}, "a"), ("k", None, None)]
    refused = served.post("/v1/topics/plain/events", [{"kind": "k"}, {"kind": 5}])
    assert refused.status == 400 and "$[1].kind" in refused.json["detail"]


# ── several topics ───────────────────────────────────────────────────────────────────────────────────────────────────
def test_one_request_reads_a_bounded_number_of_topics(
    served: Served, journal: penstock.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.local.topics.READ_TOPICS", 3)
    monkeypatch.setattr("penstock.server.api.topics.READ_TOPICS", 3)
    for n in range(4):
        journal.topic(f"shop.{n}").append("placed", n)
    for path in ("/v1/read", "/v1/follow"):
        answer = served.post(path, {"topics": ["shop.*"]})
        assert answer.status == 400 and answer.json["error"] == "ConfigError"
        assert "shop.* stands for 4 topics, and one request reads at most 3" in answer.json["detail"]
    answer = served.post("/v1/read", {"topics": ["shop.[012]"], "limit": 2})
    assert [event["payload"] for event in answer.json["events"]] == [0, 1]
    assert answer.json["next"] == {"shop.0": 1, "shop.1": 1, "shop.2": 0}
    assert answer.json["ends"] == {"shop.0": 1, "shop.1": 1, "shop.2": 1}


def test_how_long_ago_is_by_the_clock_of_the_journal() -> None:
    clock = penstock.ManualClock()
    with local(penstock.open("memory:", clock=clock), "a test") as journal:
        topic = journal.topic("t")
        topic.append("early")
        clock.advance("1h")
        topic.append("late")
        page = journal.backend.call(wire.READ_EVENTS, "t", request=wire.ReadQuery(since="30m"))
        assert [event.kind for event in page.events] == ["late"]
