"""The state of pipelines, as they report it: read from the journal, without Spark.

A pipeline (`penstock run`) appends to the topic `penstock.pipelines`, at most once a second, one event for each flow
that has changed: kind `flow.reported`, key `pipeline/flow`, payload a `FlowStatus`. The newest event of a key is how
that flow stands; older ones are compacted away in passing. A flow that is unchanged reports every fifteen seconds all
the same, so that silence means something.
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
"""Seconds after which a flow reports even if nothing has changed."""
SILENT: Final = 60.0
"""The seconds without a report after which a flow no longer counts as running."""

State = Literal["pending", "starting", "running", "waiting", "done", "stopped", "failed"]
"""pending: comes after other flows. waiting: failed, started again soon. done: has read all there was (--once)."""

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
    """Rows read since this run began."""
    rows_out: int = 0
    """Rows written since this run began."""
    rows_per_second: float | None = None
    """Rows read, over the last ten seconds."""
    lag: int | None = None
    """The unread events of its topics and manifest entries of its buffers; None when a source cannot say."""
    read_to: dict[str, int] = {}
    """Of each manifest of its buffers (by url and path): the first sequence that it has not read. What was read is
    removed from the manifest when the next batch begins, so until then it is there and waits for no flow."""
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
        """The state, or `silent` when a flow that claims to run has not said so for a minute."""
        if self.state in LIVE and self.reported_at is not None and (now - self.reported_at).total_seconds() > SILENT:
            return "silent"
        return self.state


def report(journal: Journal, statuses: Iterable[FlowStatus]) -> None:
    """Writes how flows stand, in one commit."""
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
    """Forgets a pipeline that does not run any more: its reports and its cursors; returns the flows there were.

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
