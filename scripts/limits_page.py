"""Writes docs/limits.md from src/penstock/limits.py, the one home of limits and defaults.

    python scripts/limits_page.py

A test compares the page with the module, so that neither can drift.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "limits.md"


def page() -> str:
    """The page as it should be."""
    module = ast.parse((ROOT / "src/penstock/limits.py").read_text("utf-8"))
    lines = [
        "# Limits and defaults",
        "",
        "This page is made from `src/penstock/limits.py` by `python scripts/limits_page.py`. Sizes are bytes and",
        "times are seconds, unless the name says otherwise.",
        "",
        "| name | value | meaning |",
        "|---|---|---|",
    ]
    statements = module.body
    for at, statement in enumerate(statements):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        following = statements[at + 1] if at + 1 < len(statements) else None
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = " ".join(str(following.value.value).split())
        assert statement.value is not None
        lines.append(f"| `{statement.target.id}` | {_shown(statement.value)} | {text} |")
    return "\n".join(lines) + "\n"


def _shown(value: ast.expr) -> str:
    number = eval(compile(ast.Expression(value), "limits", "eval"), {"__builtins__": {}})  # constants of our own module
    return f"{number:,}" if isinstance(number, int) else f"`{number}`" if isinstance(number, str) else f"{number:g}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
