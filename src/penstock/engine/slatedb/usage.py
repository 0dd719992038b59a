"""What a store costs: its objects by what they are for, its requests by their cause."""

from __future__ import annotations

from collections import Counter

import slatedb.uniffi as sl

from penstock.engine.slatedb.database import count_requests
from penstock.engine.slatedb.lease import WriterLease
from penstock.engine.slatedb.place import Place
from penstock.engine.slatedb.reading.follower import Follower

_PURPOSES = {
    "wal": "log",
    "compacted": "tables",
    "manifest": "manifests",
    "compactions": "compactions",
    "gc": "collection",
    "penstock/staging": "staging",
    "penstock/backups": "backups",
    "penstock": "lease",
}
"""What the objects of a store are for, by the folder they lie in."""


def objects_by_purpose(place: Place) -> dict[str, int]:
    """How many objects a store has: log, tables, manifests …"""
    found: Counter[str] = Counter()
    for path, _ in place.objects.sizes():
        folder = path.partition("/")[0]
        ours = path.rpartition("/")[0] if folder == "penstock" else folder
        found[_PURPOSES.get(ours.removesuffix("/blocks"), "other")] += 1
    return dict(found)


def requests_by_cause(
    recorder: sl.DefaultMetricsRecorder, lease: WriterLease | None, follower: Follower | None
) -> dict[str, dict[str, int]]:
    """Requests since the store was opened: cause → kind → number."""
    found: dict[str, dict[str, int]] = {cause: dict(kinds) for cause, kinds in count_requests(recorder).items()}
    if lease is not None:
        found["lease"] = {"put": lease.renewals + 1}
    if follower is not None:
        # SlateDB asks for each object of the log before it fetches it.
        found["following"] = {"head": follower.log_checks + follower.log_reads, "get": follower.log_reads}
    return found
