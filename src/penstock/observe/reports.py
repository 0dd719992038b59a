"""Topics in which programs report how they do: the newest event of a key counts, older ones are compacted away."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import Denied

if TYPE_CHECKING:
    from penstock.surface.topic import Topic


def keep_newest(topic: Topic) -> None:
    """Lets a topic of reports keep only the newest event of every key. A server does that itself, for its clients."""
    with suppress(Denied):
        topic.configure(by_key=True, indexed=False)
