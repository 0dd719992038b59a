"""Runs the Python blocks of a page, in order, in a new folder: what a reader who types them in would see.

python scripts/run_blocks.py docs/quickstart.md
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType

BLOCK = re.compile(r"^```python(?: title=\"([\w.]+)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run_page(page: Path) -> int:
    """Runs a page's blocks in this process, in the current folder; returns the number of blocks.

    A block with a title belongs at the end of the file of that name. The other blocks of the page import the file
    anew, as new programs do.
    """
    text = page.read_text("utf-8")
    module = ModuleType("__page__")
    sys.modules[module.__name__] = module  # libraries find the page's classes by the name of their module
    blocks = list(BLOCK.finditer(text))
    files = {title for title, _ in BLOCK.findall(text) if title}
    if files:
        sys.path.insert(0, str(Path.cwd()))
    try:
        for block in blocks:
            title, code = block.groups()
            if title:
                with Path(title).open("a", encoding="utf-8") as file:
                    file.write(code)
                continue
            for name in files:
                sys.modules.pop(name.removesuffix(".py"), None)
            importlib.invalidate_caches()
            line = text.count("\n", 0, block.start()) + 1
            code = "\n" * line + code  # so that a traceback names the page's own line
            exec(compile(code, str(page), "exec"), vars(module))
    finally:
        if files:
            sys.path.remove(str(Path.cwd()))
            for name in files:
                sys.modules.pop(name.removesuffix(".py"), None)
    return len(blocks)


if __name__ == "__main__":
    chosen = Path(sys.argv[1]).resolve()
    os.environ.pop("PENSTOCK_URL", None)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        count = run_page(chosen)
    print(f"{chosen.name}: {count} blocks ran")
