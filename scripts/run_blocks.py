"""Runs the Python blocks of a page, in order, in a new folder: what a reader who types them in would see.

python scripts/run_blocks.py docs/quickstart.md
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run_page(page: Path) -> int:
    """Runs a page's blocks in this process, in the current folder; returns how many there were."""
    text = page.read_text("utf-8")
    module = ModuleType("__page__")
    sys.modules[module.__name__] = module  # libraries find the page's classes by the name of their module
    blocks = list(BLOCK.finditer(text))
    for block in blocks:
        line = text.count("\n", 0, block.start()) + 1
        code = "\n" * line + block.group(1)  # so that a traceback names the page's own line
        exec(compile(code, str(page), "exec"), vars(module))
    return len(blocks)


if __name__ == "__main__":
    chosen = Path(sys.argv[1]).resolve()
    os.environ.pop("PENSTOCK_URL", None)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        count = run_page(chosen)
    print(f"{chosen.name}: {count} blocks ran")
