"""A circuit breaker: closed it counts failures; open it lets nothing through; after a pause one message is tried.

closed ──failures within the window──▶ open ──pause──▶ half-open ──the one tried fails──▶ open
   ▲                                                       └────────it succeeds────────▶ closed
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.queue.flow.rate import Rate
from penstock.queue.flow.window import Window

BreakerState = Literal["closed", "open", "half-open"]


class Breaker(msgspec.Struct, array_like=True):
    """One group's circuit breaker."""

    failures: Window = msgspec.field(default_factory=Window)
    open_until: int = 0
    """When one message may be tried again; 0: the breaker is closed."""
    probe: int = 0
    """The position of the message that is being tried; 0: none is."""
    probe_lease: int = 0

    def state(self, now: int) -> BreakerState:
        if not self.open_until:
            return "closed"
        return "open" if now < self.open_until else "half-open"

    def room(self, now: int, asked: int) -> int:
        """How many messages may be taken now."""
        state = self.state(now)
        if state == "closed":
            return asked
        return 0 if state == "open" or self.probe else min(asked, 1)

    def failed(self, rate: Rate, pause_ms: int, now: int, seq: int) -> bool:
        """An attempt failed; True when that opens the breaker."""
        if self.open_until:
            if seq != self.probe:
                return False  # it was under way before the breaker opened
        else:
            self.failures.note(rate, now, 1)
            if self.failures.room(rate, now):
                return False
        self.failures = Window()
        self.open_until = now + pause_ms
        self.probe = self.probe_lease = 0
        return True

    def succeeded(self, seq: int) -> bool:
        """A message was handled; True when that closes the breaker."""
        if not self.open_until or seq != self.probe:
            return False
        self.open_until = self.probe = self.probe_lease = 0
        return True
