"""What axe finds wrong with a page, on screens of every size, in light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text("utf-8")
SCREENS = [(scheme, width) for width in (390, 1440, 1920) for scheme in ("light", "dark")]


def complaints(page: Page, screens: list[tuple[str, int]]) -> list[str]:
    """What is wrong with the page as it is, with everything unfolded, on each screen."""
    page.evaluate(AXE)
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    wrong = []
    for scheme, width in screens:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 900})
        where = f"{page.url} {scheme} {width}"
        found: list[dict[str, Any]] = page.evaluate(
            "axe.run({resultTypes: ['violations']}).then(said => said.violations)"
        )
        wrong += [f"{where}: {one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wrong.append(f"{where}: the page is wider than the screen")
    return wrong
