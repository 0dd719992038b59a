"""Whether operations can have happened one after the other, each at some moment between its beginning and its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FOREVER = 1 << 62
"""The end of an operation whose end nobody saw."""


@dataclass(frozen=True, slots=True)
class Step:
    """An operation that wrote a version, or saw one."""

    version: int
    wrote: bool
    start: int
    end: int
    what: str


def out_of_order(steps: Iterable[Step]) -> Iterator[str]:
    """Names operations that no order explains: versions only go up, and who saw one came after it was written.

    The order is forced: by version, the writer first. It is a linearization exactly when no operation ended before one
    that comes earlier in it began; those that saw the same version may change places among themselves.
    """
    ordered = sorted(steps, key=lambda step: (step.version, not step.wrote))
    latest = behind = None  # of the earlier ones: the latest beginning, without those that saw the same version
    previous: list[Step] = []
    for step in ordered:
        if previous and (step.version != previous[0].version or previous[0].wrote):
            for each in previous:
                if latest is None or each.start > latest.start:
                    latest = each
            previous = []
        if step.wrote and behind is not None and behind.wrote and behind.version == step.version:
            yield f"{step.what} and {behind.what} wrote the same version {step.version}"
        if latest is not None and step.end < latest.start:
            yield (
                f"{step.what} {_of(step)} had ended {(latest.start - step.end) / 1e6:.3f} ms before "
                f"{latest.what} {_of(latest)} began"
            )
        previous.append(step)
        behind = step


def _of(step: Step) -> str:
    return f"{'wrote' if step.wrote else 'saw'} {step.version} and"
