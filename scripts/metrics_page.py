"""Writes the table of docs/metrics.md from the metrics themselves; the text around it is written by hand.

    python scripts/metrics_page.py

A test compares the page with the metrics, so that neither can drift.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "metrics.md"
BEGIN, END = "<!-- made by scripts/metrics_page.py: begin -->", "<!-- end -->"
sys.path.insert(0, str(ROOT / "src"))


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def table() -> str:
    """Every metric of a process that uses everything."""
    from penstock.buffer.manifest import BufferCounters
    from penstock.core.observe.metrics import REGISTRY, Registry, prometheus_name
    from penstock.core.sampling.collect import GAUGES
    from penstock.server.application import own

    for module in ("penstock.core.journal.writer", "penstock.core.queue.metrics"):
        importlib.import_module(module)
    found: dict[str, tuple[str, tuple[str, ...], str]] = {}

    def add(registry: Any) -> None:
        for family in registry.families():
            found[family.name] = (family.kind, family.label_names, family.help)

    counted = Registry()
    BufferCounters(counted)
    add(counted)
    add(own())
    known = {name for name, *_ in GAUGES}
    for family in REGISTRY.families():
        if family.name.partition(".")[0] in ("topic", "queue", "writer") and family.name not in known:
            found[family.name] = (family.kind, family.label_names, family.help)
    for name, help, labels, _ in GAUGES:
        found[name] = ("gauge", labels, help)
    lines = ["", "| metric | kind | labels | what it says |", "|---|---|---|---|"]
    for name, (kind, labels, help) in sorted(found.items()):
        spelled = ", ".join(f"`{label}`" for label in labels) or "–"
        lines.append(f"| `{prometheus_name(name, kind)}` | {kind} | {spelled} | {help.rstrip('.')} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
