"""Every Python block in the README and the docs runs, in order, in a folder of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.run_blocks import BLOCK, run_page

from penstock import schema

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")] if BLOCK.search(page.read_text("utf-8"))
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_on_this_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    declared = set(schema._by_kind)
    try:
        run_page(page)
    finally:
        for kind in set(schema._by_kind) - declared:  # another page may use the same kinds
            schema.forget(kind)


def test_there_are_pages_with_code() -> None:
    assert ROOT / "README.md" in PAGES
    assert len(PAGES) >= 3


def test_links_between_pages_lead_somewhere() -> None:
    missing = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                missing.append(f"{page.relative_to(ROOT)} → {target}")
    assert missing == []
