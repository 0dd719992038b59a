"""Checks of arguments before their use: names, kinds, keys, and the shapes of other values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeGuard, TypeVar, get_args

from penstock.errors import ConfigError, InvalidName
from penstock.limits import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    MAX_KIND_LENGTH,
    MAX_NAME_LENGTH,
    MAX_POSITION,
    MAX_TAGS,
)

if TYPE_CHECKING:
    from urllib.parse import SplitResult

P = ParamSpec("P")
K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

TableFormat = Literal["parquet", "delta", "iceberg"]
"""The formats in which a lake's files are registered. "parquet" means no registration: plain files in folders by
day."""
TABLE_FORMATS: tuple[str, ...] = get_args(TableFormat)

_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def check_name(name: str, what: str = "topic") -> str:
    """Returns a topic's or queue's name: 1–255 of A–Z a–z 0–9 . _ - and not . or .."""
    if not isinstance(name, str):
        raise InvalidName(f"a {what} name must be text, not {type(name).__name__}")
    if not name or len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name) or name in (".", ".."):
        shown = name if len(name) <= 40 else name[:40] + "…"
        raise InvalidName(
            f"{what} name {shown!r} cannot be used: 1 to {MAX_NAME_LENGTH} of the characters A-Z a-z 0-9 . _ -, "
            "and not '.' or '..'"
        )
    return name


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean …?` when a known name is spelled nearly like `name`."""
    from difflib import get_close_matches

    spelled = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), list(spelled), 1, 0.6)
    return f"; did you mean {spelled[close[0]]!r}?" if close else ""


WILD = re.compile(r"[*?\[]")
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+", re.ASCII)


def is_pattern(name: str) -> bool:
    """Returns True when a topic's name is a pattern for several topics, such as shop.*"""
    return WILD.search(name) is not None


def check_topics(topics: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns names and patterns of topics; the empty tuple stands for all."""
    given = () if topics is None else (topics,) if isinstance(topics, str) else tuple(check_items(topics, "topics"))
    for one in given:
        if not isinstance(one, str) or not is_pattern(one):
            check_name(one)
        elif not _PATTERN.fullmatch(one):
            raise InvalidName(f"{one!r:.80} is no pattern of topics' names: like shop.*, with * ? [ab] for characters")
    if topics is not None and not given:
        raise ConfigError("topics= names none: leave it out for all of them")
    return given


SYSTEM = "penstock."
"""The prefix of topics that penstock itself writes: actions in consoles, reports of pipelines and workers."""
AUDIT = SYSTEM + "audit"
"""The topic that records changes: acts of the console, and policies that programs updated."""


def is_system(topic: str) -> bool:
    """Returns True when a topic is one of penstock's own."""
    return topic.startswith(SYSTEM)


def refuse_system(queue: str) -> str:
    """Checks and returns the name of a new queue: penstock's own topics take no queues."""
    if is_system(queue):
        raise InvalidName(f"queue name {queue!r} cannot be used: topics named {SYSTEM}… are penstock's own")
    return queue


def check_consumer(name: str, what: str = "consumer") -> str:
    """Returns a consumer's or group's name: any text that is not blank."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidName(f"a {what} name must be text that is not blank, not {name!r}")
    check_text(name, f"{what} name", InvalidName)
    return name


def check_kind(kind: object) -> str:
    if not isinstance(kind, str) or not kind or len(kind) > MAX_KIND_LENGTH:
        raise ConfigError(f"an event's kind must be text of 1 to {MAX_KIND_LENGTH} characters, not {kind!r:.80}")
    _encoded(kind, "kind")
    return kind


def check_text(text: object, what: str, error: type[ConfigError] = ConfigError) -> str:
    """Returns a key, scope or dedup key: text of 1 to 400 bytes."""
    if not isinstance(text, str) or not text:
        raise error(f"{what} must be text that is not empty, not {text!r:.80}")
    size = len(_encoded(text, what, error))
    if size > MAX_KEY_BYTES:
        raise error(f"{what} is {size} bytes long; at most {MAX_KEY_BYTES} are allowed: {text[:40]!r}…")
    return text


def check_unicode(text: object, what: str) -> str:
    """Returns text that can be encoded; it may be empty."""
    if not isinstance(text, str):
        raise ConfigError(f"{what} must be text, not {text!r:.80}")
    _encoded(text, what)
    return text


def check_headers(headers: object) -> Mapping[str, str]:
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers must be a mapping of text to text, not {type(headers).__name__}")
    if len(headers) > MAX_HEADERS:
        raise ConfigError(f"{len(headers)} headers are too many; at most {MAX_HEADERS} are allowed")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise ConfigError(f"headers must map text to text; {name!r:.80} → {value!r:.80} does not")
        size += len(_encoded(name, "header name")) + len(_encoded(value, f"header {name!r:.80}"))
    if size > MAX_HEADER_BYTES:
        raise ConfigError(
            f"headers of {size:,} bytes are too large; at most {MAX_HEADER_BYTES:,} are allowed on one event: "
            "put the rest into the payload"
        )
    return dict(headers)


TAG_END = "\x1f"
"""The separator before, between and after the tags of an event in their stored text."""


def check_tags(tags: object) -> tuple[str, ...]:
    """Returns an event's tags, each once and in order. A single text is one tag."""
    given = (tags,) if isinstance(tags, str) else tags
    if not isinstance(given, Iterable) or isinstance(given, Mapping | bytes):
        raise ConfigError(f"tags must be several texts, not {tags!r:.80}")
    found = sorted(set(map(_check_tag, given)))
    if len(found) > MAX_TAGS:
        raise ConfigError(f"{len(found)} tags are too many; at most {MAX_TAGS} are allowed on one event")
    return tuple(found)


def _check_tag(tag: object) -> str:
    if isinstance(tag, str) and tag.isascii() and tag.isprintable() and 0 < len(tag) <= MAX_KEY_BYTES:
        return tag  # most texts are
    text = check_text(tag, "a tag")
    if TAG_END in text:
        raise ConfigError(f"a tag must not hold the character U+001F, which {text[:40]!r} does")
    return text


def pack_tags(tags: Iterable[str]) -> str | None:
    """Returns checked tags as the one text that is stored; None for no tags."""
    joined = TAG_END.join(tags)
    return stored_tag(joined) if joined else None


def stored_tags(tags: object) -> str | None:
    """Returns the text that is stored for the tags of an event, which are checked; None for no tags."""
    return pack_tags(check_tags(tags))


def stored_tag(tag: str) -> str:
    """Returns the part of a stored text that says that an event has a tag."""
    return f"{TAG_END}{tag}{TAG_END}"


def unpack_tags(text: str | None) -> tuple[str, ...]:
    """Returns the tags of a stored text."""
    return tuple(text[1:-1].split(TAG_END)) if text else ()


def check_limit(limit: int | None, name: str = "limit", minimum: int = 0) -> int | None:
    """Returns the limit: None, or a whole number of at least `minimum` that can be stored."""
    if limit is not None and (not is_whole(limit) or limit < minimum):
        raise ConfigError(f"{name} must be None or a whole number of at least {minimum}, not {limit!r}")
    if limit is not None and limit > MAX_POSITION:
        raise ConfigError(f"{name} must be at most {MAX_POSITION}, or None for no limit, not {limit!r:.80}")
    return limit


def is_whole(value: object) -> TypeGuard[int]:
    """Returns True for a whole number. True and False are not whole numbers here, although Python counts them as
    integers."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Returns True for a number. True and False are not numbers here."""
    return isinstance(value, float) or is_whole(value)


def check_whole(value: object, name: str, minimum: int = 1) -> int:
    """Returns a whole number of at least `minimum`; ConfigError says what it should have been."""
    if not is_whole(value) or value < minimum:
        raise ConfigError(f"{name} must be a whole number of at least {minimum}, not {value!r}")
    return value


def check_seconds(value: object, name: str, minimum: float) -> float:
    """Returns a number of seconds; raises ConfigError for everything else."""
    if not is_number(value) or not minimum <= value < math.inf:
        raise ConfigError(f"{name} must be a number of seconds of at least {minimum:g}, not {value!r}")
    return value


def check_position(seq: int, name: str) -> int:
    if (seq.__class__ is not int and not is_whole(seq)) or seq < 0:
        raise ConfigError(f"{name} must be a position (a whole number of at least 0), not {seq!r}")
    if seq > MAX_POSITION:
        raise ConfigError(f"{name} is beyond the last possible position, {MAX_POSITION}: {seq!r:.80}")
    return seq


def check_items(items: Iterable[T], name: str) -> list[T]:
    """Returns things that are given together, as a list; ConfigError when they are one text or mapping, or not
    iterable."""
    if not isinstance(items, str | bytes | bytearray | memoryview | Mapping):  # letters and keys are not meant
        try:
            found = iter(items)
        except TypeError:
            pass
        else:
            return list(found)
    raise ConfigError(f"{name} must be a list or another iterable, not {items!r:.80}")


def check_mapping(given: Mapping[K, V] | None, name: str) -> dict[K, V]:
    """Returns a mapping argument as a dict; None becomes an empty dict."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{name} must be a mapping, not {given!r:.80}")
    return dict(given or {})


def check_path(path: str | os.PathLike[str], name: str = "path") -> str:
    """Returns a path in a file system, as text."""
    found: object = os.fspath(path) if isinstance(path, os.PathLike) else path
    try:
        if isinstance(found, str) and found and b"\0" not in os.fsencode(found):
            return found
    except UnicodeEncodeError:
        pass
    raise ConfigError(f"{name} must be a path, not {path!r:.80}")


def check_function(function: Callable[P, T], name: str) -> Callable[P, T]:
    """Checks that a value can be called, and returns it."""
    if not callable(function):
        raise ConfigError(f"{name} must be a function, not {function!r:.80}")
    return function


def _encoded(text: str, what: str, error: type[ConfigError] = ConfigError) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as cause:
        raise error(f"{what} {text[:40]!r} is not valid Unicode text: {cause.reason}") from cause


def split_url(url: str) -> SplitResult:
    """Splits a url; raises `ConfigError` for an invalid url, for example with half an IPv6 address."""
    try:
        from urllib.parse import urlsplit  # takes as long as three modules of penstock

        return urlsplit(url)
    except ValueError:  # its text may have a secret in it
        raise ConfigError(f"{shown_url(url)!r:.200} is no url: the machine it names cannot be read") from None


def shown_url(url: str) -> str:
    """Returns a url for messages, logs and pages, without its user, password and query, which may be secrets.

    All output that shows a url uses this function.
    """
    head, scheme, rest = url.partition("://")
    if not scheme:
        return url
    host, slash, path = rest.partition("/")
    user, colon, port = host.partition(":")
    if "@" in host:
        host = host.rpartition("@")[2]
    elif colon and "@" in path and not port.isdigit() and not user.startswith("["):
        # a password with a slash, as S3 passwords often have
        host, slash, path = path.rpartition("@")[2].partition("/")
    return f"{head}://{host}{slash}{path}".partition("?")[0]
