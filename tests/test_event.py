"""The values an application handles: events, drafts and receipts."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import Draft, Event, Receipt
from penstock.core.documents.events import event_document
from penstock.core.events import format_id, parse_id
from penstock.core.journal.blocks import Columns, build_block, read_block
from penstock.core.queue.state.blocks import DamagedBlock
from penstock.errors import ConfigError, PoisonMessage
from penstock.remote.events import DocumentRows


def make(count: int = 3, **columns: Any) -> list[Event]:
    made = Columns(["k"] * count, [b"%d" % n for n in range(count)])
    for name, values in columns.items():
        setattr(made, name, values)
    block = read_block(build_block(made, 10, 1_700_000_000_000, (1_700_000_000_000 << 80) | (7 << 76) | 5), "t")
    return block.events()


def test_an_event_is_immutable() -> None:
    event = make()[0]
    for name in ("seq", "payload", "key", "_row", "anything"):
        with pytest.raises(AttributeError):
            setattr(event, name, 1)
    with pytest.raises(TypeError):
        event.headers["a"] = "b"  # type: ignore[index]


def test_events_are_equal_when_they_are_the_same_event() -> None:
    one, other = make(), make()
    assert one == other and one[0] != one[1] and one[0] != "event" and one[0] != None  # noqa: E711
    assert len({*one, *other}) == 3 and hash(one[0]) == hash(other[0])


def test_events_of_every_kind_of_rows_have_every_field() -> None:
    def fields(event: Event) -> dict[str, object]:
        return {**event.as_dict(), "raw": event.raw, "binary": event.binary}

    stored = make(2, key=["a", None])
    documents = DocumentRows("t", list(map(event_document, stored)))
    assert [fields(Event(documents, row)) for row in (0, 1)] == list(map(fields, stored))
    damaged = Event(DamagedBlock(b"1", "t", 10, 11), 0)
    assert fields(damaged).keys() == fields(stored[0]).keys()


def test_an_event_prints_what_it_is() -> None:
    (event, *_) = make(1, key=["käy"])
    assert repr(event) == "Event(t#10 'k', key='käy' 0)"
    long = read_block(build_block(Columns(["k"], [b'"' + b"x" * 200 + b'"']), 1, 0, 0), "t").events()[0]
    assert len(repr(long)) < 130 and repr(long).endswith("…)")


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda event: pickle.loads(pickle.dumps(event))])
def test_an_event_can_be_copied_and_sent_elsewhere(way: Any) -> None:
    events = make(
        3,
        key=["a", None, "é"],
        scope=[None, "s", None],
        headers=[{"h": "1"}, None, {}],
        occurred=[None, -5, 99],
        binary=[False, True, False],
        correlation=["c", None, None],
        causation=[None, "x", None],
    )
    for event in events:
        again = way(event)
        assert again == event and again.as_dict() == event.as_dict() and again.binary == event.binary


def test_a_payload_that_is_not_json_is_poison_and_keeps_its_bytes() -> None:
    for raw in (b"{", b"", b"\xff", b"nan", b'{"a":1}x'):
        event = read_block(build_block(Columns(["k"], [raw]), 7, 0, 0), "t").events()[0]
        with pytest.raises(PoisonMessage, match="event 7 of topic 't'") as poison:
            _ = event.payload
        assert poison.value.raw == raw == event.raw
        assert isinstance(repr(event), str) and event.kind == "k"


def test_times_are_aware_and_in_utc() -> None:
    event = make(1, occurred=[-1])[0]
    assert event.recorded_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC) and event.recorded_at.tzinfo is UTC
    assert event.occurred_at == datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)


def test_a_draft_takes_kind_and_payload_by_position_and_the_rest_by_name() -> None:
    draft = Draft("k", {"a": 1}, key="x", headers={"h": "v"})
    assert (draft.kind, draft.payload, draft.key, draft.scope) == ("k", {"a": 1}, "x", None)
    assert draft == Draft("k", {"a": 1}, key="x", headers={"h": "v"}) and Draft("k") != Draft("l")
    with pytest.raises(TypeError):
        Draft("k", 1, "topic")  # type: ignore[misc]
    with pytest.raises(TypeError):
        Draft("k", colour="red")  # type: ignore[call-arg]


def test_the_signatures_of_the_values_can_be_looked_at() -> None:
    for value in (Draft, Event, Receipt):
        assert inspect.signature(value).parameters and typing.get_type_hints(value)
    assert list(inspect.signature(Draft).parameters)[:2] == ["kind", "payload"]


def test_receipts_are_values() -> None:
    number = (1_700_000_000_000 << 80) | 5
    receipt = Receipt("t", 3, number, "c")
    assert receipt == Receipt("t", 3, number, "c", True) and receipt != Receipt("t", 4, number) and receipt != 3
    assert len({receipt, Receipt("t", 3, number)}) == 1
    assert pickle.loads(pickle.dumps(receipt)).id == receipt.id == str(uuid.UUID(int=number))
    assert repr(receipt) == f"Receipt(t#3 {receipt.id})"
    assert repr(Receipt("t", 3, number, duplicate=True)).endswith(", duplicate)")
    with pytest.raises(AttributeError):
        receipt.seq = 4  # type: ignore[misc]


@given(st.integers(0, (1 << 128) - 1))
def test_ids_are_written_and_read_as_uuids(number: int) -> None:
    text = format_id(number)
    assert text == str(uuid.UUID(int=number)) and parse_id(text) == number == parse_id(text.replace("-", ""))


@pytest.mark.parametrize(
    "text", ["", "abc", "g" * 32, "0" * 31, "0" * 33, "-" * 36, "0x" + "0" * 30, "1_" * 16, " " * 32]
)
def test_what_is_no_id_is_none(text: str) -> None:
    assert parse_id(text) is None


def test_kinds_and_payloads_of_a_wrong_type_are_refused_with_their_name() -> None:
    with penstock.open("memory:") as journal:
        with pytest.raises(ConfigError, match="object"):
            journal.topic("t").append("k", object())
        with pytest.raises(ConfigError):
            journal.topic("t").append(object())
