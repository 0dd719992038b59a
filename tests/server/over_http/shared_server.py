"""Serves journals from this process for as long as somebody wants them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import penstock
from server.serving import Served, serving


class SharedServer:
    """Serves any number of journals, each at a port of its own, in the one event loop of this process's servers."""

    def __init__(self) -> None:
        self._served: dict[str, AbstractContextManager[Served]] = {}

    def move_in(self, journal: penstock.Journal, **options: Any) -> str:
        """Begins to serve a journal and says where."""
        context = serving(journal, **options)
        url = context.__enter__().url
        self._served[url] = context
        return url

    def move_out(self, url: str) -> None:
        """Ends what is under way for a journal; it may be closed afterwards."""
        self._served.pop(url).__exit__(None, None, None)

    def close(self) -> None:
        for url in list(self._served):
            self.move_out(url)
