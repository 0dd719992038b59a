"""Every Python block in the README and the docs runs, in order, in a folder of its own."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.run_blocks import BLOCK, run_page

import penstock.spark
from penstock.core import schema

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    (page for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")] if BLOCK.search(page.read_text("utf-8"))),
    key=lambda page: (page.name != "spark.md", page),
)
"""First the one whose paths are relative to where Spark was started: see `one_spark`."""


@pytest.fixture(scope="module", autouse=True)
def one_spark() -> Iterator[None]:
    """Pages start and stop a Spark each; here the first one starts it, and it stops after the last."""
    stop = penstock.spark.stop
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(penstock.spark, "stop", lambda: None)
        yield
    stop()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_on_this_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_URL", raising=False)
    if "settings.configure(" in page.read_text("utf-8"):  # Django takes settings once in a process
        program = [sys.executable, ROOT / "scripts" / "run_blocks.py", page]
        subprocess.run(program, check=True)
        return
    declared = set(schema._by_kind)
    try:
        run_page(page)
    finally:
        for kind in set(schema._by_kind) - declared:  # another page may use the same kinds
            schema.forget(kind)


def test_the_example_of_spark_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Beside the other examples, which have a process each: Spark is up here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["spark_buffer.py"])
    runpy.run_path(str(ROOT / "examples" / "spark_buffer.py"), run_name="__main__")
    assert "machine-3" in capfd.readouterr().out


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
