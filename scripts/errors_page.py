"""Writes docs/errors.md from src/penstock/errors.py and what the server makes of each error.

    python scripts/errors_page.py

A test compares the page with the module, so that neither can drift.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "errors.md"
sys.path.insert(0, str(ROOT / "src"))

INTRODUCTION = """\
# Errors

Everything penstock raises on purpose is a `PenstockError`. Errors carry what a program needs as attributes, and what a
person needs in their text: what was wrong, where, and what to do. Over [HTTP](http.md) the same names come back as
problem+json, and `penstock.open("http://…")` raises them again as the same classes.

Made from `src/penstock/errors.py` by `python scripts/errors_page.py`.
"""


def page() -> str:
    """The page as it should be."""
    from penstock import errors
    from penstock.protocol.problems import status_of

    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    lines = [INTRODUCTION, "```text", *inspect.cleandoc(tree).splitlines(), "```"]
    lines += ["", "| error | HTTP | what it says | it carries |", "|---|---|---|---|"]
    for name, kind in vars(errors).items():
        if not (inspect.isclass(kind) and issubclass(kind, errors.PenstockError)):
            continue
        says = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split()).replace("|", "\\|")
        carries = ", ".join(f"`{one}`" for one in _details(kind)) or "–"
        lines.append(f"| `{name}` | {status_of(kind)} | {says} | {carries} |")
    return "\n".join(lines) + "\n"


def _details(kind: type) -> list[str]:
    """The attributes that are given by name when the error is raised."""
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    return [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
