"""A failed attempt as text: the error's type and message, and its traceback, for dead letters and logs."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from penstock.core.clock import Duration, seconds
from penstock.core.model.durations import Seconds
from penstock.errors import ConfigError, GiveUp, PenstockError, TryAgain
from penstock.limits import MAX_ERROR_BYTES, MAX_TRACEBACK_BYTES

DEAD_QUEUE: Final = "dead-queue"
"""The header of a dead letter that names the queue it comes from."""


class FailureText(msgspec.Struct, frozen=True):
    """The record of a failed attempt."""

    error: str | None = None
    """The exception's type and message, or the text of `nack`."""
    traceback: str | None = None
    """The exception's traceback, with its causes."""


class NackRequest(FailureText, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The time at which the message is offered again, and the reason for giving it back; `dead` gives it up."""

    delay: Seconds | None = None
    """The time to wait, which overrides the policy."""
    default_delay: Seconds = 0.0
    """The time to wait without a `delay` when the queue's policy has no `retry`: the wait of a worker's failures."""
    dead: bool = False


AttemptEnd = Literal["failed", "rejected", "lapsed", "claimed"]
"""The end of an attempt that did not succeed: given back, given up, its lease ended, or another consumer claimed it."""


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt at a message that did not succeed."""

    number: int
    """The number of the message's delivery, from 1."""
    delivered_at: datetime
    ended_at: datetime
    ended: AttemptEnd
    consumer: str | None = None
    """The consumer of the attempt, if it gave its name; workers do."""
    host: str | None = None
    """The consumer's machine."""
    error: str | None = None
    """The exception's type and message, or the text of `nack`; a long text loses its middle."""


def check_nack(
    error: str | BaseException | None,
    traceback: str | None = None,
    delay: Duration | None = None,
    default_delay: float = 0.0,
    dead: bool = False,
) -> NackRequest:
    """Returns the checked arguments of a nack. `GiveUp` and `TryAgain` decide on the message by themselves."""
    if isinstance(error, GiveUp):
        dead = True
    elif isinstance(error, TryAgain) and error.after is not None:
        delay = error.after
    failure, wait = failure_text(error, traceback), None if delay is None else seconds(delay, "delay")
    return NackRequest(failure.error, failure.traceback, wait, seconds(default_delay, "default_delay"), dead)


def failure_text(error: str | BaseException | None, traceback: str | None = None) -> FailureText:
    """Returns an exception, or an error's text, in its stored form: bounded text that every encoder accepts."""
    if isinstance(error, BaseException):
        import traceback as formatting

        trim_traceback(error)
        traceback = "".join(formatting.format_exception(error))
        error = describe(error)
    for name, value in (("error", error), ("traceback", traceback)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name} must be text{' or an exception' if name == 'error' else ''}, not {value!r:.80}")
    return FailureText(
        None if error is None else cut_middle(error, MAX_ERROR_BYTES),
        None if traceback is None else cut_middle(traceback, MAX_TRACEBACK_BYTES),
    )


_PENSTOCK: Final = __file__.rpartition("core")[0]
"""The package's folder."""


def trim_traceback(error: BaseException) -> None:
    """Leaves the frames that led to a handler out of an error's traceback: what failed lies below them. An error of
    penstock's that no handler raised says all in its text."""
    trace = error.__traceback__
    while trace is not None and is_between(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    if trace is not None or isinstance(error, PenstockError):
        error.__traceback__ = trace


def is_between(file: str) -> bool:
    """Returns True if a file belongs to penstock, or to the code that runs threads and coroutines."""
    *_, folder, name = ["", *file.replace("\\", "/").split("/")]
    return file.startswith(_PENSTOCK) or folder in ("asyncio", "concurrent", "futures") or name == "threading.py"


def describe(error: BaseException) -> str:
    """Returns an exception's type and message in one line of text."""
    try:
        text = str(error)
    except Exception:  # an exception's own __str__ may fail, which must not hide the exception
        text = "its message cannot be shown"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def cut_middle(text: str, limit: int) -> str:
    """Returns a text of at most `limit` bytes in UTF-8: its beginning and its end, and between them the number of
    cut bytes.
    """
    stored = text.encode("utf-8", "backslashreplace")
    if len(stored) <= limit:
        return stored.decode()
    mark = f"\n… {len(stored) - limit:,} bytes cut …\n".encode()
    # The end of a traceback shows the failure; its beginning shows only where the call began.
    head = (limit - len(mark)) // 3
    tail = limit - len(mark) - head
    return b"".join((_whole(stored[:head]), mark, _whole(stored[-tail:]))).decode()


def _whole(part: bytes) -> bytes:
    """Returns bytes without characters that were cut."""
    return part.decode("utf-8", "ignore").encode()
