"""Delivery tokens: 24 characters that name one delivery, show no structure and cannot be guessed.

Fifteen bytes in base 32: nine that say which message of which lease, hidden under a keystream, and a tag of six that
only the lease's stored secret can make. A new delivery is a new lease with a new secret: a token dies with its lease.
"""

from __future__ import annotations

import os
from base64 import b32decode, b32encode

try:
    from _blake2 import blake2b as blake2b  # what hashlib gives, without OpenSSL, which every start would wait for
except ImportError:
    from hashlib import blake2b as blake2b

_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz234567")
_BODY = 9
_TAG = 6
_SECRET = 8
_POOL = 512 * _SECRET

MAX_GROUP = (1 << 16) - 1
NUMBER_BITS, INDEX_BITS = 46, 10
"""Of a lease's number, and of a message's index in it."""


class Address:
    """Where a token leads: a message of a lease of a group."""

    __slots__ = ("group", "index", "lease_id", "tag")

    def __init__(self, group: int, lease_id: int, index: int, tag: bytes) -> None:
        self.group = group
        self.lease_id = lease_id
        self.index = index
        self.tag = tag


_pool: list[bytes] = []


def new_secret() -> bytes:
    """Eight random bytes for a new lease; asked of the system a few hundred at a time."""
    try:
        return _pool.pop()
    except IndexError:
        fresh = os.urandom(_POOL)
        _pool.extend([fresh[at : at + _SECRET] for at in range(0, _POOL, _SECRET)])
        return os.urandom(_SECRET)


os.register_at_fork(after_in_child=_pool.clear)  # a child must not hand out its parent's secrets


def make_token(topic: int, group: int, lease_id: int, index: int, secret: bytes) -> str:
    """The token of a message of a lease."""
    body = _body(group, lease_id, index)
    tag = _tag(topic, body, secret)
    hidden = int.from_bytes(body) ^ _stream(tag)
    return b32encode(hidden.to_bytes(_BODY) + tag).decode().lower()


def read_token(token: str) -> Address | None:
    """Where a token leads, if it is one; whether it still holds, `fits` says."""
    if len(token) != 24 or not _ALPHABET.issuperset(token):
        return None
    raw = b32decode(token.upper())
    tag = raw[_BODY:]
    body = int.from_bytes(raw[:_BODY]) ^ _stream(tag)
    lease_id = body >> INDEX_BITS & ((1 << NUMBER_BITS) - 1)
    return Address(body >> NUMBER_BITS + INDEX_BITS, lease_id, body & ((1 << INDEX_BITS) - 1), tag)


def fits(topic: int, address: Address, secret: bytes) -> bool:
    """Whether a token was made for the lease that has this secret."""
    return _tag(topic, _body(address.group, address.lease_id, address.index), secret) == address.tag


def _body(group: int, lease_id: int, index: int) -> bytes:
    return ((group << NUMBER_BITS | lease_id) << INDEX_BITS | index).to_bytes(_BODY)


def _tag(topic: int, body: bytes, secret: bytes) -> bytes:
    return blake2b(body + topic.to_bytes(4), digest_size=_TAG, key=secret).digest()


def _stream(tag: bytes) -> int:
    return int.from_bytes(blake2b(tag, digest_size=_BODY, person=b"penstock").digest())
