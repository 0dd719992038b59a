"""Changed bytes of what penstock stores: named, harmless, or listed; never a signal, never silent, never endless."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]


def test_a_changed_byte_is_named_harmless_or_on_the_list() -> None:
    command = [sys.executable, "-m", "torture.damage", "--count", "12", "--seed", "1"]
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
