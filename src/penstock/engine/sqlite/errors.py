"""What SQLite's errors mean in penstock's words."""

from __future__ import annotations

import apsw

from penstock.errors import ConfigError, Corrupt, PenstockError, StorageError


def damaged_row(key: object) -> Corrupt:
    """A row that holds a number, a text or nothing where bytes were stored: SQLite types values, not columns."""
    return Corrupt(f"a row of the database holds no bytes (key {key!r}): the file is damaged")


def write_failed(error: apsw.IOError) -> bool:
    """Whether a commit failed while its pages were written: then its last one, without which none counts, was not."""
    # Errors that Python code raises inside SQLite do not have it.
    return getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_WRITE


def explain(error: apsw.Error, file: str) -> PenstockError:
    """The penstock error that says what an apsw error means for the store in `file`."""
    match error:
        case apsw.CorruptError() | apsw.NotADBError():
            return Corrupt(f"SQLite found the database damaged: {error}; restore a backup", file=file)
        case apsw.FullError():
            return StorageError(f"the disk of {file} is full; nothing of this transaction was kept", retryable=True)
        case apsw.BusyError() | apsw.LockedError():
            return StorageError(f"another process kept {file} locked for too long: {error}", retryable=True)
        case apsw.TooBigError():
            return ConfigError(f"a value is larger than SQLite stores in one (1,000,000,000 bytes): {error}")
        case apsw.ConstraintError():
            return ConfigError(f"keys and values are bytes, nothing else: {error}")
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            return StorageError(f"{file} cannot be opened or written: {error}; look at its folder's permissions")
        case apsw.IOError():
            return StorageError(f"reading or writing {file} failed: {error}; nothing of this transaction was kept")
    return StorageError(f"SQLite refused on {file}: {type(error).__name__}: {error}")
