"""JSON that a person typed into the console, nested deeper than any reader goes."""

from __future__ import annotations

import pytest

import penstock
from server.serving import Served

DEEP = "[" * 5_000 + "]" * 5_000


@pytest.mark.parametrize(
    ("act", "fields"),
    [
        ("push", {"queue": "q", "payload": DEEP}),
        ("publish", {"topic": "t", "kind": "k", "payload": DEEP}),
        ("publish", {"topic": "t", "kind": "k", "headers": DEEP}),
    ],
)
@pytest.mark.parametrize("preview", [True, False])
def test_deep_json_is_refused_with_a_sentence(
    served: Served, journal: penstock.Journal, act: str, fields: dict[str, str], preview: bool
) -> None:
    journal.queue("q")
    journal.topic("t").append("k")
    answer = served.post(f"/acts/{act}", {"fields": fields, "preview": preview})
    assert answer.status == 400 and "is nested too deeply" in answer.json["detail"]
    assert journal.topic("t").latest == 1 and len(journal.queue("q")) == 0
