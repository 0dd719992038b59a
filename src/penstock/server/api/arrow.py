"""The pieces of an Arrow IPC stream, so that it can be sent as it is read."""

from __future__ import annotations

from functools import cache

from penstock.errors import ConfigError

try:
    import pyarrow as pa
except ImportError as error:  # pragma: no cover - the extra is there in development
    raise ConfigError('Arrow streams need the extra: pip install "penstock[arrow]"') from error


@cache
def schema_bytes(payload: object = "string") -> bytes:
    """The beginning of a stream."""
    from penstock.journal.to_arrow import arrow_schema

    return bytes(arrow_schema(payload).serialize())


def batch_bytes(batch: pa.RecordBatch) -> bytes:
    """One record batch as a message of the stream."""
    return bytes(batch.serialize())


def end_bytes() -> bytes:
    """The end of a stream."""
    return b"\xff\xff\xff\xff\x00\x00\x00\x00"
