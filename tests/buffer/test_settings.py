"""The arguments of producers and consumers: fields of their settings, said once."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from penstock.buffer import Consumer, Producer
from penstock.buffer.settings import BufferSettings, ConsumerSettings, ProducerSettings


@pytest.mark.parametrize(("side", "settings"), [(Producer, ProducerSettings), (Consumer, ConsumerSettings)])
def test_help_shows_the_arguments_with_their_defaults(
    side: type[Producer | Consumer], settings: type[BufferSettings]
) -> None:
    shown = inspect.signature(side).parameters
    fields = {field.name: field for field in msgspec.structs.fields(settings)}
    assert list(shown) == list(settings.__struct_fields__)
    assert shown["url"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert shown["manifest"].kind is inspect.Parameter.KEYWORD_ONLY
    assert {name: shown[name].default for name in fields if name != "url"} == {
        name: field.default for name, field in fields.items() if name != "url"
    }


def test_an_argument_that_there_is_not_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match="flush_intervall"):
        Producer("memory://names", flush_intervall=1)  # type: ignore[call-arg]
