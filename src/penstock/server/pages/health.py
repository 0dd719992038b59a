"""Everything that is wrong, in words: the page behind the first line of every page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.observe.sample import Sample
from penstock.server.pages import parts, rendering
from penstock.server.pages.parts import Row, Table, Tile, Update
from penstock.server.service import Service, guarded
from penstock.units import show_size


def table(sample: Sample, base: str) -> Table:
    """Every finding, gravest first."""
    rows = [
        Row(f"{one.kind}/{one.subject}/{one.detail}", [one.says, one.kind], base + parts.place_of(one), True)
        for one in sample.findings
    ]
    return Table("findings", ["What", "Kind"], rows, [], "nothing is wrong")


def tiles(sample: Sample) -> list[Tile]:
    free = "–" if sample.disk_free is None else show_size(sample.disk_free)
    return [
        Tile("finding-count", "Findings", parts.number(len(sample.findings)), bool(sample.findings)),
        Tile("disk-free", "Free on disk", free, any(one.kind == "disk" for one in sample.findings)),
    ]


@guarded("read")
def health_page(request: Request, service: Service) -> Response:
    service.sampler.start()
    sample = service.sampler.newest
    found = table(sample, rendering.base_of(request))
    return rendering.page(
        request, service, "health.html", "Health", live="/live/health", tiles=tiles(sample), findings=found
    )


@guarded("read")
async def live_health(request: Request, service: Service) -> Response:
    base = rendering.base_of(request)

    def render(sample: Sample) -> Update:
        return parts.update(tiles(sample), table(sample, base))

    return rendering.stream(request, service, render)
