"""Lighthouse's score for accessibility of every page of a crowded console: 100, or the exit code is 1.

python -m server.lighthouse [PATH …]    # needs npm and a Chromium
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import penstock
from server.accessibility import PAGES
from server.crowded import fill
from server.serving import serving

VERSION = "12.8.2"
DEVICES = {"phone": (), "desktop": ("--preset=desktop",)}
FLAGS = "--headless=new --no-sandbox --disable-dev-shm-usage"


def score(address: str, device: str, chromium: str) -> tuple[float, list[str]]:
    """The score of a page, and the audits that it fails."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        said = ("--quiet", "--output=json", f"--output-path={answer}", "--only-categories=accessibility")
        command = ["npx", "--yes", f"lighthouse@{VERSION}", address, *said, f"--chrome-flags={FLAGS}"]
        environment = {**os.environ, "CHROME_PATH": chromium}
        subprocess.run([*command, *DEVICES[device]], check=True, env=environment, timeout=240)
        found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    category = found["categories"]["accessibility"]
    weighed = {audit["id"] for audit in category["auditRefs"] if audit["weight"]}
    failed = [name for name, audit in found["audits"].items() if name in weighed and audit["score"] == 0]
    return 100 * category["score"], failed


def main() -> int:
    chromium = os.environ.get("PENSTOCK_CHROMIUM") or shutil.which("chromium")
    if chromium is None or shutil.which("npx") is None:
        sys.exit("no npm or no Chromium here: apt-get install npm chromium, or name a Chromium with PENSTOCK_CHROMIUM")
    worse = 0
    with penstock.open("memory:") as journal:
        fill(journal)
        with serving(journal) as served:
            for path in sys.argv[1:] or PAGES:
                for device in DEVICES:
                    points, failed = score(served.url + path, device, chromium)
                    worse += points < 100
                    print(f"{points:5.0f}  {device:<8}{path}  {', '.join(failed)}", flush=True)
    print("every page has a score of 100" if not worse else f"{worse} scores are below 100")
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
