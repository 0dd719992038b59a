"""Every example runs to its end: it is what people copy first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*_*.py") if path.stem not in ("__init__", "main_job"))
"""Without the main job, which is long and has a test of its own."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if name != "queue_worker":  # its handler fails on purpose, and the worker logs how
        assert "Traceback" not in done.stderr
