"""Structs made from structs, for changes to stored values: every field may be left out, and no field be misspelt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.documents.events import base64_json, decode_binary
from penstock.core.journal.catalog import Settings
from penstock.core.journal.prepare import encode_payload, is_binary
from penstock.core.model.durations import Seconds
from penstock.core.queue.policy import QueuePolicy, Retry


def fields_of(kind: type[msgspec.Struct], name: str, **other: object) -> type[msgspec.Struct]:
    """Returns a struct with the fields of another struct, all optional; `other` has different types for some fields."""
    return msgspec.defstruct(
        name,
        [
            (field.name, other.get(field.name, field.type) | msgspec.UnsetType, msgspec.UNSET)
            for field in msgspec.structs.fields(kind)
        ],
        forbid_unknown_fields=True,
        kw_only=True,
        module=__name__,
    )


if TYPE_CHECKING:

    class _Fields(msgspec.Struct):
        def __init__(self, **fields: object) -> None: ...

    class RetryFields(_Fields): ...

    class PolicyFields(_Fields): ...

    class SettingsFields(_Fields): ...

else:
    RetryFields = fields_of(Retry, "RetryFields")
    PolicyFields = fields_of(QueuePolicy, "PolicyFields", retry=RetryFields | Seconds | None)
    SettingsFields = fields_of(Settings, "SettingsFields")


def given_fields(fields: msgspec.Struct) -> dict[str, Any]:
    """Returns the fields that were given, by name."""
    return {name: value for name, value in msgspec.structs.asdict(fields).items() if value is not msgspec.UNSET}


def policy_document(policy: QueuePolicy) -> PolicyFields:
    """Returns a policy with every field, its retry as an object."""
    values = msgspec.structs.asdict(policy)
    retry = None if policy.retry is None else RetryFields(**msgspec.structs.asdict(policy.retry))
    return PolicyFields(**{**values, "retry": retry})


def policy_changes(fields: PolicyFields) -> dict[str, Any]:
    """Returns the fields of a policy as the arguments of `journal.queue` and `queue.configure`."""
    changes = given_fields(fields)
    if isinstance(changes.get("retry"), msgspec.Struct):
        changes["retry"] = Retry(**given_fields(changes["retry"]))
    return changes


def policy_of(fields: PolicyFields) -> QueuePolicy:
    """Returns the policy in a document."""
    return QueuePolicy(**policy_changes(fields))


def policy_fields(changes: dict[str, Any]) -> PolicyFields:
    """Returns checked arguments of `journal.queue` as fields to send."""
    if isinstance(changes.get("retry"), Retry):
        changes = {**changes, "retry": RetryFields(**msgspec.structs.asdict(changes["retry"]))}
    return PolicyFields(**changes)


def payload_fields(payload: object) -> dict[str, Any]:
    """Returns the fields of a payload in a request."""
    encoded = encode_payload(payload)  # a payload without a JSON form is refused here, as in an append
    if is_binary(payload):
        return {"payload": base64_json(encoded), "binary": True}
    return {"payload": msgspec.Raw(encoded)}


def payload_of(payload: object, binary: bool) -> object:
    """Returns the payload in a request."""
    if isinstance(payload, msgspec.Raw):
        payload = msgspec.json.decode(payload)
    return decode_binary(payload) if binary else payload
