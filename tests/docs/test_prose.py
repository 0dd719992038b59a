"""The prose of docs and docstrings: a script finds hard sentences, and few docstrings begin with a clause."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "prose.py"))


def test_few_docstrings_begin_with_a_clause() -> None:
    found = [
        f"{text.file}:{text.line}"
        for text in SCRIPT["texts"]([ROOT / "src"])
        for rule, _ in SCRIPT["findings"](text)
        if rule == "begins with a clause"
    ]
    assert len(found) <= SCRIPT["MOST_NOUN_CLAUSES"], found


def rules(words: str, kind: str = "docs") -> list[str]:
    text = SCRIPT["Text"](ROOT / "README.md", 1, kind, words)
    return [rule for rule, _ in SCRIPT["findings"](text)]


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("A gate refuses a draft, and one that fails refuses the batch.", "a pronoun as a subject"),
        ("The others wait, because some have a lease.", "a pronoun as a subject"),
        ("Of a topic that was dropped the positions stay.", "the subject does not come first"),
        ("What is pushed is on disk.", "the subject does not come first"),
        ("A queue that a worker which died has left is empty.", "two relative clauses in a row"),
        ("The topic is made anew.", "a word of our own"),
        (" ".join(["word"] * 31) + ".", "more than 30 words"),
    ],
)
def test_a_hard_sentence_is_found(sentence: str, rule: str) -> None:
    assert rules(sentence) == [rule]


@pytest.mark.parametrize(
    "sentence",
    [
        "A worker acknowledges a message after the handler has returned.",
        "What is a lease?",
        "What is different in penstock",
        "The error says that the store that you opened is damaged.",
        '`one` and "those that wait" are quoted.',
    ],
)
def test_a_plain_sentence_is_left_alone(sentence: str) -> None:
    assert rules(sentence) == []


def test_a_docstring_that_begins_with_a_clause_is_found() -> None:
    assert rules("Whether the store is open.", "docstring") == ["begins with a clause"]
