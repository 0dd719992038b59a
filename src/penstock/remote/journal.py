"""A journal that a server serves."""

from __future__ import annotations

from penstock.remote.backend import RemoteBackend
from penstock.remote.client import Client
from penstock.surface.journal import Journal


class RemoteJournal(Journal):
    """A journal at the other end of a url, for the parts of penstock that ask its server for more than handles do."""

    _backend: RemoteBackend

    def __init__(self, url: str, *, token: str | None = None, read_only: bool = False, timeout: float = 60.0) -> None:
        self._client = Client(url, token, timeout)
        super().__init__(RemoteBackend(self._client, read_only=read_only))
