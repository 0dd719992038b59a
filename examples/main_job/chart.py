"""The picture: what was sold, how the pipeline kept up, and that the numbers agree; as PNG and as a page."""

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
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

COLORS = ("#2b7a78", "#e07a5f", "#3d5a80", "#f2cc8f", "#81b29a")


class Moment(NamedTuple):
    """How far everybody was at one time, in seconds since the start."""

    at: float
    stored: int
    counted: int
    handled: int


class Totals(NamedTuple):
    """Counts of the same orders and alerts in different places."""

    sold: int
    stored: int
    counted: int
    large: int
    pushed: int
    handled: int


def joined(events: Sequence[tuple[float, str]], least: float) -> list[tuple[float, str]]:
    """The marks in the picture: where each stands, and its number; events closer than `least` share one, "1–3"."""
    found: list[tuple[float, list[int]]] = []
    for number, (at, _) in enumerate(events, 1):
        if found and at - found[-1][0] < least:
            found[-1][1].append(number)
        else:
            found.append((at, [number]))
    return [(at, str(n[0]) if len(n) == 1 else f"{n[0]}–{n[-1]}") for at, n in found]


def waits(moments: Sequence[Moment], killed: float) -> list[tuple[float, float]]:
    """When nothing was counted although orders came: while Spark started, and while it started again."""
    found = []
    for begin in (moments[0].at, killed):
        noted = begin + 1.0  # what was counted before is in a sample by then, and no Spark starts in a second
        before = max((moment.counted for moment in moments if moment.at <= noted), default=0)
        end = next((moment.at for moment in moments if moment.at > noted and moment.counted > before), None)
        if end is not None:
            found.append((begin, end))
    return found


def draw(
    windows: Mapping[str, tuple[int, int]],
    moments: Sequence[Moment],
    events: Sequence[tuple[float, str]],
    totals: Totals,
    lines: Sequence[str],
    folder: Path,
) -> tuple[Path, Path]:
    """Writes orders.png and orders.html; `events`, the first of them the kill, are numbered there and told below."""
    figure = pyplot.figure(figsize=(15, 5.6 + 0.26 * len(events)), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[5.6, 0.26 * len(events) + 0.1])
    left, middle, right = upper.subplots(1, 3, width_ratios=[5, 6, 3.4])
    for number, (at, what) in enumerate(events, 1):
        height = 1 - (number - 0.5) / (len(events) + 0.5)
        lower.text(0.02, height, f"{number}", fontsize=10, va="center", fontweight="bold")
        lower.text(0.04, height, f"{at:.0f} s", fontsize=10, va="center", color="#555555")
        lower.text(0.08, height, what, fontsize=10, va="center")
    draw_revenue(left, windows)
    draw_progress(middle, moments, events)
    draw_proof(right, totals)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    picture, page = folder / "orders.png", folder / "orders.html"
    figure.savefig(picture, dpi=110)
    vector = io.StringIO()
    figure.savefig(vector, format="svg")
    pyplot.close(figure)
    svg = vector.getvalue()
    page.write_text(
        "<!doctype html><meta charset=utf-8><title>The main job</title>"
        "<style>body{font:16px sans-serif;max-width:1200px;margin:2em auto;color:#222}svg{width:100%;height:auto}"
        "pre{background:#f6f6f4;padding:1em;overflow:auto}</style><h1>The main job</h1>"
        f"{svg[svg.index('<svg') :]}<pre>{html.escape(chr(10).join(lines))}</pre>",
        encoding="utf-8",
    )
    return picture, page


def draw_revenue(axes: Axes, windows: Mapping[str, tuple[int, int]]) -> None:
    """Draws the counts of the flow `revenue`, stacked by product."""
    by_product: dict[str, dict[str, float]] = defaultdict(dict)
    for key, (_, cents) in windows.items():
        _, start, product = key.split(" ")
        by_product[product][start] = cents / 100_000
    starts = sorted({start for values in by_product.values() for start in values})
    floor = [0.0] * len(starts)
    for color, (product, values) in zip(COLORS, sorted(by_product.items()), strict=False):
        heights = [values.get(start, 0.0) for start in starts]
        axes.bar(starts, heights, bottom=floor, label=product, color=color, width=0.8)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_title("Revenue by half hour and product", pad=30)
    axes.set_ylabel("revenue (thousand €)")
    axes.set_xlabel("the half hour that begins at (time of day)")
    axes.tick_params(axis="x", rotation=60)
    axes.legend(frameon=False, ncols=5, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.24))


def draw_progress(axes: Axes, moments: Sequence[Moment], events: Sequence[tuple[float, str]]) -> None:
    """Orders stored and counted, alerts handled, over time; why nothing was counted for a while."""
    times = [moment.at for moment in moments]
    span = times[-1] - times[0]
    top = max(moment.stored for moment in moments)
    axes.plot(times, [moment.stored for moment in moments], label="orders stored", color=COLORS[2], linewidth=2)
    axes.plot(times, [moment.counted for moment in moments], label="orders counted", color=COLORS[0], linewidth=2)
    few = axes.twinx()
    few.plot(
        times, [moment.handled for moment in moments], label="alerts handled (right)", color=COLORS[1], linewidth=2
    )
    for number, (begin, end) in enumerate(waits(moments, events[0][0])):
        axes.axvspan(begin, end, color="#eeeeea", zorder=0)
        says = f"{'Spark starts again' if number else 'Spark starts'}\n(a JVM, {end - begin:.0f} s)"
        axes.text(
            (begin + end) / 2, top * 0.55, says, ha="center", fontsize=8, color="#666666", backgroundcolor="#eeeeea"
        )
    for at, label in joined(events, span / 20):
        axes.axvline(at, color="#999999", linewidth=1, linestyle="--")
        # The numbers stand above the plot, where no line can cover them; what they mean stands below it.
        axes.annotate(
            label,
            (at, top * 1.09),
            fontsize=9,
            ha="center",
            va="center",
            color="white",
            annotation_clip=False,
            bbox={"boxstyle": "round,pad=0.3", "facecolor": "#555555", "edgecolor": "none"},
        )
    axes.set_ylim(0, top * 1.04)
    few.set_ylim(bottom=0)
    axes.set_title("How the pipeline kept up", pad=30)
    axes.set_xlabel("time since the start (seconds)")
    axes.set_ylabel("orders")
    few.set_ylabel("alerts")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    few.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    shown = [*axes.get_lines()[:2], *few.get_lines()]
    names = [str(line.get_label()) for line in shown]
    axes.legend(shown, names, frameon=False, ncols=3, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.24))
    few.spines[["top"]].set_visible(False)


def draw_proof(axes: Axes, totals: Totals) -> None:
    """Each order and each alert as it was counted in three places: bars of equal length, or the job has failed."""
    groups = (
        ("sold, by the producers' notes", totals.sold, COLORS[2]),
        ("stored in the journal", totals.stored, COLORS[2]),
        ("counted by Spark", totals.counted, COLORS[0]),
        ("large, by the notes", totals.large, COLORS[2]),
        ("alerts pushed by Spark", totals.pushed, COLORS[0]),
        ("alerts handled by workers", totals.handled, COLORS[1]),
    )
    for place, (label, count, color) in enumerate(groups):
        row = place + (0.6 if place >= 3 else 0)
        whole = max(value for _, value, _ in (groups[:3] if place < 3 else groups[3:])) or 1
        axes.barh(row, count / whole, color=color, height=0.5)
        axes.text(0.0, row - 0.42, label, fontsize=9, va="center")
        axes.text(0.03, row, f"{count:,}", fontsize=10, va="center", color="white", fontweight="bold")
    for rows, agrees in (
        ((0, 2), totals.sold == totals.stored == totals.counted),
        ((3.6, 5.6), totals.large == totals.pushed == totals.handled),
    ):
        sign, color = ("=", "#2b7a78") if agrees else ("≠", "#c0392b")
        axes.text(1.06, sum(rows) / 2, sign, fontsize=26, va="center", color=color)
    axes.set_title("The proof: counted three times", pad=30)
    axes.set_xlim(0, 1.2)
    axes.invert_yaxis()
    axes.set_axis_off()
