"""Writes docs/api.md: every public name of penstock, by what it is for.

    python scripts/api_page.py

A name that `penstock.__all__` has and no section below has ends it, and with it the test that compares the page.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
sys.path.insert(0, str(ROOT / "src"))

INTRODUCTION = """\
# Python

Every public name, with its own docstring. Everything else may change without notice. [Errors](errors.md) have a page of
their own.

Made by `python scripts/api_page.py`.
"""

SECTIONS = {
    "Opening": "open use current describe copy Description Pressure CopyReport",
    "Journals and topics": "Journal Topic Transaction Settings TopicConsumer CompactReport DropReport",
    "Events": "Event Draft EventQuery Receipt Ticket event upcast",
    "Following": "Subscription JournalSubscription Worker",
    "Queues": "Queue Delivery QueuePolicy Retry Middleware Schedule Pause",
    "Looking into queues": "QueueStats QueueMessage PendingDelivery QueueConsumer",
    "Tasks and replies": "Tasks Task RunningTask current_task step progress TaskState TaskProgress TaskTimes "
    "ResultTicket",
    "Entities": "Projection on Watch Outbox Fence gate RebuildReport",
    "Receipts": "TreeRoot InclusionProof VerifyReport CheckReport sign_root check_root check_proof",
    "Export and import": "ExportReport ImportReport",
    "Time": "Clock ManualClock",
}
BESIDE = {
    "The buffer": ["penstock.buffer.Producer", "penstock.buffer.Consumer", "penstock.buffer.drain"],
    "Together with your database": [
        *(f"penstock.integrations.outbox.rows.{name}" for name in ("push", "append", "lag", "OutboxLag")),
        "penstock.integrations.outbox.relay.Relay",
        *(f"penstock.integrations.outbox.schema.{name}" for name in ("create", "ddl", "table")),
    ],
    "Metrics and traces": [
        "penstock.core.observe.metrics.Registry",
        "penstock.core.observe.metrics.watch",
        "penstock.core.observe.tracing.context_of",
    ],
}
"""Names of modules that are imported by themselves."""
INHERITED = ("Journal", "Topic", "Transaction", "Queue")


def page() -> str:
    """The page as it should be."""
    import penstock

    lines = [INTRODUCTION]
    listed: list[str] = []
    for title, names in SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names.split():
            listed.append(name)
            lines += [f"::: {penstock._NAMES[name]}.{name}"]
            lines += ["    options: { inherited_members: true }"] if name in INHERITED else []
            lines += [""]
    for title, places in BESIDE.items():
        lines += [f"## {title}", "", *(line for place in places for line in (f"::: {place}", ""))]
    missing = sorted(set(penstock.__all__) - {"errors"} - set(listed))
    if missing or len(set(listed)) != len(listed):
        raise SystemExit(f"say in scripts/api_page.py where these belong: {', '.join(missing)}")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
