"""Errors as problem+json (RFC 9457): the error tree's names, what a program needs, and the sentence for a person."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from penstock import errors
from penstock.document import PROBLEM_ATTRIBUTES

STATUS: dict[type[Exception], int] = {
    errors.PolicyMismatch: 409,
    errors.ConfigError: 400,
    errors.ReadOnly: 403,
    errors.Denied: 403,
    errors.Closed: 503,
    errors.Locked: 503,
    errors.Conflict: 409,
    errors.PositionTrimmed: 410,
    errors.Backpressure: 503,
    errors.Lagged: 409,
    errors.FenceActive: 409,
    errors.FenceCancelled: 409,
    errors.UnknownQueue: 404,
    errors.QueueFull: 429,
    errors.StaleDelivery: 409,
    errors.Fenced: 409,
    errors.OutOfOrder: 409,
    errors.StorageError: 503,
    errors.PoisonMessage: 500,
    errors.Corrupt: 500,
    errors.PenstockError: 500,
}
"""What HTTP calls each error; the nearest class in the tree decides."""


class Refused(Exception):
    """A request the server itself refuses: too large, not allowed, not there."""

    def __init__(self, status: int, name: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.name = name
        self.headers = headers


def problem(status: int, name: str, message: str, headers: dict[str, str] | None = None, **more: Any) -> Response:
    """A problem+json answer."""
    document = {"type": f"urn:penstock:error:{name}", "title": name, "status": status, "detail": message, "error": name}
    return Response(
        msgspec.json.encode({**document, **more}), status, headers=headers, media_type="application/problem+json"
    )


def status_of(kind: type[errors.PenstockError]) -> int:
    """The HTTP status an error becomes; the nearest class in the tree decides."""
    return next(STATUS[found] for found in kind.__mro__ if found in STATUS)


def of_error(error: errors.PenstockError) -> Response:
    """The problem an error of the journal is."""
    status = status_of(type(error))
    more = {name: getattr(error, name) for name in PROBLEM_ATTRIBUTES if getattr(error, name, None) is not None}
    headers = {}
    if isinstance(error, errors.Backpressure):
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    if isinstance(error, errors.StorageError) and not error.retryable:
        status = 500
    return problem(status, type(error).__name__, str(error), headers, **more)
