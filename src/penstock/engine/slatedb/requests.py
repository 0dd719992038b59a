"""How many requests went to the object store, and why: they are what it bills."""

from __future__ import annotations

from collections import Counter

import slatedb.uniffi as sl

_COUNT = "slatedb.object_store.request_count"
_CAUSES = {"db": "database", "compactor": "compaction", "gc": "collection", "reader": "reading"}
_KINDS = {"list_with_offset": "list", "list_with_delimiter": "list", "get_range": "get", "get_ranges": "get"}


def count_requests(recorder: sl.DefaultMetricsRecorder | None) -> dict[str, Counter[str]]:
    """SlateDB's own requests since it was opened: cause → kind (put, get, head, list, delete) → number."""
    found: dict[str, Counter[str]] = {}
    for metric in recorder.metrics_by_name(_COUNT) if recorder is not None else ():
        labels = {label.key: label.value for label in metric.labels}
        number = metric.value[0]
        if number:
            api = labels["api"]
            kind = "put" if api.startswith("multipart") else _KINDS.get(api, api)
            cause = _CAUSES.get(labels["component"], labels["component"])
            found.setdefault(cause, Counter())[kind] += number
    return found
