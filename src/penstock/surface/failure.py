"""A failed attempt in words: the error's type and message, and its traceback, as dead letters and logs keep them."""

from __future__ import annotations

import msgspec

from penstock.errors import ConfigError
from penstock.limits import MAX_ERROR_BYTES, MAX_TRACEBACK_BYTES


class FailureText(msgspec.Struct, frozen=True):
    """What is kept of a failed attempt."""

    error: str | None = None
    """The exception's type and message, or the text that `nack` was given."""
    traceback: str | None = None
    """The exception's traceback, with its causes."""


def failure_text(error: str | BaseException | None, traceback: str | None = None) -> FailureText:
    """An exception, or an error's text, as it is kept: bounded, and text that every encoder takes."""
    if isinstance(error, BaseException):
        import traceback as formatting

        traceback = "".join(formatting.format_exception(error))
        error = describe(error)
    for name, value in (("error", error), ("traceback", traceback)):
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name} must be text{' or an exception' if name == 'error' else ''}, not {value!r:.80}")
    return FailureText(
        None if error is None else cut_middle(error, MAX_ERROR_BYTES),
        None if traceback is None else cut_middle(traceback, MAX_TRACEBACK_BYTES),
    )


def describe(error: BaseException) -> str:
    """An exception's type and message in one line of text."""
    try:
        text = str(error)
    except Exception:  # an exception's own __str__ may fail, which must not hide it
        text = "its message cannot be shown"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def cut_middle(text: str, limit: int) -> str:
    """Text of at most `limit` bytes in UTF-8: its beginning and its end, and between them how much was cut."""
    stored = text.encode("utf-8", "backslashreplace")
    if len(stored) <= limit:
        return stored.decode()
    mark = f"\n… {len(stored) - limit:,} bytes cut …\n".encode()
    # The end of a traceback says what happened, its beginning only where it began.
    head = (limit - len(mark)) // 3
    tail = limit - len(mark) - head
    return b"".join((_whole(stored[:head]), mark, _whole(stored[-tail:]))).decode()


def _whole(part: bytes) -> bytes:
    """Bytes without the characters that a cut went through."""
    return part.decode("utf-8", "ignore").encode()
