"""Every example runs to its end: it is what people copy first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OTHERS = ("__init__", "main_job", "spark_buffer")
"""The main job has a test of its own, and that of Spark runs with the pages of Spark: in one session."""
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*_*.py") if path.stem not in OTHERS)


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
