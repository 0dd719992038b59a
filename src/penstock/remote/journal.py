"""A journal that a server serves; and sealing it, step by step."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.journal.sealed.report import LakeSummary, Progress, SealReport
from penstock.names import check_name
from penstock.protocol.bulk import LIST_LAKES, SEAL_TOPIC, LakesQuery, SealRequest
from penstock.remote.backend import RemoteBackend
from penstock.remote.client import Client
from penstock.surface.journal import Journal

_STEP_SECONDS = 3_600.0
"""How long the server may take for a step, those of other clients before it included."""


class RemoteJournal(Journal):
    """A journal at the other end of a url, for the parts of penstock that ask its server for more than handles do."""

    _backend: RemoteBackend

    def __init__(self, url: str, *, token: str | None = None, read_only: bool = False, timeout: float = 60.0) -> None:
        self._client = Client(url, token, timeout)
        super().__init__(RemoteBackend(self._client, read_only=read_only))


def seal_served(journal: RemoteJournal, topic: str, wanted: SealRequest, progress: Progress | None) -> SealReport:
    """Asks the server to seal, and again while something is left; the report is that of all steps together."""
    journal._backend.check_writable()
    check_name(topic)
    done: SealReport | None = None
    while True:
        step = journal._client.call(SEAL_TOPIC, topic, body=wanted, wait=_STEP_SECONDS)
        if done is not None:
            step = replace(
                step,
                events=done.events + step.events,
                files=done.files + step.files,
                bytes=done.bytes + step.bytes,
                unfit=done.unfit + step.unfit,
            )
        done = step
        if progress is not None and step.events:
            progress(step.events, step.events + step.left)
        if not step.left:
            return step
        wanted = replace(wanted, through=step.through + step.left)  # what is appended meanwhile is for the next time


def lakes_served(journal: RemoteJournal, topics: list[str]) -> list[LakeSummary]:
    """What lies in the lakes of a served journal's topics."""
    return journal._client.call(LIST_LAKES, query=LakesQuery(topics)).lakes if topics else []
