"""Roots and proofs as values, which a third party checks without the journal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from penstock.core.events import (
    ERASED_AT,
    ERASED_BY,
    MARKS,
    MASKED_AT,
    MASKED_BY,
    MASKED_FIELDS,
    Event,
    format_id,
)
from penstock.core.journal.summaries import leaf_hash
from penstock.core.names import check_path
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    PrivateKey = Ed25519PrivateKey | bytes | str | os.PathLike[str]
    PublicKey = Ed25519PublicKey | bytes | str | os.PathLike[str]


class CheckReport(msgspec.Struct, frozen=True):
    """The result of `Topic.check` or `check_proof`. It is true when the event is the promised event."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok


class _JsonLine(msgspec.Struct, frozen=True):
    """A value that third parties get as one line of JSON."""

    def to_json(self) -> str:
        """Returns the value as one line of JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Reads the text of `to_json`; raises ConfigError for any other text."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"that is no {cls.__name__} in JSON: {error}") from error


class TreeRoot(_JsonLine, frozen=True):
    """A hash of a topic's history: publish it or sign it, and check proofs against it."""

    journal: str
    """The id of the store."""
    topic: str
    through: int
    """The position of the last event under the root."""
    hash: str
    """The root of the Merkle tree, in hexadecimal."""
    published_ms: int
    signature: str | None = None
    """The Ed25519 signature of `statement()`, in hexadecimal."""

    def statement(self) -> bytes:
        """Returns the signed bytes."""
        lines = ("penstock root v1", self.journal, self.topic, self.through, self.hash, self.published_ms)
        return "".join(f"{line}\n" for line in lines).encode()


def told_erased(headers: Mapping[str, str]) -> str:
    """Returns when and by whom an event was erased or masked."""
    if ERASED_AT in headers:
        return f"its contents were erased at {headers[ERASED_AT]} by {headers.get(ERASED_BY, 'an unnamed caller')}"
    fields, by = headers.get(MASKED_FIELDS, ""), headers.get(MASKED_BY, "an unnamed caller")
    return f"fields of it ({fields}) were blanked at {headers.get(MASKED_AT)} by {by}"


class ErasedLeaf(msgspec.Struct, frozen=True):
    """The replacement of an event's contents in a proof, when the event was erased or masked."""

    hash: str
    """The hash of the event's original contents, in hexadecimal."""
    id: str
    """The event's id."""
    headers: dict[str, str]
    """The time and the caller: `erased-at`, `erased-by`, or `masked-at`, `masked-by` and `masked-fields`."""

    @classmethod
    def of(cls, event: Event, hash: bytes) -> ErasedLeaf:
        """Returns the leaf of an erased event, whose hash is left."""
        return cls(hash.hex(), event.id, {name: text for name, text in event.headers.items() if name in MARKS})


class InclusionProof(_JsonLine, frozen=True, omit_defaults=True):
    """A proof that an event is in a topic's history under a root; `penstock.check_proof` checks it."""

    root: TreeRoot
    seq: int
    """The event's position."""
    leaf: bytes
    """The hashed fields of the event: see `event`."""
    path: list[str]
    """The hashes from the leaf to the root, in hexadecimal, the nearest first."""
    erased: ErasedLeaf | None = None
    """When and by whom the event was erased; the leaf is then empty, and its hash is here."""

    @property
    def event(self) -> dict[str, Any]:
        """The proven event; for an erased event, its remaining fields."""
        if self.erased is not None:
            return {"seq": self.seq, "id": self.erased.id, "headers": self.erased.headers}
        try:
            said = msgspec.msgpack.decode(self.leaf, type=list[Any])
            found = dict(zip(LEAF_FIELDS[: max(len(said), _UNTAGGED)], said, strict=True))
            found["id"] = format_id(int.from_bytes(found["id"]))
            found["headers"] = dict(found["headers"] or ())
        except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ConfigError(f"the proof's leaf is no event: {error}") from error
        return found


LEAF_FIELDS = (
    "seq", "id", "recorded_ms", "occurred_ms", "kind", "payload", "binary", "key", "scope", "headers",
    "correlation_id", "causation_id", "tags",
)  # fmt: skip
"""The fields of a leaf, in this order, as a MessagePack array; tags only for an event with tags."""
_UNTAGGED = len(LEAF_FIELDS) - 1


def check_proof(
    proof: InclusionProof, *, root: TreeRoot | None = None, public_key: PublicKey | None = None
) -> CheckReport:
    """Checks a proof: its event is in the history of its root. Needs no journal.

    Trust comes from the root: give the published root (`root`), or the key that signed it (`public_key`). Without
    either, only the proof itself is checked.
    """
    if not isinstance(proof, InclusionProof):
        raise ConfigError(f"check_proof takes an InclusionProof, not {proof!r:.80}: read one with from_json")
    claimed = proof.root
    if root is not None and (root.statement() != claimed.statement()):
        return CheckReport(False, f"it is under another root: {claimed.topic!r} through {claimed.through}")
    if public_key is not None:
        signed = claimed if claimed.signature is not None or root is None else root
        if not check_root(signed, public_key):
            return CheckReport(False, "its root is not signed with this key")
    if not 1 <= proof.seq <= claimed.through:
        return CheckReport(False, f"position {proof.seq} is not under the root, which ends at {claimed.through}")
    try:
        said = proof.event
        path = [bytes.fromhex(step) for step in proof.path]
        leaf = leaf_hash(proof.leaf) if proof.erased is None else bytes.fromhex(proof.erased.hash)
    except (ConfigError, ValueError):
        return CheckReport(False, "it does not decode")
    if said["seq"] != proof.seq:
        return CheckReport(False, f"its event says that it is at position {said['seq']}")
    found = follow(leaf, proof.seq - 1, claimed.through, path)
    if found is None or found.hex() != claimed.hash:
        return CheckReport(False, "its path does not lead to the root")
    if proof.erased is not None:
        told = told_erased(proof.erased.headers)
        return CheckReport(True, f"an event is in the history that the root stands for; {told}")
    return CheckReport(True, "the event is in the history that the root stands for")


# ── signatures ───────────────────────────────────────────────────────────────────────────────────────────────────────
def sign_root(root: TreeRoot, private_key: PrivateKey) -> TreeRoot:
    """Returns the root with a signature.

    The key is an Ed25519 key of `cryptography`, its PEM, or a file with the PEM.
    """
    key = _load(private_key, private=True)
    return msgspec.structs.replace(root, signature=key.sign(root.statement()).hex())


def check_root(root: TreeRoot, public_key: PublicKey) -> bool:
    """Returns True if a root has a signature by the private half of a key."""
    key = _load(public_key, private=False)
    from cryptography.exceptions import InvalidSignature

    if root.signature is None:
        return False
    try:
        key.verify(bytes.fromhex(root.signature), root.statement())
    except (InvalidSignature, ValueError):
        return False
    return True


def _load(key: object, *, private: bool) -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigError('signed roots need the cryptography package: pip install "penstock[signing]"') from error
    wanted = ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey
    if isinstance(key, str | os.PathLike):
        try:
            key = Path(check_path(key, "the key")).read_bytes()
        except OSError as error:
            raise ConfigError(f"the key {os.fspath(key)!r} cannot be read: {error.strerror}") from error
    if isinstance(key, bytes):
        try:
            if private:
                key = serialization.load_pem_private_key(key, None)
            else:
                key = serialization.load_pem_public_key(key)
        except (ValueError, TypeError) as error:
            half = "private" if private else "public"
            raise ConfigError(f"that is no {half} key in PEM without a password: {error}") from error
    if not isinstance(key, wanted):
        raise ConfigError(f"roots are signed with Ed25519 keys, not with {type(key).__name__}")
    return key


# ── The Merkle tree of RFC 6962 with SHA-256: leaves and nodes are hashed apart, so that neither passes for the other
# Leaf `n` is the event at position `n + 1`. A position whose event was removed before its publication is `EMPTY`.
# Leaves are in segments of `SEGMENT` leaves. A whole segment is one node of every later tree, so its hash alone is
# enough to prove events of other segments.


SEGMENT = 4096
"""The positions in a segment; a power of two."""


def node_hash(left: bytes, right: bytes) -> bytes:
    """Returns the hash of two neighbouring subtrees."""
    return sha256(b"\x01" + left + right).digest()


EMPTY = sha256(b"\x02").digest()
"""The hash of a position without an event."""


def root_of(nodes: Sequence[bytes]) -> bytes:
    """Returns the hash of a tree over nodes of one size; the last node may be smaller."""
    if not nodes:
        return sha256(b"").digest()
    level = nodes
    while len(level) > 1:
        level = _parents(level)
    return level[0]


def _parents(level: Sequence[bytes]) -> list[bytes]:
    """Returns the parents of nodes: one for every two nodes; a last node without a neighbour stays."""
    paired = [node_hash(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
    return paired if len(level) % 2 == 0 else [*paired, level[-1]]


def path_to(nodes: Sequence[bytes], index: int) -> list[bytes]:
    """Returns the hashes that lead from a node to the tree's root, the nearest first."""
    path: list[bytes] = []
    level = nodes
    while len(level) > 1:
        beside = index ^ 1
        if beside < len(level):
            path.append(level[beside])
        level, index = _parents(level), index // 2
    return path


def follow(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Returns the root at the end of a leaf's path in a tree of `size` leaves; None when the path has a wrong
    length.
    """
    at, last, found = index, size - 1, leaf
    for beside in path:
        if last == 0:
            return None
        if at % 2 or at == last:
            found = node_hash(beside, found)
            while at % 2 == 0:  # a node without a neighbour is its own parent
                at, last = at // 2, last // 2
        else:
            found = node_hash(found, beside)
        at, last = at // 2, last // 2
    return found if last == 0 else None


EMPTY_SEGMENT = root_of([EMPTY] * SEGMENT)
