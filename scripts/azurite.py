"""Installs azurite, the Azure emulator some of the buffer's tests run on, beside the environment.

    python scripts/azurite.py .venv

Needs npm and node. Where they are not at hand, or the registry does not answer, those tests are left out.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "3.35.0"
SECONDS = 240


def main() -> None:
    folder = Path(sys.argv[1]).resolve() / "azurite"
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None or shutil.which("azurite-blob"):
        return
    if (folder / "node_modules" / ".bin" / "azurite-blob").exists():
        return
    print("penstock: installing the Azure emulator for the buffer's tests (once; under a minute)", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    quiet = ["--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--loglevel=error", "--fetch-retries=1"]
    command = [npm, "install", *quiet, "--prefix", str(folder), f"azurite@{VERSION}"]
    try:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, timeout=SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        done = 1
    if done:
        print("penstock: that failed; the tests on Azure's emulator are left out", flush=True)


if __name__ == "__main__":
    main()
