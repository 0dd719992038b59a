"""One open journal for a process, for libraries that make an object for every thread, connection or task."""

from __future__ import annotations

import os
import threading

import penstock

_journals: dict[tuple[int, str, str | None], penstock.Journal] = {}
_opening = threading.Lock()


def open_once(url: str, token: str | None = None) -> penstock.Journal:
    """The journal of a url, opened once in a process; a process that was forked opens its own."""
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
