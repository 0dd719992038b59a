"""A row of the growth table: one use of one public operation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from growth.world import World

_new = itertools.count()


@dataclass(frozen=True)
class Row:
    """An operation, how to call it, and why it may cost more in a large store, if it may.

    The name is that of the method (`Topic.read`), with the arguments that matter behind it: `Topic.read(key=)`.
    `run` is given the world, and what `prepare` returned if there is one; `prepare` is not counted. A `Many`
    that `run` returns is the size of its answer; anything else is one thing.
    """

    name: str
    run: Callable[..., Any]
    prepare: Callable[[World], Any] | None = None
    grows: str = ""
    """Why it costs more than its answer in a store that has more: what is to be mended, or a bound that is right."""

    def on(self, world: World) -> Callable[[], int]:
        """What is to be measured of it in a world, prepared; it returns the size of its answer."""
        given = () if self.prepare is None else (self.prepare(world),)

        def work() -> int:
            answer = self.run(world, *given)
            return answer if isinstance(answer, Many) else 1

        return work

    @property
    def operation(self) -> str:
        return self.name.partition("(")[0]


def new(what: str) -> str:
    """A name that nothing has yet."""
    return f"{what}-{next(_new)}"


class Many(int):
    """How large an answer is: how many events or messages the caller got, moved, or asked to have looked at."""


def size(answer: Any) -> Many:
    """How many things an iterator or a collection holds."""
    return Many(sum(1 for _ in answer))
