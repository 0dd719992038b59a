"""What requests may say: query parameters and bodies, checked before anything is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from penstock.conditions import Where
from penstock.document import DraftDocument, PlainDraft
from penstock.errors import ConfigError
from penstock.events import Draft, Event
from penstock.server.api.problems import Refused
from penstock.server.limits import MOST_EVENTS, USUAL_EVENTS, Limits
from penstock.units import parse_moment

T = TypeVar("T")

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


# ── query parameters ─────────────────────────────────────────────────────────────────────────────────────────────────
def number(request: Request, name: str, default: int | None = None, *, most: int | None = None) -> int | None:
    """A whole number of at least 0."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    if not text.isdigit() or len(text) > 19:
        raise ConfigError(f"{name} must be a whole number of at least 0, not {text[:40]!r}")
    value = int(text)
    if most is not None and value > most:
        raise ConfigError(f"{name} may be {most:,} at the most, not {value:,}: ask again for what follows")
    return value


def moment(request: Request, name: str) -> datetime | None:
    """A time: ISO, or how long ago."""
    text = request.query_params.get(name)
    return None if not text else parse_moment(text, datetime.now(UTC))


def yes(request: Request, name: str) -> bool:
    """A parameter that is there and does not say no."""
    text = request.query_params.get(name)
    if text is None:
        return False
    if text.lower() in ("", "1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise ConfigError(f"{name} is true or false, not {text[:40]!r}")


class Wanted:
    """Which events a reader or listener wants, beyond positions."""

    def __init__(self, request: Request) -> None:
        query = request.query_params
        self.kinds = frozenset(kind for kind in query.getlist("kind") if kind)
        self.key = query.get("key") or None
        self.scope = query.get("scope") or None
        where = query.get("where")
        self.where = Where(where) if where and where.strip() else None

    @property
    def everything(self) -> bool:
        return not self.kinds and self.key is None and self.scope is None and self.where is None

    def read(self) -> dict[str, Any]:
        """As the keyword arguments of `Topic.read`; `where` remains to be asked."""
        chosen: dict[str, Any] = {"key": self.key, "scope": self.scope}
        if self.kinds:
            chosen["kind"] = sorted(self.kinds)
        return chosen

    def matches(self, event: Event) -> bool:
        return (
            (not self.kinds or event.kind in self.kinds)
            and (self.key is None or event.key == self.key)
            and (self.scope is None or event.scope == self.scope)
            and (self.where is None or self.where.matches(event))
        )


def page_size(request: Request) -> int:
    """How many events a page may have."""
    limit = number(request, "limit", USUAL_EVENTS, most=MOST_EVENTS)
    assert limit is not None
    return limit


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────
async def body(request: Request, limits: Limits) -> bytes:
    """The request's body; Refused when it is too large or too slow."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.max_body:
        raise _too_large(limits)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.max_body:
                    raise _too_large(limits)
                chunks.append(chunk)
    except TimeoutError:
        raise Refused(408, "RequestTimeout", f"the body did not arrive within {limits.body_timeout:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "Disconnected", "the body ended early") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limits: Limits) -> Refused:
    return Refused(413, "TooLarge", f"a body may have {limits.max_body:,} bytes at the most: send several requests")


def decoded(data: bytes, decode: Callable[[bytes], T]) -> T:
    """A body as a value of the expected shape; ConfigError names what does not fit."""
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the body cannot be used: {error}") from error


async def struct(request: Request, limits: Limits, type: type[T]) -> T:
    """A JSON body as a struct; an empty one stands for {}."""
    data = await body(request, limits)
    return decoded(data or b"{}", msgspec.json.Decoder(type).decode)


_decode_drafts = msgspec.json.Decoder(DraftDocument | list[DraftDocument]).decode
_decode_plain = msgspec.json.Decoder(list[PlainDraft]).decode
_decode_draft = msgspec.json.Decoder(DraftDocument).decode


async def drafts(request: Request, limits: Limits) -> tuple[list[Draft], bool]:
    """The drafts of a body, and whether it was a single one: a JSON object, an array of them, or one a line."""
    data = await body(request, limits)
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content in (NDJSON, "application/jsonl", "application/ndjson"):
        lines = [line for line in data.splitlines() if line.strip()]
        return [decoded(line, _decode_draft).draft() for line in lines], False
    if content not in ("application/json", ""):
        raise Refused(415, "UnsupportedMediaType", f"send application/json or {NDJSON}, not {content[:60]!r}")
    if data.startswith(b"["):
        try:
            return [Draft(one.kind, one.payload, key=one.key) for one in _decode_plain(data)], False
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # they say more than that, or something is wrong with them, which the next line finds out
    given = decoded(data, _decode_drafts)
    if isinstance(given, list):
        return [document.draft() for document in given], False
    return [given.draft()], True
