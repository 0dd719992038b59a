"""What SlateDB's errors mean for a journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import slatedb.uniffi as sl

from penstock.engine.base import transaction_is_over
from penstock.engine.slatedb.bridge import TimedOut
from penstock.errors import Corrupt, Fenced, PenstockError, StorageError

_GONE = ("not found", "notfound", "no such file", "nosuchkey")


def explain(error: sl.Error, name: str) -> PenstockError:
    """The penstock error for an exception of SlateDB's."""
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
    """Whether objects of the log were gone: another writer has made a table of them, or they are lost."""
    return isinstance(error, sl.Error.Data) and "truncated" in str(error).lower()


def fenced(name: str, by: str, epoch: int = 0) -> Fenced:
    """The error of a writer whose journal another one has opened."""
    return Fenced(
        f"{name} was opened for writing elsewhere, which ended this writer ({by}): nothing more is acknowledged here. "
        "Close this journal; open it again with standby=True to wait for its turn",
        epoch=epoch,
    )


@contextmanager
def explained(name: str, done: str) -> Iterator[None]:
    """What SlateDB raises as an error of ours; `done` says what could not be done in time."""
    try:
        yield
    except sl.Error as error:
        raise explain(error, name) from error
    except TimedOut as error:
        raise StorageError(f"{name} could not be {done} now: {error}", retryable=True) from error
