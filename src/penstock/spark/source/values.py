"""Texts of options as values: whole numbers, switches, lists."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.errors import ConfigError


def number(given: Mapping[str, str], name: str, least: int = 1) -> int | None:
    """A whole number among resolved options, None when it was not given; the name is spelled as in the docs."""
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, not {text!r}")
    return value


def switch(given: Mapping[str, str], name: str) -> bool:
    """A switch among resolved options, on when it was not given; the name is spelled as in the docs."""
    text = given.get(name.lower(), "true")
    if text.lower() not in ("true", "false"):
        raise ConfigError(f'{name} is "true" or "false", not {text!r}')
    return text.lower() == "true"


def listed(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Several texts: with commas, or as a JSON array when they have commas in them."""
    text = given.get(name, "").strip()
    if not text.startswith("["):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return tuple(msgspec.json.decode(text, type=list[str]))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f'{name} is a list like a,b or ["a", "b"]; {text!r} is not: {error}') from error
