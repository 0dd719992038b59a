"""Who did what from the console: one event for each act in the topic `penstock.audit`.

kind `console.<act>`, key the topic or queue it was about, payload an `AuditRecord`. Who the operator is, a token says:
the record has its role and the first characters of its hash, never the token.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.local.journal import LocalJournal
from penstock.server.acts.act import Act, Value

TOPIC: Final = "penstock.audit"
LONGEST: Final = 500
"""Characters of a field that are written down."""


class AuditRecord(msgspec.Struct):
    """An act that was done."""

    act: str
    subject: str
    role: str
    who: str
    """`local` where no token is asked for, else the beginning of the token's hash."""
    address: str
    """Where the request came from."""
    fields: dict[str, Value]
    says: str
    """What was done, in words."""


def write_down(
    journal: LocalJournal, act: Act, fields: dict[str, Value], says: str, *, role: str, who: str, address: str
) -> None:
    """Appends what was done to the audit topic."""
    subject = str(fields.get(act.subject, ""))[:200]
    kept = {name: _short(value) for name, value in fields.items() if value}
    record = AuditRecord(act.name, subject, role, who, address, kept, says)
    body: dict[str, object] = msgspec.to_builtins(record)
    journal.topic(TOPIC).append(f"console.{act.name}", body, key=subject or None)


def _short(value: Value) -> Value:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else value[:LONGEST] + "…"
    return [one[:80] for one in value[:50]]
