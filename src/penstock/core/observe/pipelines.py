"""The state of pipelines from their own reports, read from the journal without Spark.

A pipeline (`penstock run`) appends to the topic `penstock.pipelines`, at most once a second, one event for each flow
that has changed: kind `flow.reported`, key `pipeline/flow`, payload a `FlowStatus`. The newest event of a key is the
state of the flow; older events are compacted away in the background. An unchanged flow also reports every fifteen
seconds, so that silence means a failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from penstock.core.events import Draft
from penstock.core.observe.workers import newest_reports

if TYPE_CHECKING:
    from penstock.core.surface.journal import Journal

TOPIC: Final = "penstock.pipelines"
KIND: Final = "flow.reported"
FORGOTTEN: Final = "flow.forgotten"
"""The kind of the last event of a flow that was forgotten."""
HEARTBEAT: Final = 15.0
"""The seconds after which an unchanged flow reports again."""
SILENT: Final = 60.0
"""The seconds without a report after which a flow no longer counts as running."""

State = Literal["pending", "starting", "running", "waiting", "done", "stopped", "failed"]
"""pending: follows other flows. waiting: failed, and starts again soon. done: has read everything (--once)."""

LIVE: Final = frozenset({"pending", "starting", "running", "waiting"})
"""The states of a pipeline that runs."""


class FlowStatus(msgspec.Struct, kw_only=True):
    """The state of a pipeline's flow."""

    pipeline: str
    flow: str
    state: State
    mode: Literal["once", "continuous"] = "continuous"
    sources: list[str] = []
    target: str = ""
    batch: int | None = None
    """The number of the newest batch."""
    rows: int = 0
    """The rows read since this run began."""
    rows_out: int = 0
    """The rows written since this run began."""
    rows_per_second: float | None = None
    """The rows read a second, over the last ten seconds."""
    lag: int | None = None
    """The unread events of its topics and manifest entries of its buffers; None when a source cannot say."""
    read_to: dict[str, int] = {}
    """For each manifest of the flow's buffers (by url and path): the first unread sequence.

    Read entries stay in the manifest until the next batch begins, and do not wait for a flow.
    """
    batch_seconds: float | None = None
    """The seconds that the newest batch took."""
    restarts: int = 0
    """The number of restarts since this run began."""
    error: str | None = None
    pid: int = 0
    host: str = ""
    started_at: datetime
    reported_at: datetime | None = None
    """The journal's time of the report."""

    @property
    def key(self) -> str:
        """The key of the flow's reports."""
        return f"{self.pipeline}/{self.flow}"

    def believed(self, now: datetime) -> str:
        """Returns the state, or `silent` when a running flow has not reported for a minute."""
        if self.state in LIVE and self.reported_at is not None and (now - self.reported_at).total_seconds() > SILENT:
            return "silent"
        return self.state


def report(journal: Journal, statuses: Iterable[FlowStatus]) -> None:
    """Writes the states of flows in one commit."""
    drafts = []
    for status in statuses:
        body: dict[str, object] = msgspec.to_builtins(status)
        del body["reported_at"]
        drafts.append(Draft(KIND, body, key=status.key))
    if drafts:
        journal.topic(TOPIC).append_many(drafts)


def status(journal: Journal, *, pipeline: str | None = None) -> list[FlowStatus]:
    """Returns the state of every flow that ever ran over this journal, by name, or of the flows of a single
    pipeline."""
    flows = []
    for at, found in newest_reports(journal.topic(TOPIC), KIND, FlowStatus):
        found.reported_at = at
        if pipeline in (None, found.pipeline):
            flows.append(found)
    return flows


def forget(journal: Journal, pipeline: str) -> list[FlowStatus]:
    """Removes the reports and cursors of a pipeline that no longer runs; returns its flows.

    Checkpoints are files beside the journal, and `penstock pipelines --forget` removes them.
    """
    flows = status(journal, pipeline=pipeline)
    if flows:
        journal.topic(TOPIC).append_many([Draft(FORGOTTEN, key=flow.key) for flow in flows])
    names = {flow.key for flow in flows}
    for name in journal.topics():
        topic = journal.topic(name)
        for consumer in names & set(topic.cursors()):
            topic.forget(consumer)
    return flows
