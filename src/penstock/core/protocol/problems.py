"""Errors as problem+json (RFC 9457): the names of the error tree, the details for programs, and the sentence for
people.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock import errors
from penstock.errors import PenstockError

_BY_STATUS: dict[int, tuple[type[PenstockError], ...]] = {
    400: (errors.ConfigError,),
    403: (errors.ReadOnly, errors.Denied),
    404: (errors.UnknownQueue, errors.UnknownTopic),
    409: (
        *(errors.PolicyMismatch, errors.Conflict, errors.Lagged, errors.FenceActive, errors.FenceCancelled),
        *(errors.TopicInUse, errors.StaleDelivery, errors.Fenced, errors.OutOfOrder),
    ),
    410: (errors.PositionTrimmed,),
    429: (errors.QueueFull,),
    500: (errors.PoisonMessage, errors.Corrupt, errors.OutcomeUnknown, errors.PenstockError),
    503: (errors.Closed, errors.Locked, errors.Backpressure, errors.StorageError),
}
STATUS = {kind: status for status, kinds in _BY_STATUS.items() for kind in kinds}
"""The HTTP status of each error; the nearest class in the tree decides."""


class Problem(msgspec.Struct, omit_defaults=True):
    """The problem of a request: `error` is the name in penstock.errors, or a name of the server; the other fields
    are for programs.
    """

    type: str = ""
    title: str = ""
    status: int = 0
    detail: str = ""
    error: str = ""
    expected: int | None = None
    actual: int | None = None
    oldest: int | None = None
    retry_after: float | None = None
    last_seq: int | None = None
    token: str | None = None
    epoch: int | None = None
    retryable: bool | None = None
    topic: str | None = None
    queue: str | None = None
    seq: int | None = None
    reason: str | None = None


ALWAYS = ("type", "title", "status", "detail", "error")
ATTRIBUTES = tuple(name for name in Problem.__struct_fields__ if name not in ALWAYS)
"""The attributes that errors carry for programs, and that problems pass on."""

UNEXPECTED = "InternalError"
"""The name of an unexpected failure of the server, which may have happened after a change."""

PROBLEM_EVENT = b"event: problem"

decode_problem = msgspec.json.Decoder(Problem).decode


def status_of(kind: type[PenstockError]) -> int:
    """Returns the HTTP status of an error; the nearest class in the tree decides."""
    return next(status for found in kind.__mro__ if (status := STATUS.get(found)) is not None)


def problem(status: int, name: str, message: str) -> Problem:
    """Returns a problem of the server itself."""
    return Problem(f"urn:penstock:error:{name}", name, status, message, name)


def problem_of(error: PenstockError) -> Problem:
    """Returns the problem an error is."""
    status = status_of(type(error))
    if isinstance(error, errors.StorageError) and not error.retryable:
        status = 500
    made = problem(status, type(error).__name__, str(error))
    details = vars(error)
    for name in ATTRIBUTES:
        if details.get(name) is not None:
            setattr(made, name, details[name])
    return made


def problem_frame(error: PenstockError) -> bytes:
    """Returns the last server-sent event of a stream that cannot continue."""
    return b"%b\ndata: %b\n\n" % (PROBLEM_EVENT, msgspec.json.encode(problem_of(error)))


def read_problem(status: int, data: bytes) -> Problem | None:
    """Returns the problem in an answer; None for an answer without a problem (from a proxy in between)."""
    try:
        return decode_problem(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def error_of_problem(status: int, found: Problem) -> PenstockError:
    """Returns the error that a problem stands for."""
    known = _TREE.get(found.error)
    if known is not None:
        details: dict[str, Any] = {
            name: value
            for name, value in msgspec.structs.asdict(found).items()
            if name in ATTRIBUTES and value is not None
        }
        if issubclass(known, errors.StorageError):
            details.setdefault("retryable", False)
        return errors.restored(known, (found.detail,), details)
    if status == 403:
        return errors.Denied(found.detail)
    if status in (429, 503):
        return errors.Backpressure(found.detail, retry_after=found.retry_after or 1.0)
    if status >= 500:
        return errors.StorageError(f"{found.error}: {found.detail}", retryable=False)
    return errors.ConfigError(f"{found.error}: {found.detail}")


_TREE = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PenstockError)
}
