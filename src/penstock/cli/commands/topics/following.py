"""Events of topics as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.events import Event
    from penstock.surface.journal import Journal
    from penstock.surface.subscription import Subscription

TOPICS_SECONDS = 0.5
"""Seconds between two looks for topics that were made meanwhile."""


def follow_topics(
    journal: Journal, positions: dict[str, int], wanted: Callable[[str], bool], filters: dict[str, Any]
) -> Iterator[Event]:
    """Chosen events after the topics' positions as they come, and all of topics made meanwhile whose name is wanted."""
    arrived: SimpleQueue[Event | PenstockError] = SimpleQueue()
    subscriptions: dict[str, Subscription] = {}
    threads: list[threading.Thread] = []

    def pass_on(subscription: Subscription) -> None:
        try:
            for event in subscription:
                arrived.put(event)
        except PenstockError as error:
            arrived.put(error)

    def begin(name: str, after: int) -> None:
        subscriptions[name] = journal.topic(name).subscribe(after, **filters)
        threads.append(threading.Thread(target=pass_on, args=(subscriptions[name],), daemon=True))
        threads[-1].start()

    for name, position in positions.items():
        begin(name, position)
    try:
        while True:
            try:
                news = arrived.get(timeout=TOPICS_SECONDS)
            except Empty:
                for name in journal.topics():
                    if name not in subscriptions and wanted(name):
                        begin(name, 0)
                continue
            if isinstance(news, PenstockError):
                raise news
            yield news
    finally:
        for subscription in subscriptions.values():
            subscription.close()
        for thread in threads:
            thread.join()
