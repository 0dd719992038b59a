"""Entities of a topic: how far one has come, which there are, and the index they are found by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.journal.commit import Commit
from penstock.journal.index.runs import drop_index
from penstock.journal.reading import TopicView
from penstock.journal.summaries import forget_summaries

if TYPE_CHECKING:
    from penstock.journal.log import TopicLog


def newest_position(log: TopicLog, key: str) -> int:
    """The position of an entity's newest event; 0 when it has none."""
    lookup = log.core.index.lookup(log.name)

    def newest(view: TopicView) -> int:
        event = lookup.open(view).newest(key)
        return event.seq if event is not None else 0

    return log.ask(newest, 0)


def entities(log: TopicLog) -> Iterator[str]:
    """Every key that has events, each once, in no particular order."""
    lookup = log.core.index.lookup(log.name)
    with log.core.engine.read() as snap:
        view = TopicView.open(snap, log.name, log.core.clock.now_ms())
        if view is not None:
            yield from lookup.open(view).entities()


def reindex(log: TopicLog) -> None:
    """Throws a topic's index away and has it built anew, beside everything else."""
    name = log.name

    def drop(commit: Commit) -> None:
        head = commit.head(name)
        if head is not None:
            drop_index(commit.tx, head.topic_id, name)
            forget_summaries(commit.tx, head.topic_id)

    log.core.run(drop)
    log.core.indexer.request(name)
