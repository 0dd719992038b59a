"""The picture: what was sold when, and how the pipeline kept up, as PNG and as a page."""

from __future__ import annotations

import html
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

COLORS = ("#2b7a78", "#e07a5f", "#3d5a80", "#f2cc8f", "#81b29a")


class Moment(NamedTuple):
    """How far everybody was at one time, in seconds since the start."""

    at: float
    stored: int
    counted: int
    handled: int


def places(events: Sequence[tuple[float, str]], least: float) -> list[float]:
    """Where each event's number stands: at its time, but never closer to the one before than `least`."""
    found: list[float] = []
    for at, _ in events:
        found.append(at if not found else max(at, found[-1] + least))
    return found


def draw(
    windows: Mapping[str, tuple[int, int]],
    moments: Sequence[Moment],
    events: Sequence[tuple[float, str]],
    lines: Sequence[str],
    folder: Path,
) -> tuple[Path, Path]:
    """Writes orders.png and orders.html; `events` are numbered in the picture and told below it, in order."""
    figure = pyplot.figure(figsize=(13, 5.4 + 0.24 * len(events)), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[5.4, 0.24 * len(events) + 0.1])
    left, right = upper.subplots(1, 2)
    for number, (at, what) in enumerate(events, 1):
        height = 1 - (number - 0.5) / (len(events) + 0.5)
        lower.text(0.02, height, f"{number}", fontsize=10, va="center", fontweight="bold")
        lower.text(0.04, height, f"{at:.0f} s", fontsize=10, va="center", color="#555555")
        lower.text(0.08, height, what, fontsize=10, va="center")
    by_product: dict[str, dict[str, float]] = defaultdict(dict)
    for key, (_, cents) in windows.items():
        _, start, product = key.split(" ")
        by_product[product][start] = cents / 100
    starts = sorted({start for values in by_product.values() for start in values})
    floor = [0.0] * len(starts)
    for color, (product, values) in zip(COLORS, sorted(by_product.items()), strict=False):
        heights = [values.get(start, 0.0) for start in starts]
        left.bar(starts, heights, bottom=floor, label=product, color=color, width=0.8)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    left.set_title("Revenue by half hour", pad=30)
    left.tick_params(axis="x", rotation=60)
    left.legend(frameon=False, ncols=5, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    times = [moment.at for moment in moments]
    right.plot(times, [moment.stored for moment in moments], label="orders stored", color=COLORS[2], linewidth=2)
    right.plot(times, [moment.counted for moment in moments], label="orders counted", color=COLORS[0], linewidth=2)
    few = right.twinx()
    few.plot(times, [moment.handled for moment in moments], label="alerts handled →", color=COLORS[1], linewidth=2)
    top = max(moment.stored for moment in moments)
    span = times[-1] - times[0]
    for number, ((at, _), place) in enumerate(zip(events, places(events, span / 22), strict=True), 1):
        right.axvline(at, color="#999999", linewidth=1, linestyle="--")
        # The numbers stand above the plot, where no line can cover them; what they mean stands below it.
        right.annotate(
            str(number),
            (at, top * 1.04),
            (place, top * 1.11),
            fontsize=9,
            ha="center",
            va="center",
            color="white",
            annotation_clip=False,
            bbox={"boxstyle": "circle,pad=0.25", "facecolor": "#555555", "edgecolor": "none"},
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 1},
        )
    right.set_ylim(top=top * 1.04)
    right.set_title("How the pipeline kept up", pad=30)
    right.set_xlabel("seconds")
    lines_shown = [*right.get_lines()[:2], *few.get_lines()]
    right.legend(
        lines_shown,
        [str(line.get_label()) for line in lines_shown],
        frameon=False,
        ncols=3,
        fontsize=9,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
    )
    few.spines[["top"]].set_visible(False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    picture, page = folder / "orders.png", folder / "orders.html"
    figure.savefig(picture, dpi=110)
    vector = io.StringIO()
    figure.savefig(vector, format="svg")
    pyplot.close(figure)
    svg = vector.getvalue()
    page.write_text(
        "<!doctype html><meta charset=utf-8><title>The main job</title>"
        "<style>body{font:16px sans-serif;max-width:1100px;margin:2em auto;color:#222}svg{width:100%;height:auto}"
        "pre{background:#f6f6f4;padding:1em;overflow:auto}</style><h1>The main job</h1>"
        f"{svg[svg.index('<svg') :]}<pre>{html.escape(chr(10).join(lines))}</pre>",
        encoding="utf-8",
    )
    return picture, page
