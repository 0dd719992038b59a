"""What requests bring: bodies, drafts, and which events they want."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import ClientDisconnect, Request

from penstock.documents import cloudevents
from penstock.documents.decoding import decoded
from penstock.documents.events import DraftDocument, PlainDraft
from penstock.errors import ConfigError
from penstock.events import Draft
from penstock.protocol.operation import JSON, LINES, PAGE_EVENTS
from penstock.protocol.topics import APPEND_EVENTS
from penstock.server.limits import MOST_EVENTS
from penstock.server.problems import Refused
from penstock.units import parse_moment

if TYPE_CHECKING:
    from penstock.server.service import Service


# ── query parameters ─────────────────────────────────────────────────────────────────────────────────────────────────
def moment(text: str | None) -> datetime | None:
    """A time: ISO, or how long ago."""
    return None if not text else parse_moment(text, datetime.now(UTC))


def page_size(limit: int | None) -> int:
    """How many events a page may have."""
    if limit is None:
        return PAGE_EVENTS
    if limit > MOST_EVENTS:
        raise ConfigError(f"limit may be {MOST_EVENTS:,} at the most, not {limit:,}: ask again for what follows")
    return limit


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────────────
async def body(request: Request, service: Service) -> bytes:
    """The request's body; Refused when it is too large or too slow. Its bytes count as held until released."""
    limits = service.limits
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:19]) > limits.max_body:
        raise _too_large(limits.max_body)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.max_body:
                    raise _too_large(limits.max_body)
                service.budget.hold(len(chunk))
                request.state.held = size
                chunks.append(chunk)
    except TimeoutError:
        raise Refused(408, "RequestTimeout", f"the body did not arrive within {limits.body_timeout:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "Disconnected", "the body ended early") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def form(request: Request, service: Service) -> bytes:
    """The body of a page's form, which is small and used at once."""
    request.state.held = 0
    try:
        return await body(request, service)
    finally:
        service.budget.release(request.state.held)


def _too_large(most: int) -> Refused:
    return Refused(413, "TooLarge", f"a body may have {most:,} bytes at the most: send several requests")


_decode_plain = msgspec.json.Decoder(list[PlainDraft]).decode
_decode_draft = msgspec.json.Decoder(DraftDocument).decode


def plain_drafts(request: Request, data: bytes) -> list[PlainDraft]:
    """The drafts of a body when they say nothing but a kind, a payload and perhaps a key, as most do; else none."""
    if not data.startswith(b"[") or request.headers.get("content-type") != JSON or "traceparent" in request.headers:
        return []
    try:
        return _decode_plain(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []  # they say more than that, or something is wrong with them, which `drafts` finds out


def drafts(request: Request, data: bytes) -> tuple[list[Draft], bool]:
    """The drafts of a body, and whether it was a single one: an object, an array of them, one a line, CloudEvents."""
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content in (LINES, "application/jsonl", "application/ndjson"):
        found = [(f"line {number}", line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
        return [decoded(line, _decode_draft, DraftDocument, where).draft() for where, line in found], False
    if content in (cloudevents.STRUCTURED, cloudevents.BATCH):
        batch = content == cloudevents.BATCH
        return cloudevents.from_json(data, batch=batch), not batch
    if "ce-specversion" in request.headers:
        given = request.headers.get("content-type", "")
        return [cloudevents.from_http(request.headers.items(), given, data)], True
    if content not in (JSON, ""):
        known = ", ".join((JSON, LINES, cloudevents.STRUCTURED))
        raise Refused(415, "UnsupportedMediaType", f"send one of {known}, not {content[:60]!r}")
    given = decoded(data, APPEND_EVENTS.body_decoder.decode, APPEND_EVENTS.body)
    if isinstance(given, list):
        return [document.draft() for document in given], False
    return [given.draft()], True
