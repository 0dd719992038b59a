"""Typed events: declared types, versions, and upcasters applied wherever events are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest

import penstock
from penstock import Draft, Journal, Projection, Topic, event, upcast
from penstock import on as handles
from penstock.core import schema
from penstock.errors import ConfigError, PoisonMessage


@pytest.fixture
def journal() -> Iterator[Journal]:
    with penstock.open("memory:") as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_declared() -> Iterator[None]:
    before = set(schema._by_kind)
    yield
    for kind in set(schema._by_kind) - before:
        schema.forget(kind)


class Line(msgspec.Struct):
    sku: str
    count: int


class StructOrder(msgspec.Struct):
    customer: str
    at: datetime
    lines: list[Line] = []


@dataclasses.dataclass
class DataclassOrder:
    customer: str
    at: datetime
    lines: list[Line] = dataclasses.field(default_factory=list)


class ModelOrder(pydantic.BaseModel):
    customer: str
    at: datetime
    lines: list[dict[str, Any]] = []


AT = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.mark.parametrize("cls", [StructOrder, DataclassOrder, ModelOrder])
def test_an_instance_is_appended_and_read_back_as_its_type(topic: Topic, cls: Any) -> None:
    event("order.placed")(cls)
    lines: Any = [{"sku": "s", "count": 2}] if cls is ModelOrder else [Line("s", 2)]
    placed = cls(customer="ada", at=AT, lines=lines)
    receipt = topic.append(placed, key="o1")
    stored = topic.get(receipt.seq)
    assert stored is not None
    assert stored.kind == "order.placed" and dict(stored.headers) == {}
    assert stored.payload == {"customer": "ada", "at": "2024-05-06T07:08:09Z", "lines": [{"sku": "s", "count": 2}]}
    assert stored.as_(cls) == placed
    topic.append_many([Draft(placed), Draft("other", 1)])
    topic.submit(placed).result(60)
    assert [one.kind for one in topic.read()] == ["order.placed", "order.placed", "other", "order.placed"]


def test_a_newer_version_says_so_in_a_header_and_keeps_the_callers_headers(topic: Topic) -> None:
    event("order.placed", version=3)(StructOrder)
    topic.append(StructOrder("ada", AT), headers={"trace": "t"})
    assert dict(next(topic.read()).headers) == {"trace": "t", "schema-version": "3"}


def versions_of_order() -> type[Any]:
    @upcast("order.placed", version=1)
    def split_name(payload: Any) -> Any:
        return {"first": payload["name"].split()[0], "last": payload["name"].split()[1]}

    @upcast("order.placed", version=2)
    def add_currency(payload: Any) -> Any:
        return {**payload, "currency": "EUR"}

    @event("order.placed", version=3)
    class Placed(msgspec.Struct):
        first: str
        last: str
        currency: str

    return Placed


def test_old_payloads_pass_through_every_upcaster_in_order(topic: Topic) -> None:
    topic.append("order.placed", {"name": "Ada Lovelace"})
    topic.append("order.placed", {"first": "Alan", "last": "Turing"}, headers={"schema-version": "2"})
    placed = versions_of_order()
    topic.append(placed("Grace", "Hopper", "USD"))
    assert [one.as_(placed) for one in topic.read()] == [
        placed("Ada", "Lovelace", "EUR"),
        placed("Alan", "Turing", "EUR"),
        placed("Grace", "Hopper", "USD"),
    ]


def test_projections_see_the_same_upcast_payloads(journal: Journal, topic: Topic) -> None:
    placed = versions_of_order()

    class Names(Projection):
        typed: list[str] = []
        plain: list[str] = []
        currencies: list[str] = []

        @handles("order.placed")
        def note(self, event: placed) -> None:  # type: ignore[valid-type]
            self.typed.append(event.last)  # type: ignore[attr-defined]

        @handles("order.placed")
        def note_plain(self, payload: Any) -> None:
            self.plain.append(payload["last"])
            self.currencies.append(payload["currency"])

    topic.append("order.placed", {"name": "Ada Lovelace"}, key="k")
    topic.append(placed("Grace", "Hopper", "USD"), key="k")
    for _ in range(2):
        state = topic.project(Names, "k")
        assert state == Names(["Lovelace", "Hopper"], ["Lovelace", "Hopper"], ["EUR", "USD"])
        topic.rebuild(Names)
    assert Names.fold(topic.read(key="k")) == state


def test_two_types_on_one_kind_are_refused(topic: Topic) -> None:
    event("order.placed")(StructOrder)
    with pytest.raises(ConfigError, match=r"order.placed.*StructOrder already"):
        event("order.placed")(DataclassOrder)
    with pytest.raises(ConfigError, match="belongs to one kind"):
        event("order.other")(StructOrder)
    event("order.placed", version=2)(StructOrder)


def test_a_definition_inside_a_function_may_run_again(topic: Topic) -> None:
    """As in a parametrised test or an application factory: the newest class is the declared one."""

    def declare() -> Any:
        @event("order.placed", version=2)
        class Order(msgspec.Struct):
            customer: str

        @upcast("order.placed", version=1)
        def rename(payload: Any) -> Any:
            return {"customer": payload["name"]}

        return Order

    class Customers(Projection):
        seen: list[Any] = []

        @handles("order.placed")
        def note(self, event: Order) -> None:  # type: ignore[name-defined]  # noqa: F821
            self.seen.append(type(event).__name__)
            assert isinstance(event, newest)

    topic.append("order.placed", {"name": "ada"}, key="k")
    for expected in (1, 2):
        newest = declare()
        topic.append(newest("grace"), key="k")
        assert [stored.as_(newest).customer for stored in topic.read()] == ["ada", *["grace"] * expected]
        state = Customers.fold(topic.read(key="k"))
        assert state.seen == ["Order"] * (expected + 1)


def test_classes_of_one_name_from_different_places_are_two_types() -> None:
    def one() -> Any:
        class Order(msgspec.Struct):
            customer: str

        return Order

    def other() -> Any:
        class Order(msgspec.Struct):
            customer: str

        return Order

    event("order.placed")(one())
    event("order.placed")(one())
    with pytest.raises(ConfigError, match=r"one.<locals>.Order already; .*other.<locals>.Order"):
        event("order.placed")(other())


def test_gaps_repeats_and_steps_beyond_the_newest_version_are_refused_when_declared() -> None:
    upcast("a", version=1)(lambda payload: payload)
    with pytest.raises(ConfigError, match="gap"):
        upcast("a", version=3)(lambda payload: payload)
    with pytest.raises(ConfigError, match="already"):
        upcast("a", version=1)(lambda payload: payload)
    with pytest.raises(ConfigError, match="version=2"):
        event("a", version=1)(StructOrder)
    event("a", version=2)(StructOrder)
    with pytest.raises(ConfigError, match="newest version is 2"):
        upcast("a", version=2)(lambda payload: payload)


@pytest.mark.parametrize("version", [0, -1, True, "2", 1.0])
def test_versions_are_whole_numbers_from_one(version: Any) -> None:
    with pytest.raises(ConfigError, match="version"):
        event("a", version=version)
    with pytest.raises(ConfigError, match="version"):
        upcast("a", version=version)


def test_a_missing_step_is_named_when_an_old_event_is_read(topic: Topic) -> None:
    event("order.placed", version=3)(StructOrder)
    upcast("order.placed", version=2)(lambda payload: payload)
    topic.append("order.placed", {})
    with pytest.raises(ConfigError, match="from 1 to 2"):
        next(topic.read()).as_(StructOrder)


def test_an_event_from_a_newer_program_is_not_guessed_at(topic: Topic) -> None:
    event("order.placed")(StructOrder)
    topic.append("order.placed", {"customer": "ada"}, headers={"schema-version": "4"})
    with pytest.raises(ConfigError, match=r"version 4.*upgrade"):
        next(topic.read()).as_(StructOrder)
    topic.append("order.placed", {}, headers={"schema-version": "new"})
    with pytest.raises(ConfigError, match="no version"):
        list(topic.read())[-1].as_(StructOrder)


def test_an_upcaster_that_fails_is_named(topic: Topic) -> None:
    versions_of_order()
    topic.append("order.placed", {"name": "Ada"})
    cls = schema.schema_of("order.placed").type  # type: ignore[union-attr]
    assert cls is not None
    with pytest.raises(IndexError) as failure:
        next(topic.read()).as_(cls)
    assert "split_name" in failure.value.__notes__[0] and "1 → 2" in failure.value.__notes__[0]
    assert len(topic) == 1


@pytest.mark.parametrize("cls", [StructOrder, DataclassOrder, ModelOrder])
def test_a_payload_that_does_not_fit_is_poison(topic: Topic, cls: Any) -> None:
    event("order.placed")(cls)
    topic.append("order.placed", {"customer": 7})
    topic.append("order.placed", b"\xff")
    for stored in topic.read():
        with pytest.raises(PoisonMessage, match=r"order.placed.*does not fit"):
            stored.as_(cls)


def test_only_declared_instances_can_be_appended(topic: Topic) -> None:
    with pytest.raises(ConfigError, match=r"@penstock\.event"):
        topic.append(StructOrder("ada", AT))
    with pytest.raises(ConfigError, match="StructOrder"):
        topic.append_many([Draft("fine", 1), Draft(StructOrder("ada", AT))])
    assert len(topic) == 0
    event("order.placed")(StructOrder)
    with pytest.raises(ConfigError, match="payload itself"):
        topic.append(StructOrder("ada", AT), {"more": 1})


def test_an_event_is_not_read_as_another_kinds_type(topic: Topic) -> None:
    event("order.placed")(StructOrder)
    topic.append("order.cancelled", {})
    with pytest.raises(ConfigError, match=r"'order.cancelled'.*'order.placed'"):
        next(topic.read()).as_(StructOrder)
    assert next(topic.read()).as_(dict) == {}


def test_what_cannot_be_a_payload_cannot_be_declared() -> None:
    with pytest.raises(ConfigError, match=r"Struct, a dataclass, a TypedDict or a pydantic"):

        @event("a")
        class Plain:
            pass


def test_a_handler_whose_type_cannot_be_found_is_refused(topic: Topic) -> None:
    versions_of_order()

    class Names(Projection):
        count: int = 0

        @handles("order.placed")
        def note(self, event: hidden) -> None:  # type: ignore[name-defined]  # noqa: F821
            self.count += 1

    topic.append("order.placed", {"name": "Ada Lovelace"}, key="k")
    with pytest.raises(ConfigError, match=r"'hidden'.*cannot be found"):
        topic.project(Names, "k")
