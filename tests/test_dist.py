"""What is published installs into a new environment, without extras, and does what the quickstart says."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.nightly("wheel")
def test_the_wheel_installs_without_extras_and_runs_the_quickstart(tmp_path: Path) -> None:
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        env=alone,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "penstock/py.typed" in names and "penstock/__init__.pyi" in names
    assert any(name.startswith("penstock/server/") and name.endswith(".css") for name in names), "the page's files"
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]

    folder = tmp_path / "clean"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True, env=alone)
    page = ROOT / "docs" / "quickstart.md"
    done = subprocess.run(
        [python, str(ROOT / "scripts" / "run_blocks.py"), str(page)],
        env=alone,
        cwd=tmp_path,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert "blocks ran" in done.stdout
