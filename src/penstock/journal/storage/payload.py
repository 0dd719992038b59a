"""Payloads to bytes: JSON text for JSON-like values, bytes as they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from sys import modules

import msgspec

from penstock.errors import ConfigError
from penstock.limits import MAX_PAYLOAD_BYTES


def _plain_model(value: object) -> object:
    """What is written for a value that msgspec does not know: the fields of a pydantic model."""
    pydantic = modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


_encode = msgspec.json.Encoder(enc_hook=_plain_model).encode
_BYTES_LIKE = (bytes, bytearray, memoryview)


def encode_payload(payload: object) -> bytes:
    """The stored bytes of a payload; ConfigError when it has no JSON form."""
    if isinstance(payload, _BYTES_LIKE):
        encoded = bytes(payload)
    else:
        try:
            encoded = _encode(payload)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"a payload of type {type(payload).__name__} cannot be written as JSON: {error}; "
                "give JSON-like values (or bytes)"
            ) from error
        # NaN and infinities have no JSON form: the encoder writes null for them, which would lose them silently.
        if b"null" in encoded and _has_non_finite(payload):
            raise ConfigError("a payload holds NaN or an infinity, which JSON cannot say; use None or text instead")
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise ConfigError(
            f"a payload of {len(encoded):,} bytes is too large; at most {MAX_PAYLOAD_BYTES:,} are allowed: "
            "store it elsewhere and append a reference"
        )
    return encoded


def encode_payloads(payloads: Sequence[object]) -> list[bytes]:
    """The stored bytes of many payloads, with less work for each; `encode_payload` finds the words for a bad one."""
    if any(issubclass(one, _BYTES_LIKE) for one in set(map(type, payloads))):
        return list(map(encode_payload, payloads))
    try:
        encoded = list(map(_encode, payloads))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return list(map(encode_payload, payloads))
    for payload, one in zip(payloads, encoded, strict=True):
        if b"null" in one or len(one) > MAX_PAYLOAD_BYTES:
            encode_payload(payload)
    return encoded


def is_binary(payload: object) -> bool:
    """Whether a payload is kept as bytes rather than as JSON."""
    return isinstance(payload, _BYTES_LIKE)


def _has_non_finite(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_non_finite, value))
    if value is None or isinstance(value, str | int | bytes):
        return False
    try:
        plain = msgspec.to_builtins(value, enc_hook=_plain_model)
    except (TypeError, ValueError, OverflowError):
        return False  # it was encoded, so it is something that cannot hold a number
    return isinstance(plain, float | dict | list | tuple | set | frozenset) and _has_non_finite(plain)
