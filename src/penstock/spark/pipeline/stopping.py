"""Ending queries between two batches: streams are held first, so that none begins another while it is waited for."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.spark.pipeline.progress import RunningFlow

GRACE = 30.0
"""Seconds a batch may take to finish after the pipeline was asked to stop."""
_POLLS, _POLL_SECONDS = 5, 0.05
"""How often in a row, and how many seconds apart, a query must be seen to do nothing before it is stopped."""


class Hold:
    """A file that keeps the streams of one run, which live in other processes, from beginning another batch."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"penstock-hold-{uuid.uuid4().hex}"

    def release(self) -> None:
        """Lets streams go on."""
        self.path.unlink(missing_ok=True)

    def stop(self, flows: Sequence[RunningFlow]) -> None:
        """Ends every query between two batches; one that takes too long is cut short, and its batch comes again."""
        deadline = time.monotonic() + GRACE
        with suppress(OSError):
            self.path.touch()
        for one in flows:
            with suppress(Exception):
                query = one.query
                idle = 0
                while query is not None and query.isActive and idle < _POLLS and time.monotonic() < deadline:
                    status = query.status
                    # Once may be the moment between asking for offsets and beginning a batch with them.
                    idle = 0 if status["isTriggerActive"] and status["isDataAvailable"] else idle + 1
                    time.sleep(_POLL_SECONDS)
                if query is not None:
                    query.stop()
                    one.refresh()
