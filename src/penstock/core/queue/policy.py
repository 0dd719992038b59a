"""A queue's policy: a value that is checked, then stored with the queue; and the times of retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal

import msgspec

from penstock.core.clock import Duration, parse_duration, seconds
from penstock.core.documents.decoding import nearest
from penstock.core.model.durations import Seconds
from penstock.core.names import check_limit, check_name, check_whole, is_number, refuse_system
from penstock.core.queue.flow import check_flow, check_flow_together
from penstock.core.units import write_duration
from penstock.errors import ConfigError, PolicyMismatch
from penstock.limits import WORKER_RETRY_FACTOR, WORKER_RETRY_FIRST, WORKER_RETRY_JITTER, WORKER_RETRY_LONGEST

# ── retries ──────────────────────────────────────────────────────────────────────────────────────────────────────────
Curve = Literal["immediate", "fixed", "linear", "exponential", "schedule"]

LONGEST = 10 * 365 * 24 * 3600.0
"""The longest delay, ten years, also of an uncapped curve: a time on disk is a 64-bit number."""


class Retry(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The delay before a message's next attempt. Make one with `immediate`, `fixed`, `linear`, `exponential` or
    `schedule`; compare it, print it, store it.

    >>> Retry.exponential(1, cap=60).delay(3)
    4.0
    """

    curve: Curve = "immediate"
    delays: tuple[Seconds, ...] = ()
    factor: float = 2.0
    cap: Seconds | None = None
    jitter: float = 0.0

    SVIX: ClassVar[Retry]
    """Svix's webhook schedule: 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, then every 10 h."""
    WORKER: ClassVar[Retry]
    """The delays of a worker's failures when the queue's policy has no `retry`: about 5 s, 30 s, 3 min, then 10 min."""

    @staticmethod
    def immediate() -> Retry:
        """Returns a policy that retries at once."""
        return Retry()

    @staticmethod
    def fixed(delay: Duration) -> Retry:
        """Returns a policy with the same delay every time."""
        return Retry("fixed", (seconds(delay, "delay"),))

    @staticmethod
    def linear(step: Duration, *, cap: Duration | None = None) -> Retry:
        """Returns a policy that waits `step`, twice `step`, three times `step`, … up to `cap`."""
        return Retry("linear", (seconds(step, "step"),), cap=_cap_seconds(cap))

    @staticmethod
    def exponential(base: Duration, *, factor: float = 2, cap: Duration | None = None, jitter: float = 0.0) -> Retry:
        """Returns a policy that waits `base`, `base`·`factor`, `base`·`factor`², … up to `cap`.

        `jitter` takes up to this share off, at random.
        """
        if not is_number(factor) or not 1 <= factor < float("inf"):
            raise ConfigError(f"factor must be a number of at least 1, not {factor!r}")
        if not is_number(jitter) or not 0 <= jitter <= 1:
            raise ConfigError(f"jitter is a share between 0 and 1, not {jitter!r}")
        return Retry("exponential", (seconds(base, "base"),), float(factor), _cap_seconds(cap), float(jitter))

    @staticmethod
    def schedule(*delays: Duration) -> Retry:
        """Returns a policy that waits these delays in turn; the last delay repeats."""
        if not delays:
            raise ConfigError("a schedule needs at least one delay; Retry.immediate() is the one without")
        return Retry("schedule", tuple(seconds(delay, "delay") for delay in delays))

    def delay(self, failures: int, chance: Callable[[], float] | None = None) -> float:
        """Returns the seconds to wait after this many failed attempts, counted from 1."""
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


def _cap_seconds(cap: Duration | None) -> float | None:
    return None if cap is None else seconds(cap, "cap")


Retry.SVIX = Retry.schedule(5, 300, 1800, 7200, 18_000, 36_000)
Retry.WORKER = Retry.exponential(
    WORKER_RETRY_FIRST, factor=WORKER_RETRY_FACTOR, cap=WORKER_RETRY_LONGEST, jitter=WORKER_RETRY_JITTER
)


# ── as people write it ───────────────────────────────────────────────────────────────────────────────────────────────
def parse_retry(text: str) -> Retry | None:
    """Returns the retry policy of a text such as immediate, svix, fixed:5s, linear:10s:5m, exponential:1s:60s or
    schedule:5s,5m,30m; None for default.
    """
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
    """Returns a retry policy as text for `parse_retry`; empty for policies without such a text (a factor other than
    2, or jitter).
    """
    if retry is None:
        return "default"
    given = [write_duration(delay) for delay in (*retry.delays, *([] if retry.cap is None else [retry.cap]))]
    text = f"{retry.curve}:{(',' if retry.curve == 'schedule' else ':').join(given)}".rstrip(":")
    return text if parse_retry(text) == retry else ""


# ── policies ─────────────────────────────────────────────────────────────────────────────────────────────────────────
Mode = Literal["work", "fanout"]

LEASE = 30.0
MAX_ATTEMPTS = 3
MOST_ATTEMPTS = 1_000_000_000
DEDUP_WINDOW = 300.0
FEED: Final = ".feed"
"""The ending of the name of a queue's feed."""


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The policy of a queue's deliveries: a value that can be compared, printed and stored.

    Durations are seconds; "1h30m" or a timedelta also set a duration.
    """

    mode: Mode = "work"
    """"work": each message goes to one consumer, and an ack removes it. "fanout": every group gets every message.

    A queue keeps its first mode.
    """
    lease: Seconds = LEASE
    """The time for which a consumer may hold a message before the message is offered again; 0 for as long as the
    consumer's process runs.
    """
    max_attempts: int = MAX_ATTEMPTS
    """The number of deliveries after which a message is given up."""
    dead_letter: str | None = None
    """The queue that receives given-up messages; without it they stay, in state "failed"."""
    retry: Retry | None = None
    """The delay before the next attempt.

    With None, a worker's failures wait about 5 s, then 30 s, growing to 10 min (`Retry.WORKER`); a message that is
    given back by hand, or whose lease ends, is ready at once.
    """
    max_size: int | None = None
    """The greatest number of unsettled messages; a push above it raises QueueFull."""
    max_in_flight: int | None = None
    """The greatest number of messages that a group has in flight at once; above it, takes find no message."""
    max_in_flight_per_key: int = 1
    """The greatest number of messages of one ordering key that a group has in flight. 1 keeps their order; with
    more, they begin in order and may overtake each other.
    """
    rate: str | None = None
    """The greatest number of messages that a group is given in any period of a length: "100/s", "10/m", "5/30s"."""
    rate_per_key: str | None = None
    """The rate for the messages of one ordering key; messages of other keys pass them."""
    fair_by: str | None = None
    """The field by which messages share a queue fairly: a header ("tenant"), the key ("key"), or the part of the key
    before a text ("key:/"). No value waits because another value has a million messages.
    """
    throttle: Seconds | None = None
    """The seconds within which only the first push of a key becomes a message; the other pushes get its receipt."""
    debounce: Seconds | None = None
    """The seconds that a push with a key waits for further pushes of its key: the newest push replaces the earlier
    pushes.
    """
    debounce_limit: Seconds | None = None
    """The longest time for which pushes may replace each other before the newest push is delivered."""
    breaker: str | None = None
    """The number of failures within a time that opens the circuit breaker of a group ("5/1m").

    The group then gets no messages until one message, tried after `breaker_pause`, has succeeded.
    """
    breaker_pause: Seconds = 30.0
    """The time for which a circuit breaker stays open before one message is tried."""
    ttl: Seconds | None = None
    """The age after which messages are no longer delivered: they go to the dead letters, or are removed without a
    dead-letter queue.
    """
    warn_after: Seconds | None = None
    """The time for which a ready message may wait before health checks warn.

    None: one minute without consumers, else ten minutes.
    """
    retention: Literal["hold", "dead_letter"] = "hold"
    """The treatment of unsettled messages that the topic's retention (`max_age`, `max_events`, `max_bytes`) reaches.
    "hold" keeps them until they are settled; "dead_letter" sends them to the dead letters with this reason.
    """
    priority: bool = False
    """True if messages have priorities (and no ordering keys): higher ones first, then by position."""
    feed: bool = False
    """True if every change of a message's state is recorded as an event of the topic `<queue>.feed`."""
    dedup_window: Seconds | None = DEDUP_WINDOW
    """The time for which a dedup key is remembered; None for forever.

    A queue over an existing topic keeps the topic's window.
    """


FIELDS = QueuePolicy.__struct_fields__
DEFAULT = QueuePolicy()
WORDS: Mapping[str, tuple[str, str]] = {
    "mode": ("work", "of a new queue: each message to one consumer, or to every group"),
    "lease": ("30s", "how long a consumer may hold a message (0s: until the process that took it ends)"),
    "max_attempts": ("3", "deliveries before a message is given up"),
    "dead_letter": ("emails.dead", "the queue that messages given up go to (none: they stay, failed)"),
    "retry": ("default", "when a message is tried again, like exponential:1s:60s, fixed:5s, schedule:5s,5m,30m"),
    "max_size": ("none", "unsettled messages it may hold (none: any)"),
    "max_in_flight": ("none", "messages a group may have in flight (none: any)"),
    "max_in_flight_per_key": ("1", "messages of one key a group may have in flight; 1 keeps their order"),
    "rate": ("100/s", "messages a group is given, like 100/s (none: any)"),
    "rate_per_key": ("10/m", "the same for each key (none: any)"),
    "fair_by": ("tenant", "what takes turns: a HEADER, key, or key:/ (none: nothing)"),
    "throttle": ("10s", "the first push of a key within this wins (none: all do)"),
    "debounce": ("10s", "the newest push of a key within this wins (none: all do)"),
    "debounce_limit": ("1m", "how long the newest push may be put off (none: any time)"),
    "breaker": ("5/1m", "failures that stop deliveries, like 5/1m (none: any)"),
    "breaker_pause": ("30s", "how long they stop before one message is tried"),
    "ttl": ("7d", "messages older than this are not delivered (none: all are)"),
    "warn_after": ("10m", "how long a ready message may wait before health warns (none: 1m without workers, else 10m)"),
    "retention": ("hold", "what becomes of unsettled messages that the topic's retention passes"),
    "priority": ("no", "whether messages have priorities"),
    "feed": ("no", "whether the topic QUEUE.feed says what becomes of messages"),
    "dedup_window": ("5m", "how long dedup keys are remembered (none: forever)"),
}
"""An example and the meaning of each field, for the command line's help and the console's form."""


def check_policy(given: Mapping[str, Any], queue: str) -> dict[str, Any]:
    """Returns the given fields of a policy in their stored form; a ConfigError names the first bad field."""
    unknown = sorted(set(given) - set(FIELDS))
    if unknown:
        raise ConfigError(f"a queue has no policy {unknown[0]!r}{nearest(unknown[0], FIELDS)}")
    fields = dict(given)
    if "mode" in fields and fields["mode"] not in ("work", "fanout"):
        raise ConfigError(f'mode is "work" or "fanout", not {fields["mode"]!r}')
    if "lease" in fields:
        fields["lease"] = seconds(fields["lease"], "lease")
    if fields.get("dedup_window") is not None:
        fields["dedup_window"] = seconds(fields["dedup_window"], "dedup_window")
    if fields.get("ttl") is not None:
        fields["ttl"] = seconds(fields["ttl"], "ttl", minimum=0.001)
    if fields.get("warn_after") is not None:
        fields["warn_after"] = seconds(fields["warn_after"], "warn_after", minimum=0.001)
    if "max_attempts" in fields:
        check_attempts(fields["max_attempts"])
    for name in ("max_size", "max_in_flight"):
        check_limit(fields.get(name), name, 1)
    check_flow(fields)
    if "retention" in fields and fields["retention"] not in ("hold", "dead_letter"):
        raise ConfigError(f'retention is "hold" or "dead_letter", not {fields["retention"]!r}')
    for name in ("priority", "feed"):
        if name in fields and not isinstance(fields[name], bool):
            raise ConfigError(f"{name} must be True or False, not {fields[name]!r}")
    if fields.get("feed"):
        check_name(queue + FEED, "topic")
    if fields.get("dead_letter") is not None:
        fields["dead_letter"] = _dead_letter(fields["dead_letter"], queue)
    if "retry" in fields:
        fields["retry"] = _retry(fields["retry"])
    return fields


def check_together(policy: QueuePolicy, queue: str) -> None:
    """Refuses settings that need another, missing setting."""
    check_flow_together(policy, queue)
    if policy.retention == "dead_letter" and policy.dead_letter is None:
        raise ConfigError(f'queue {queue!r} needs a dead-letter queue for retention="dead_letter": give dead_letter=')


def duration_ms(value: Duration, name: str) -> int:
    return round(seconds(value, name) * 1000)


def check_attempts(value: Any) -> int:
    if check_whole(value, "max_attempts") > MOST_ATTEMPTS:
        raise ConfigError(f"max_attempts must be at most {MOST_ATTEMPTS:,}, not {value!r}")
    return int(value)


def _dead_letter(target: str, queue: str) -> str:
    name = check_name(target, "queue")
    if name == queue:
        raise ConfigError(f"queue {queue!r} cannot be its own dead-letter queue: name another one")
    return refuse_system(name)


def _retry(value: object) -> Retry | None:
    if value is None or isinstance(value, Retry):
        return value
    if isinstance(value, timedelta | str) or is_number(value):
        return Retry.fixed(seconds(value, "retry"))
    raise ConfigError(f"retry must be a Retry, a fixed delay, or None for the default, not {value!r}")


def refuse_other_mode(name: str, stored: QueuePolicy, mode: object) -> None:
    """Raises PolicyMismatch when a queue would have to change its mode, which is fixed."""
    if mode != stored.mode:
        raise PolicyMismatch(
            f"queue {name!r} has mode={stored.mode}, and a queue keeps its mode: make another queue with mode={mode}, "
            "and move the messages there with queue.move(other)"
        )


def refuse_mismatch(name: str, stored: QueuePolicy, given: dict[str, object]) -> None:
    """Raises PolicyMismatch when a caller's policy differs from the stored policy."""
    refuse_other_mode(name, stored, given.get("mode", stored.mode))
    for field, value in given.items():
        kept = getattr(stored, field)
        if kept != value:
            raise PolicyMismatch(
                f"queue {name!r} has {field}={kept}, not {value}: open it without {field}=, "
                f'or change it: journal.queue({name!r}, policy="update", {field}=…), or queue.configure({field}=…)'
            )
