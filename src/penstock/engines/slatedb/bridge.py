"""SlateDB's generated Python, made usable from synchronous code: calls without an event loop, and bytes without a loop.

Every method of SlateDB is a coroutine that waits for a Rust future. `call` drives such a coroutine in the calling
thread. It replaces the event loop, of which the generated code uses two methods only, and waits on a lock that Rust's
thread releases. There is no thread hop, an interrupt arrives at once, the lock has the deadline, and a call also works
inside a running event loop.

The generated code copies bytes to Rust one at a time, at 7 MB/s. `_lower` does the same with one memmove. Both
functions use private names of the package, so its minor version is pinned, and `tests/engine/slatedb/test_bridge.py`
checks the names.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import slatedb.uniffi as sl
from slatedb.uniffi._slatedb_uniffi import slatedb as generated

from penstock.core.engine.base import transaction_is_over
from penstock.errors import ConfigError, Corrupt, Fenced, PenstockError, StorageError

T = TypeVar("T")


class TimedOut(Exception):
    """A call did not end before its deadline; its effect may still happen."""


class _Answer:
    """The object that the generated code uses as a future. A Rust thread fills it, and the calling thread waits for
    it."""

    __slots__ = ("_filled", "code")

    def __init__(self) -> None:
        self.code: int | None = None
        self._filled = threading.Lock()
        self._filled.acquire()

    def cancelled(self) -> bool:
        return False

    def set_result(self, code: int) -> None:
        self.code = code
        self._filled.release()

    def wait(self, seconds: float) -> bool:
        return self._filled.acquire(timeout=seconds)

    def __await__(self) -> Generator[_Answer, None, int]:
        if self.code is None:
            yield self
        assert self.code is not None
        return self.code


class _NoLoop:
    """Replaces the running event loop for the generated code."""

    def create_future(self) -> _Answer:
        return _Answer()

    def call_soon_threadsafe(self, callback: Callable[[_Answer, int], object], answer: _Answer, code: int) -> None:
        callback(answer, code)


_NO_LOOP: Any = _NoLoop()
_used_by = 0


def call(coroutine: Coroutine[_Answer, None, T], timeout: float | None = None) -> T:
    """Returns the result of a SlateDB coroutine; raises `TimedOut` without a result within `timeout` seconds."""
    global _used_by
    if _used_by != os.getpid():
        if _used_by:
            coroutine.close()
            raise ConfigError(
                f"process {_used_by} used SlateDB and this one was forked from it: SlateDB's threads do not survive a "
                'fork. Start processes with multiprocessing.get_context("spawn"), or open the journal only in children'
            )
        _used_by = os.getpid()
    deadline = None if timeout is None else time.monotonic() + timeout
    outer = asyncio._get_running_loop()
    try:
        while True:
            asyncio._set_running_loop(_NO_LOOP)
            answer = coroutine.send(None)
            asyncio._set_running_loop(outer)
            # -1 waits forever; an answer that arrived in time is never reported as late.
            if not answer.wait(-1 if deadline is None else max(0.0, deadline - time.monotonic())):
                raise TimedOut(f"no answer within {timeout:g} s")
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    except generated.InternalError as error:  # Rust panicked, for example because it cannot read an object
        raise generated.Error.Internal(str(error)) from error
    finally:
        asyncio._set_running_loop(outer)
        coroutine.close()


# ── bytes across the border ──────────────────────────────────────────────────────────────────────────────────────────
_library, _rust_call = generated._UniffiLib, generated._uniffi_rust_call


def _lower(value: bytes) -> generated._UniffiRustBuffer:
    """Returns a Rust buffer with the length and the bytes, like the generated `lower`."""
    size = len(value)
    buffer = _rust_call(_library.ffi_slatedb_uniffi_rustbuffer_alloc, size + 4)
    ctypes.memmove(buffer.data, size.to_bytes(4, "big") + value, size + 4)
    buffer.len = size + 4
    return buffer


generated._UniffiFfiConverterBytes.lower = staticmethod(_lower)


def _lift_rows(buffer: generated._UniffiRustBuffer) -> list[tuple[bytes, bytes]]:
    """Returns the keys and values of a buffer of KeyValue records; the generated code would make an object of each
    record.
    """
    data = ctypes.string_at(buffer.data, buffer.len)
    buffer.free()
    rows: list[tuple[bytes, bytes]] = []
    at = 4
    for _ in range(int.from_bytes(data[:4], "big")):
        key_end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        value_at = key_end + 4
        value_end = value_at + int.from_bytes(data[key_end:value_at], "big")
        rows.append((data[at + 4 : key_end], data[value_at:value_end]))
        at = value_end + 16  # the row's sequence number and the time it was made
        at += 9 if data[at] else 1  # the row's time of expiry, if it has one
    return rows


def next_rows(iterator: generated.DbIterator, count: int, timeout: float | None) -> list[tuple[bytes, bytes]]:
    """Returns up to `count` further keys and values of a scan; fewer mean the end of the scan."""
    rows: Coroutine[_Answer, None, list[tuple[bytes, bytes]]] = generated._uniffi_rust_call_async(
        _library.uniffi_slatedb_uniffi_fn_method_dbiterator_next_batch(iterator._uniffi_clone_handle(), count),
        _library.ffi_slatedb_uniffi_rust_future_poll_rust_buffer,
        _library.ffi_slatedb_uniffi_rust_future_complete_rust_buffer,
        _library.ffi_slatedb_uniffi_rust_future_free_rust_buffer,
        _lift_rows,
        generated._UniffiFfiConverterTypeError,
    )
    return call(rows, timeout)


# ── What SlateDB's errors mean for a journal ──


_GONE = ("not found", "notfound", "no such file", "nosuchkey")


def explain(error: sl.Error, name: str) -> PenstockError:
    """Returns the penstock error for an exception of SlateDB's."""
    text = str(error)
    if isinstance(error, sl.Error.Closed):
        if error.reason is sl.CloseReason.FENCED:
            return fenced(name, f"SlateDB: {text}")
        if error.reason is sl.CloseReason.CLEAN:
            return transaction_is_over()
        return StorageError(f"SlateDB stopped on {name}: {text}; close the journal and open it again")
    if isinstance(error, sl.Error.Data):
        if any(word in text.lower() for word in _GONE):
            return StorageError(
                f"{name}: an object this snapshot needs was collected ({text}). A snapshot may be read for "
                "15 minutes after compaction has replaced its tables: read again, in shorter pieces",
                retryable=True,
            )
        if log_moved(error):
            return StorageError(
                f"{name}: another process shortened the log while it was read ({text}): try again", retryable=True
            )
        return Corrupt(f"SlateDB found {name} damaged: {text}")
    return StorageError(f"SlateDB refused on {name}: {text}", retryable=isinstance(error, sl.Error.Unavailable))


def log_moved(error: sl.Error) -> bool:
    """Returns True when objects of the log are gone, because another writer moved them into a table or because they are
    lost."""
    return isinstance(error, sl.Error.Data) and "truncated" in str(error).lower()


def fenced(name: str, by: str, epoch: int = 0) -> Fenced:
    """Returns the error of a writer whose journal another writer has opened."""
    return Fenced(
        f"{name} was opened for writing elsewhere, which ended this writer ({by}): nothing more is acknowledged here. "
        "Close this journal; open it again with standby=True to wait for its turn",
        epoch=epoch,
    )


@contextmanager
def explained(name: str, done: str) -> Iterator[None]:
    """Turns errors of SlateDB into penstock errors; `done` names the operation that did not end in time."""
    try:
        yield
    except sl.Error as error:
        raise explain(error, name) from error
    except TimedOut as error:
        raise StorageError(f"{name} could not be {done}: {error}; try again", retryable=True) from error
