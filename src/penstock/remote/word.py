"""Word of changes: a server tells a reader of the same journal, elsewhere, that something was committed.

The reader reads from the object store as before and asks it by itself too, so nothing depends on the server: while it
is away, changes are seen later, no more. What it says is never trusted, only acted on sooner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

import urllib3
from urllib3.exceptions import HTTPError

from penstock.errors import ConfigError, Denied, PenstockError
from penstock.protocol.journal import FOLLOW_CHANGES
from penstock.protocol.operation import SSE
from penstock.remote.client import Client, lines_of
from penstock.remote.subscription import FIRST_PAUSE, LONGEST_PAUSE

log = logging.getLogger("penstock.remote")

SILENCE = 35.0
"""Seconds without a sign of life (the server gives one every 15) after which a connection counts as broken."""
TIMEOUT = 10.0
"""Seconds the server may take to answer."""
CLOSE_SECONDS = 2.0
"""How long closing waits for the thread; one that is just connecting ends by itself."""


class WordOfChanges:
    """A thread that listens to a server, and what it does with what it hears."""

    def __init__(
        self, url: str, token: str | None, id: str, *, changed: Callable[[], None], listening: Callable[[bool], None]
    ) -> None:
        """Calls `changed` at every word, and `listening` when there is a server to hear, or no longer.

        ConfigError when the server refuses the token or serves another journal than `id`; one that is away may come.
        """
        self._client = Client(url, token, TIMEOUT)
        self._id = id
        self._changed = changed
        self._listening = listening
        self._over = threading.Event()
        self._answer: urllib3.BaseHTTPResponse | None = None
        self._tried = threading.Event()
        self._refusal: PenstockError | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-word", daemon=True)
        self._thread.start()
        try:
            self._tried.wait(TIMEOUT)
            if self._refusal is not None:
                raise self._refusal
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Listens no more."""
        self._over.set()
        answer = self._answer
        if answer is not None:
            with suppress(OSError, ValueError, RuntimeError):
                answer.shutdown()  # wakes the thread that reads from it
        self._client.close()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._over.is_set():
            try:
                if self._listen():
                    pause = FIRST_PAUSE
            except PenstockError as error:
                if self._over.is_set():
                    return
                if isinstance(error, ConfigError | Denied) and not self._tried.is_set():
                    self._refusal = error  # `open` raises it
                    self._tried.set()
                    return
                log.warning("%s tells of no changes, they are looked for: %s", self._client.url, error)
            self._tried.set()
            self._over.wait(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def _listen(self) -> bool:
        """Hears one connection out; whether it said anything."""
        answer = self._client.stream(FOLLOW_CHANGES, accept=SSE, timeout=SILENCE)
        self._answer = answer
        heard = False
        try:
            for line in lines_of(answer):
                if self._over.is_set():
                    break
                if line.startswith(b"data: "):
                    if not heard:
                        self._check_journal(line[6:])
                        self._listening(True)
                        self._tried.set()
                    heard = True
                    self._changed()
        except PenstockError:
            raise
        except (OSError, HTTPError, ValueError, AttributeError) as error:
            log.debug("%s broke off: %s", self._client.url, error)  # or was hung up on by `close`
        finally:
            self._answer = None
            self._listening(False)
            answer.close()
        return heard

    def _check_journal(self, said: bytes) -> None:
        """Each time: after a failover another server may answer at this address."""
        if FOLLOW_CHANGES.answer_decoder.decode(said).id != self._id:
            raise ConfigError(
                f"{self._client.url} serves another journal than the one that is read: give told_by= the address of a "
                "server of this one"
            )
