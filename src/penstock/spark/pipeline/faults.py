"""Why a flow failed: in a word for people, and whether starting it again may help.

A failure of Python code that tasks run arrives as text: Spark's exception with a Python traceback in it. What raised
it decides. A busy store, a full queue, a lost connection, a killed worker pass. A mistake in the flow, rows that do not
fit, or rows that crash a worker do not: the same rows would fail again.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.errors import PenstockError, StorageError
from penstock.spark.payload.crashes import crash_of

_PASSING = frozenset(
    {
        "Backpressure",
        "Locked",
        "QueueFull",
        "FenceActive",
        "ConnectionError",
        "ConnectionResetError",
        "ConnectionAbortedError",
        "ConnectionRefusedError",
        "BrokenPipeError",
        "TimeoutError",
        "EOFError",
        "OSError",
        "MemoryError",
    }
)
"""Errors of Python code after which the same work may succeed. StorageError says itself; see `_passes`."""

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t]+.*\n)+)([\w.]+(?:: .*)?)")
_FRAME = re.compile(r'^[ \t]+File "([^"]+)", line (\d+)', re.MULTILINE)
_LASTING = frozenset(
    {
        "AnalysisException",
        "ArithmeticException",
        "ArrayIndexOutOfBoundsException",
        "DateTimeException",
        "IllegalArgumentException",
        "NumberFormatException",
        "ParseException",
        "UnsupportedOperationException",
    }
)
"""Exceptions of the JVM (as pyspark names them) that the query or its rows are to blame for."""
_STATE = re.compile(r"SQLSTATE: ([0-9A-Z]{2})[0-9A-Z]{3}")
_LASTING_STATES = frozenset({"0A", "21", "22", "23", "42"})
"""Classes of SQL states that the query or its rows are to blame for: unsupported, bad data, bad names."""


class Fault(NamedTuple):
    """A failure, explained."""

    message: str
    passing: bool


def fault_of(error: BaseException, file: str | None = None) -> Fault:
    """What a failed query, or a query that could not be started, means."""
    if isinstance(error, PenstockError):
        return Fault(str(error), _passes(type(error).__name__, str(error), error))
    chain = _chain(error)
    raised = [match for one in chain for match in _TRACEBACK.finditer(_text(one))]
    if raised:
        return _python_fault(raised[-1], file)
    crash = next((said for one in chain if (said := crash_of(_text(one))) is not None), None)
    if crash is not None:
        return Fault(crash, False)
    lasting = any(type(one).__name__ in _LASTING for one in chain)
    lasting = lasting or any(state in _LASTING_STATES for one in chain for state in _STATE.findall(_text(one)))
    return Fault(_in_short(_text(error)) or type(error).__name__, not lasting)


def _chain(error: BaseException) -> list[BaseException]:
    """An exception of Spark's and what caused it, as far as Spark knows."""
    chain: list[BaseException] = []
    following: object = error
    while isinstance(following, BaseException) and following not in chain:
        chain.append(following)
        following = getattr(following, "_cause", None)
    return chain


def _text(error: BaseException) -> str:
    """What an exception says; of one that comes from the JVM, without asking the JVM, which may be gone."""
    found = getattr(error, "_desc", None)
    return found if isinstance(found, str) else str(error)


def _python_fault(raised: re.Match[str], file: str | None) -> Fault:
    frames, last = raised.groups()
    name, _, message = last.partition(": ")
    name = name.rpartition(".")[2]
    own = getattr(__import__("penstock.errors", fromlist=[name]), name, None)
    text = message.strip() if own is not None and message else f"{name}: {message}".rstrip(": ")
    lines = [line for where, line in _FRAME.findall(frames) if where == file]
    place = f" ({file}, line {lines[-1]})" if lines else ""
    return Fault(text + place, _passes(name, message, None))


def _passes(name: str, message: str, error: PenstockError | None) -> bool:
    if isinstance(error, StorageError):
        return error.retryable
    if name in ("StorageError", "Unflushed"):
        return True
    return name in _PASSING


def _in_short(text: str) -> str:
    """The sentence in a Java exception's text: without its stack, its SQL state, and the query's ids."""
    text = re.split(r"\n\s*(?:at |=== Streaming Query ===|JVM stacktrace|Driver stacktrace)", text, maxsplit=1)[0]
    text = re.sub(r"\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ", "", text)
    text = re.sub(r"\s*SQLSTATE: \w+", "", text).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:600]
