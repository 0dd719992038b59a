"""Events of topics as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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
    journal: Journal, followed: Mapping[str, Subscription], wanted: Callable[[str], bool], filters: dict[str, Any]
) -> Iterator[Event]:
    """Events of topics that are followed as they come, and the chosen ones of topics made meanwhile whose name is
    wanted."""
    arrived: SimpleQueue[Event | PenstockError] = SimpleQueue()
    subscriptions = dict(followed)
    threads: list[threading.Thread] = []

    def pass_on(subscription: Subscription) -> None:
        try:
            for event in subscription:
                arrived.put(event)
        except PenstockError as error:
            arrived.put(error)

    def begin(subscription: Subscription) -> None:
        threads.append(threading.Thread(target=pass_on, args=(subscription,), daemon=True))
        threads[-1].start()

    for subscription in followed.values():
        begin(subscription)
    try:
        due = time.monotonic() + TOPICS_SECONDS
        while True:
            news: Event | PenstockError | None = None
            with suppress(Empty):
                news = arrived.get(timeout=max(0.0, due - time.monotonic()))
            if time.monotonic() >= due:  # however much arrives
                for name in journal.topics():
                    if name not in subscriptions and wanted(name):
                        subscriptions[name] = journal.topic(name).subscribe(0, **filters)
                        begin(subscriptions[name])
                due = time.monotonic() + TOPICS_SECONDS
            if isinstance(news, PenstockError):
                raise news
            if news is not None:
                yield news
    finally:
        for subscription in subscriptions.values():
            subscription.close()
        for thread in threads:
            thread.join()
