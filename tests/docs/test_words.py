"""The words of other systems lead to pages."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "words.md"
SOUGHT = (
    "dead letter queue",
    "DLQ",
    "cron",
    "visibility timeout",
    "consumer group",
    "idempotency",
    "exactly once",
    "saga",
    "CDC",
    "TTL",
    "backoff",
    "poison message",
)


def test_a_word_of_another_system_is_in_a_heading_and_every_heading_leads_to_a_page() -> None:
    entries = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", PAGE.read_text("utf-8"), re.MULTILINE))
    missing = [word for word in SOUGHT if not any(word.lower() in heading.lower() for heading in entries)]
    assert missing == []
    assert [heading for heading, text in entries.items() if "](" not in text] == []
