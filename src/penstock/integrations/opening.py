"""Open journals of a process, for libraries that make an object for every thread, connection or task; and topics of
states.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from datetime import timedelta
from weakref import WeakKeyDictionary

import penstock
from penstock.errors import Denied

_journals: dict[tuple[int, str, str | None], penstock.Journal] = {}
_opening = threading.Lock()
_configured: WeakKeyDictionary[penstock.Journal, dict[str, object]] = WeakKeyDictionary()
"""The time to keep states that this process has configured, by journal and topic."""


def open_once(url: str, token: str | None = None) -> penstock.Journal:
    """Returns the journal of a url. A process opens the journal once; a forked process opens its own."""
    with _opening:
        place = os.getpid(), url, token
        journal = _journals.get(place)
        if journal is None or journal.closed:
            journal = _journals[place] = penstock.open(url, token=token)
        return journal


def close_all() -> None:
    """Closes the journals of this process."""
    with _opening:
        for place, journal in list(_journals.items()):
            if place[0] == os.getpid():
                journal.close()
        _journals.clear()


def state_topic(journal: penstock.Journal, name: str, keep: float | str | timedelta | None) -> penstock.Topic:
    """Returns a topic in which the newest event of a key counts and is kept for `keep` seconds.

    A process configures the topic once.
    """
    topic, known = journal.topic(name), _configured.setdefault(journal, {})
    if name not in known or known[name] != keep:
        with suppress(Denied):  # a token with the role write: another process, with the role admin, configures it
            topic.configure(by_key=True, max_age=keep)
        known[name] = keep
    return topic
