"""Building HTML from values: everything is escaped unless it is HTML already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

VOID = {"br", "hr", "img", "input", "link", "meta", "col"}


class Html(str):
    """Text that is HTML already. Only `el` and `join` make it."""

    __slots__ = ()


def text(value: Any) -> Html:
    """A value as HTML: escaped, unless it is HTML already."""
    if isinstance(value, Html):
        return value
    return Html(escape(str(value), quote=True))


def join(parts: Iterable[Any]) -> Html:
    """Values one after the other; None stands for nothing."""
    return Html("".join(text(part) for part in parts if part is not None))


def el(tag: str, *children: Any, **attributes: Any) -> Html:
    """An element. A last underscore (`class_`) is dropped, others are dashes; True is a bare name, None is left out."""
    given = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = name.rstrip("_").replace("_", "-")
        given.append(spelled if value is True else f'{spelled}="{escape(str(value), quote=True)}"')
    opening = " ".join([tag, *given])
    if tag in VOID:
        return Html(f"<{opening}>")
    return Html(f"<{opening}>{join(children)}</{tag}>")
