"""Finds prose that is hard to read: in the README, the docs, docstrings, comments and messages.

    python scripts/prose.py                    # exit code 1 and the places, when a kind of text has more than it may
    python scripts/prose.py --count            # how many places break each rule, in every kind of text
    python scripts/prose.py src/penstock/core  # the places below a folder, in every kind of text

A rule is a search for a pattern that usually marks a hard sentence. A script cannot judge a text; it finds places to
read again.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MOST_WORDS = 30
"""A longer sentence holds more than one idea."""
MOST_NOUN_CLAUSES = 25
"""How many docstrings may begin with a clause that has no subject, each on purpose."""
MOST_PLACES = {"docs": 0, "message": 0, "docstring": 200, "comment": 40}
"""How many places of each kind may remain. These numbers only fall."""

CLAUSE = re.compile(r"(What|Whether|Where|Which|How|One|That|Some|When|The same)\b")
VERBS = (
    r"(?:is|are|was|were|has|have|had|does|do|did|can|cannot|may|must|will|would|comes?|goes?|ends?|stays?|waits?|gets?|needs?|makes?|reads?|"
    r"takes?|keeps?|begins?|costs?|holds?|fails?|follows?|lies?|stands?|runs?)"
)
SUBJECT = re.compile(
    r"(?:^|[,;:] |\b(?:and|but|or|than|that|which|when|where|if|while|because|so|before|after) )"
    rf"(?:(?:[Oo]ne|[Tt]hose),? (?:{VERBS}|that|who|which|whose)|(?:[Ss]ome|[Oo]thers|[Nn]either|[Nn]one) {VERBS})\b"
)
BACKWARDS = re.compile(
    r"(?:Of (?:an?|the|all|what|several|two|these|those|its|each|every|many)|What(?:ever)?|Whoever|Nor|So that|Else)\b"
    r".*[.;:]$"
)
"""Sentences that begin with another part than their subject; a heading has no full stop."""
RELATIVE = re.compile(
    r"\b(?:\w+ )(?:that|which|who|whose) (?:\w+ ){1,7}?(?:that|which|who|whose) (?!way\b|time\b|is why\b)"
)
CONJUNCTION = re.compile(
    r"\b(says?|said|so|shows?|showed|means?|sees?|ensures?|knows?|known|finds?|found|proves?|promises?|expects?|checks?|"
    r"tells?|told|notes?|asserts?|guarantees?|sure|requires?|such|fact|case|states?|sentence|than|like|reports?|learns?|"
    r"remembers?|decides?|asks?) that\b"
)
"""After these words, "that" begins an object clause."""
OURS = {
    "at rest": "settled, or on disk",
    "spoken for": "reserved",
    "nobody": "the noun: no process, no consumer",
    "somebody": "the noun: a process, a consumer",
    "anybody": "the noun: any process",
    "whoever": "the noun: the caller that",
    "of before": "old, earlier",
    "too many costs": "costs … when there are too many",
    "is taken in": "is read",
    "in passing": "during other commits, or in the background",
    "lies over": "is built on",
    "what lies": "the noun",
    "for good": "permanently",
    "lets go": "releases",
    "wished": "requested",
    "anew": "again",
    "amid": "during",
    "lie": "be",
    "lies": "is",
    "mended": "repaired, or corrected",
    "is told": "gets an error, or learns",
    "are told": "get an error, or learn",
    "to be had": "available",
    "of ours": "the noun",
    "of yours": "your",
    "of theirs": "the noun",
    "for ever": "without end, or permanently",
    "as ever": "as before",
    "asked of": "evaluated for",
    "the latter": "the noun",
    "the former": "the noun",
    "graves": "tombstones",
    "desk": "the field's noun",
    "keeper": "the field's noun",
}
"""Words of ours that a reader of the field would not search for, with better words."""
PRIVATE = re.compile(r"\b(" + "|".join(map(re.escape, OURS)) + r")\b", re.IGNORECASE)


class Text(NamedTuple):
    """A paragraph with its place: the file, its line, and its kind (docs, docstring, comment, message)."""

    file: Path
    line: int
    kind: str
    words: str


def markdown(file: Path) -> Iterator[Text]:
    """Yields the paragraphs, list items and table cells of a page, without its code."""
    fenced, begun, rows = False, 0, list[str]()
    for number, row in enumerate([*file.read_text("utf-8").splitlines(), ""], 1):
        if row.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        text = "" if fenced or row.startswith((":::", "<!--", "    options", "<", "!!!", "???")) else row.strip()
        begins = bool(re.match(r"([-*>#]|\d+\.) ?", text))
        if not text or begins or text.startswith("|") or row.lstrip().startswith("```"):
            if rows:
                yield Text(file, begun, "docs", " ".join(rows))
            rows = []
        if text.startswith("|"):
            yield from (
                Text(file, number, "docs", cell.strip()) for cell in text.strip("|").split(" | ") if " " in cell.strip()
            )
        elif text and not row.lstrip().startswith("```"):
            begun = number if not rows else begun
            rows.append(re.sub(r"^([-*>#]+|\d+\.) ", "", text))
        if text.startswith("#"):  # a heading ends with its line
            yield Text(file, number, "docs", " ".join(rows))
            rows = []


def python(file: Path) -> Iterator[Text]:
    """Yields the docstrings, comments and messages of a module."""
    source = file.read_text("utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from paragraphs(file, node.lineno, "docstring", node.value.value)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from (
                Text(file, node.lineno, "message", words) for part in node.exc.args[:1] if (words := literal(part))
            )
    with file.open("rb") as lines:
        for token in tokenize.tokenize(lines.readline):
            if token.type == tokenize.COMMENT and not re.match(r"#( ?[─=-]|!| type:| noqa| pragma)", token.string):
                yield Text(file, token.start[0], "comment", token.string.lstrip("# "))


def paragraphs(file: Path, line: int, kind: str, text: str) -> Iterator[Text]:
    for part in re.finditer(r"(?:^|\n[ \t]*\n)((?:(?!\n[ \t]*\n).)+)", text, re.DOTALL):
        block = part.group(1)
        if not re.match(r"\n? {6,}\S|\n? *(>>>|\$ |\|)", block) and not re.search(r"\S {3,}\S", block):
            yield Text(file, line + text.count("\n", 0, part.start(1)), kind, " ".join(block.split()))


def literal(node: ast.expr) -> str:
    """Returns the text of a literal or f-string, with a word for each value in it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "N" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return literal(left) + literal(right)
    return ""


def sentences(words: str) -> Iterator[str]:
    """Yields the sentences of a paragraph; code, links and quotations count as one word."""
    plain = re.sub(r"`+[^`]*`+", "code", words)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    plain = (
        re.sub(r"[“\"][^”\"]{0,200}[”\"]", "quote", plain)
        .replace("*", "")
        .replace("e.g.", "for example")
        .replace("i.e.", "that is")
    )
    yield from re.split(r"(?<=[.!?:;])\)? +(?=[A-Z0-9(“\"a-z])|\n", plain)


def findings(text: Text) -> Iterator[tuple[str, str]]:
    """Yields each broken rule with the sentence that breaks it."""
    if text.kind == "docstring" and CLAUSE.match(text.words):
        yield "begins with a clause", text.words[:100]
    for sentence in sentences(text.words):
        if len(re.findall(r"[\w'’-]+", sentence)) > MOST_WORDS:
            yield f"more than {MOST_WORDS} words", sentence
        if SUBJECT.search(sentence):
            yield "a pronoun as a subject", sentence
        if BACKWARDS.match(sentence):
            yield "the subject does not come first", sentence
        if RELATIVE.search(CONJUNCTION.sub(r"\1", sentence)):
            yield "two relative clauses in a row", sentence
        if found := PRIVATE.search(sentence):
            yield "a word of our own", f"{found.group(1)!r} ({OURS[found.group(1).lower()]}): {sentence}"


def texts(below: list[Path]) -> Iterator[Text]:
    for folder in below:
        files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
        for file in files:
            if file.suffix == ".md":
                yield from markdown(file)
            elif file.suffix == ".py":
                yield from python(file)


EVERYWHERE = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "docs",
    ROOT / "src",
]


def main() -> int:
    wanted = [Path(name).resolve() for name in sys.argv[1:] if not name.startswith("-")]
    found = [(text, rule, sentence) for text in texts(wanted or EVERYWHERE) for rule, sentence in findings(text)]
    if "--count" in sys.argv:
        counts = Counter((rule, text.kind) for text, rule, _ in found)
        kinds = ("docs", "docstring", "comment", "message")
        print(f"| rule | {' | '.join(kinds)} |\n|{'---|' * (len(kinds) + 1)}")
        for rule in sorted({rule for rule, _ in counts}):
            print(f"| {rule} | {' | '.join(str(counts[rule, kind]) for kind in kinds)} |")
        return 0
    if wanted:
        shown, exceeded = found, list[str]()
    else:
        counts = Counter(text.kind for text, _, _ in found)
        over = {kind for kind, most in MOST_PLACES.items() if counts[kind] > most}
        shown = [place for place in found if place[0].kind in over]
        exceeded = [f"{counts[kind]} places in {kind}; at most {MOST_PLACES[kind]} may remain" for kind in sorted(over)]
        clauses = sum(rule == "begins with a clause" for _, rule, _ in found)
        if clauses > MOST_NOUN_CLAUSES:
            exceeded.append(f"{clauses} docstrings begin with a clause; at most {MOST_NOUN_CLAUSES} may")
    for text, rule, sentence in shown:
        print(f"{text.file.relative_to(ROOT)}:{text.line}: {rule}: {sentence}")
    print(*exceeded, sep="\n", end="\n" if exceeded else "")
    return int(bool(shown or exceeded))


if __name__ == "__main__":
    sys.exit(main())
