"""How long a message waits before it is delivered again: a policy that is a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import msgspec

from penstock.clock import Seconds, seconds
from penstock.errors import ConfigError
from penstock.limits import WORKER_RETRY_FACTOR, WORKER_RETRY_FIRST, WORKER_RETRY_JITTER, WORKER_RETRY_LONGEST
from penstock.names import is_number
from penstock.units import parse_duration, write_duration

Curve = Literal["immediate", "fixed", "linear", "exponential", "schedule"]

LONGEST = 10 * 365 * 24 * 3600.0
"""No delay is longer than ten years, whatever an uncapped curve says: time on disk is a 64-bit number."""


class Retry(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The delay before a message's next attempt. Make one with `immediate`, `fixed`, `linear`, `exponential` or
    `schedule`; compare it, print it, store it.

    >>> Retry.exponential(1, cap=60).delay(3)
    4.0
    """

    curve: Curve = "immediate"
    delays: tuple[float, ...] = ()
    factor: float = 2.0
    cap: float | None = None
    jitter: float = 0.0

    SVIX: ClassVar[Retry]
    """Svix's webhook schedule: 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, then every 10 h."""
    WORKER: ClassVar[Retry]
    """What a worker's failures wait when the queue's policy says nothing: about 5 s, 30 s, 3 min, then 10 min."""

    @staticmethod
    def immediate() -> Retry:
        """At once."""
        return Retry()

    @staticmethod
    def fixed(delay: Seconds) -> Retry:
        """The same delay every time."""
        return Retry("fixed", (seconds(delay, "delay"),))

    @staticmethod
    def linear(step: Seconds, *, cap: Seconds | None = None) -> Retry:
        """`step`, twice `step`, three times `step`, … up to `cap`."""
        return Retry("linear", (seconds(step, "step"),), cap=_cap(cap))

    @staticmethod
    def exponential(base: Seconds, *, factor: float = 2, cap: Seconds | None = None, jitter: float = 0.0) -> Retry:
        """`base`, `base`·`factor`, `base`·`factor`², … up to `cap`; `jitter` takes up to that share off, at random."""
        if not is_number(factor) or not 1 <= factor < float("inf"):
            raise ConfigError(f"factor must be a number of at least 1, not {factor!r}")
        if not is_number(jitter) or not 0 <= jitter <= 1:
            raise ConfigError(f"jitter is a share between 0 and 1, not {jitter!r}")
        return Retry("exponential", (seconds(base, "base"),), float(factor), _cap(cap), float(jitter))

    @staticmethod
    def schedule(*delays: Seconds) -> Retry:
        """These delays in turn; the last repeats."""
        if not delays:
            raise ConfigError("a schedule needs at least one delay; Retry.immediate() is the one without")
        return Retry("schedule", tuple(seconds(delay, "delay") for delay in delays))

    def delay(self, failures: int, chance: Callable[[], float] | None = None) -> float:
        """Seconds to wait after this many failed attempts, the first being 1."""
        if self.curve == "immediate":
            return 0.0
        if self.curve == "schedule":
            return min(self.delays[min(failures, len(self.delays)) - 1], LONGEST)
        first = self.delays[0]
        if self.curve == "linear":
            first *= failures
        elif self.curve == "exponential":
            try:
                first *= self.factor ** (failures - 1)
            except OverflowError:
                first = LONGEST
        limited = min(first, LONGEST if self.cap is None else self.cap, LONGEST)
        if not self.jitter:
            return limited
        if chance is None:
            import random

            chance = random.random
        return limited * (1 - self.jitter * chance())

    def __str__(self) -> str:
        given = [f"{delay:g}" for delay in self.delays]
        if self.curve == "exponential":
            given.append(f"factor={self.factor:g}")
        if self.cap is not None:
            given.append(f"cap={self.cap:g}")
        if self.jitter:
            given.append(f"jitter={self.jitter:g}")
        return f"{self.curve}({', '.join(given)})"


def _cap(cap: Seconds | None) -> float | None:
    return None if cap is None else seconds(cap, "cap")


Retry.SVIX = Retry.schedule(5, 300, 1800, 7200, 18_000, 36_000)
Retry.WORKER = Retry.exponential(
    WORKER_RETRY_FIRST, factor=WORKER_RETRY_FACTOR, cap=WORKER_RETRY_LONGEST, jitter=WORKER_RETRY_JITTER
)


# ── as people write it ───────────────────────────────────────────────────────────────────────────────────────────────
def parse_retry(text: str) -> Retry | None:
    """The retry behind immediate, svix, fixed:5s, linear:10s:5m, exponential:1s:60s or schedule:5s,5m,30m; None behind
    default."""
    curve, _, given = text.strip().lower().partition(":")
    delays = [parse_duration(part) for part in given.replace(",", ":").split(":") if part.strip()]
    cap = delays[1] if len(delays) > 1 else None
    makers: dict[str, tuple[bool, Callable[[], Retry | None]]] = {
        "default": (not delays, lambda: None),
        "immediate": (not delays, Retry.immediate),
        "svix": (not delays, lambda: Retry.SVIX),
        "fixed": (len(delays) == 1, lambda: Retry.fixed(delays[0])),
        "linear": (bool(delays), lambda: Retry.linear(delays[0], cap=cap)),
        "exponential": (bool(delays), lambda: Retry.exponential(delays[0], cap=cap)),
        "schedule": (bool(delays), lambda: Retry.schedule(*delays)),
    }
    fits, make = makers.get(curve, (False, Retry.immediate))
    if not fits:
        raise ConfigError(
            f"{text[:60]!r} is no retry: write default, immediate, fixed:5s, linear:10s:5m, exponential:1s:60s,"
            " schedule:5s,5m,30m or svix"
        )
    return make()


def write_retry(retry: Retry | None) -> str:
    """A retry as `parse_retry` reads it; empty when that has no words for it (a factor other than 2, or jitter)."""
    if retry is None:
        return "default"
    given = [write_duration(delay) for delay in (*retry.delays, *([] if retry.cap is None else [retry.cap]))]
    text = f"{retry.curve}:{(',' if retry.curve == 'schedule' else ':').join(given)}".rstrip(":")
    return text if parse_retry(text) == retry else ""
