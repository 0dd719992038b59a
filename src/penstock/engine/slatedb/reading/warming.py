"""What a standby does while it waits for the lease, so that taking over has less left to fetch."""

from __future__ import annotations

import logging
import threading

import slatedb.uniffi as sl

from penstock.engine.base import END
from penstock.engine.slatedb.bridge import TimedOut, call
from penstock.engine.slatedb.database import open_reader
from penstock.engine.slatedb.place import Place
from penstock.engine.slatedb.reading.view import SlatedbView
from penstock.errors import StorageError

log = logging.getLogger("penstock.engine.slatedb")


def warm_up(place: Place, cache: sl.DbCache, name: str, timeout: float) -> None:
    """Has a thread bring what opening reads of the newest tables into `cache`: their indexes, first and last blocks.

    Connections to the store are made by that, too. A table that is made afterwards is not in it: no harm is done.
    """
    threading.Thread(target=_warm_up, args=(place, cache, name, timeout), name="penstock-warm", daemon=True).start()


def _warm_up(place: Place, cache: sl.DbCache, name: str, timeout: float) -> None:
    try:
        reader = open_reader(place, cache, None, timeout)
        try:
            view = SlatedbView(reader, name, timeout)
            for reverse in (False, True):
                next(view.scan(b"", END, reverse=reverse), None)
        finally:
            call(reader.shutdown(), timeout)
    except (sl.Error, TimedOut, StorageError) as error:  # taking over fetches it itself
        log.info("nothing of %s is fetched in advance: %s", name, error)
