"""The page of all problems: findings, and workers that gave up."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request

from penstock.core.observe import workers
from penstock.core.observe.sample import Finding, Sample
from penstock.core.units import show_size
from penstock.server.pages import parts
from penstock.server.pages.parts import ActButton, Content, ListColumn, Row, Tile, count_tile
from penstock.server.service import Service

FINDING_COLUMNS: Final[parts.Columns[Finding]] = (
    ListColumn("What", lambda one: one.says),
    ListColumn("Kind", lambda one: one.kind),
)
WORKER_COLUMNS: Final[parts.Columns[workers.WorkerFailure]] = (
    ListColumn("Worker", lambda one: one.worker),
    ListColumn("Host", lambda one: one.host),
    ListColumn("Process", lambda one: one.pid, str),
    ListColumn("Gave up", lambda one: one.at, parts.moment),
    ListColumn("Error", lambda one: one.error),
)


def health_page(request: Request, service: Service, sample: Sample) -> Content:
    """Returns every finding, gravest first, and the workers that gave up: where they ran, when they gave up, and why.

    Their reports have the traceback.
    """
    base, may_admin = parts.base_of(request), parts.can(request, "admin")

    def finding(one: Finding, cells: list[str]) -> Row:
        return Row(
            f"{one.kind}/{one.subject}/{one.detail}", cells, base + parts.page_of_finding(one), parts.level_of(one)
        )

    def worker(one: workers.WorkerFailure, cells: list[str]) -> Row:
        href = f"{base}/topics/{parts.segment(workers.TOPIC)}?{urlencode({'key': one.worker})}"
        buttons = [ActButton("Forget", "forget-worker", {"worker": one.worker})] if may_admin else []
        return Row(one.worker, cells, href, "alert", buttons)

    gave_up = parts.table(
        "gave-up", WORKER_COLUMNS, sample.workers, worker, "no worker has given up", buttons=may_admin
    )
    free = "–" if sample.disk_free is None else show_size(sample.disk_free)
    return Content(
        "health.html",
        "Health",
        [
            count_tile("finding-count", "Findings", len(sample.findings), alert=True),
            Tile("disk-free", "Free on disk", free, any(one.kind == "disk" for one in sample.findings)),
        ],
        {
            "findings": parts.table("findings", FINDING_COLUMNS, sample.findings, finding, "nothing is wrong"),
            "workers": gave_up,
        },
    )
