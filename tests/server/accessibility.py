"""What axe finds wrong with a page, on screens of every size, in light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text("utf-8")
PAGES = (
    "/",
    "/topics?system=1",
    "/queues",
    "/search?q=nasty",
    "/queues/mails",
    "/queues/mails?state=in_flight",
    "/queues/mails?tab=dead",
    "/queues/mails?tab=workers",
    "/queues/mails?tab=policy",
    "/queues/news?tab=groups",
    "/workers",
    "/topics/mails.dead/events/1",
    "/queues/mails?tab=dead&full=1",
    "/queues/tasks?tab=dead",
    "/queues/reports?tab=schedules",
    "/queues/mails.dead",
    "/topics/nasty",
    "/topics/nasty?tab=consumers",
    "/topics/nasty?tab=settings",
    "/topics/nasty/events/1",
    "/schedules",
    "/pipelines",
    "/buffers",
    "/health",
    "/docs",
    "/search?q=no-such-thing",
    "/queues/tasks?tab=dead&failed-error=value",
    "/topics/nasty?tag=none",
)
"""Every page of the console over the crowded journal, with the states that have markup of their own."""
MORE_RULES = ("target-size", "label-content-name-mismatch", "table-fake-caption", "td-has-header")
"""Rules of axe that are off by default and that Lighthouse counts."""
SCREENS = [(scheme, width) for width in (390, 1440, 1920) for scheme in ("light", "dark")]


def complaints(page: Page, screens: list[tuple[str, int]]) -> list[str]:
    """What is wrong with the page as it is, with everything unfolded, on each screen."""
    page.evaluate(AXE)
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    wrong = []
    for scheme, width in screens:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # it fits itself
        where = f"{page.url} {scheme} {width}"
        found: list[dict[str, Any]] = page.evaluate(
            "rules => axe.run({resultTypes: ['violations'], rules}).then(said => said.violations)",
            {rule: {"enabled": True} for rule in MORE_RULES},
        )
        wrong += [f"{where}: {one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            wrong.append(f"{where}: the page is wider than the screen")
    return wrong
