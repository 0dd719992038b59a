"""CloudEvents over HTTP in every mode, in and out, beside the CloudEvents SDK's own reading of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

import penstock
from penstock.core.documents import cloudevents
from server.serving import Answer, Served

PLACED = {
    "specversion": "1.0",
    "type": "order.placed",
    "source": "https://shop.example/web",
    "id": "A-1",
    "subject": "ann",
    "time": "2026-03-01T12:30:00.5Z",
    "datacontenttype": "application/json",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tenant": "eu",
    "retries": 3,
    "data": {"total": 9.5},
}


def send(served: Served, body: Any, media: str = cloudevents.STRUCTURED, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {name.lower(): value for name, value in headers.items()}
    return served.ask("POST", "/v1/topics/orders/events", data, headers={"content-type": media, **given})


def test_a_structured_event_becomes_an_event_once(served: Served, journal: penstock.Journal) -> None:
    assert send(served, PLACED).status == 201
    again = send(served, PLACED)
    assert again.status == 200 and again.json["duplicate"] is True
    (event,) = journal.topic("orders").read()
    assert (event.kind, event.key, event.payload) == ("order.placed", "ann", {"total": 9.5})
    assert event.occurred_at == datetime(2026, 3, 1, 12, 30, 0, 500_000, UTC)
    assert event.headers["ce-source"] == "https://shop.example/web" and event.headers["ce-tenant"] == "eu"
    assert event.headers["traceparent"] == PLACED["traceparent"]


def test_what_came_in_goes_out_as_it_was_in_every_mode(served: Served, journal: penstock.Journal) -> None:
    send(served, PLACED)
    path = "/v1/topics/orders/events/1"
    structured = served.ask("GET", path, headers={"Accept": cloudevents.STRUCTURED})
    expected = {**PLACED, "retries": "3", "time": "2026-03-01T12:30:00.500000Z", "sequence": f"{1:020}"}
    assert structured.json == expected and structured.headers["content-type"] == cloudevents.STRUCTURED
    binary = served.ask("GET", path, headers={"Accept": cloudevents.BINARY})
    assert binary.headers["ce-type"] == "order.placed" and binary.headers["ce-subject"] == "ann"
    assert binary.headers["content-type"] == "application/json" and binary.json == {"total": 9.5}
    copy = {name: value for name, value in binary.headers.items() if name.lower().startswith("ce-")}
    answer = served.ask(
        "POST", "/v1/topics/copy/events", binary.data, headers={**copy, "Content-Type": "application/json"}
    )
    assert answer.status == 201
    (event,) = journal.topic("copy").read()
    assert (event.kind, event.key, event.payload) == ("order.placed", "ann", {"total": 9.5})


def test_the_sdk_of_cloudevents_reads_and_writes_the_same(served: Served, journal: penstock.Journal) -> None:
    text, media = "zoë ☃ 100%", "application/json"
    about = {"type": "mail.sent", "source": "/mailer", "datacontenttype": media}
    made = CloudEvent({**about, "subject": text, "tenant": "eu"}, {"to": "zoë"})
    message = to_structured(made, JSONFormat())
    assert send(served, message.body, **message.headers).status == 201
    other = CloudEvent({**about, "subject": text + "!"}, {"to": "bob"})
    message = to_binary(other, JSONFormat())
    assert send(served, message.body, **message.headers).status == 201
    first, second = journal.topic("orders").read()
    assert (first.key, first.payload, first.headers["ce-tenant"]) == (text, {"to": "zoë"}, "eu")
    assert (second.key, second.payload) == (text + "!", {"to": "bob"})
    for sent, seq, mode in ((made, 1, cloudevents.STRUCTURED), (other, 2, cloudevents.BINARY)):
        answer = served.ask("GET", f"/v1/topics/orders/events/{seq}", headers={"Accept": mode})
        read = from_http(HTTPMessage(dict(answer.headers.items()), answer.data), JSONFormat())
        assert (read.get_id(), read.get_source(), read.get_type()) == (sent.get_id(), "/mailer", "mail.sent")
        assert read.get_subject() == sent.get_subject() and read.get_data() == sent.get_data()


def test_batches_go_in_whole_and_out_in_pages(served: Served, journal: penstock.Journal) -> None:
    batch = [{**PLACED, "id": f"B-{n}", "data": n} for n in range(5)]
    assert len(send(served, batch, cloudevents.BATCH).json["receipts"]) == 5
    bad = [{**PLACED, "id": "C-1"}, {**PLACED, "id": ""}]
    refused = send(served, bad, cloudevents.BATCH)
    assert refused.status == 400 and "CloudEvent 1 has no id" in refused.json["detail"]
    assert journal.topic("orders").latest == 5
    accept = {"Accept": cloudevents.BATCH}
    page = served.ask("GET", "/v1/topics/orders/events?limit=3", headers=accept)
    assert [one["data"] for one in page.json] == [0, 1, 2] and page.headers["content-type"] == cloudevents.BATCH
    following = page.headers["link"].partition(">")[0].lstrip("<")
    rest = served.ask("GET", following, headers=accept)
    assert [one["data"] for one in rest.json] == [3, 4] and rest.headers["link"] is None


def test_an_event_of_our_own_is_a_cloudevent_too(served: Served, journal: penstock.Journal) -> None:
    topic = journal.topic("a.topic")
    cause = topic.append("first", {"n": 1})
    topic.append("raw", b"\x00\xff", cause=cause, headers={"source": "web", "x-own": "1"})
    own = served.ask("GET", "/v1/topics/a.topic/events/2", headers={"Accept": cloudevents.STRUCTURED}).json
    assert own["source"] == "/topics/a.topic" and own["data_base64"] == "AP8="
    assert own["datacontenttype"] == "application/octet-stream"
    assert own["causationid"] == cause.id and own["correlationid"] == cause.id
    assert send(served, own).status == 201
    (copy,) = journal.topic("orders").read()
    assert copy.raw == b"\x00\xff" and copy.binary and copy.causation_id == cause.id
    about = {"ce-specversion": "1.0", "ce-type": "t", "ce-source": "s", "ce-id": "p"}
    binary = send(served, b"\x01\x02", "image/png", **about)
    assert binary.status == 201
    picture = journal.topic("orders").get(2)
    assert picture is not None and picture.raw == b"\x01\x02"
    shown = served.ask("GET", "/v1/topics/orders/events/2", headers={"Accept": cloudevents.BINARY})
    assert shown.headers["content-type"] == "image/png" and shown.data == b"\x01\x02"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"specversion": "0.3"}, "1.0 is understood"),
        ({"type": ""}, "has no type"),
        ({"source": None}, "has no source"),
        ({"time": "yesterday"}, "no RFC 3339 time"),
        ({"time": "2026-03-01T12:30:00"}, "no time zone"),
        ({"Bad-Name": "x"}, "lower-case letters and digits"),
        ({"tenant": {"a": 1}}, "no text, number or truth value"),
        ({"data": None, "data_base64": "%%"}, "no base64 text"),
        ({"data_base64": "AAAA"}, "data and data_base64"),
        ({"type": "x" * 70_000}, ""),
    ],
)
def test_what_is_no_cloudevent_is_refused_and_leaves_no_trace(
    served: Served, journal: penstock.Journal, change: dict[str, Any], says: str
) -> None:
    answer = send(served, {**PLACED, **change})
    assert answer.status == 400 and says in answer.json["detail"]
    assert "orders" not in journal.topics()


def test_long_sources_and_ids_are_told_apart(served: Served, journal: penstock.Journal) -> None:
    for source, name in (("a" * 400, "b"), ("a" * 400, "c"), ("a", "b c"), ("a b", "c"), ("a" * 400, "b")):
        assert send(served, {**PLACED, "source": source, "id": name}).status in (200, 201)
    assert journal.topic("orders").latest == 4
