"""Whether a journal is well, for monitoring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from penstock.cli.command import command
from penstock.cli.commands.operate.watching import sampler_of
from penstock.cli.context import CommandContext
from penstock.cli.output import safe
from penstock.cli.values import duration, number, queue_names, several, topic_names
from penstock.cli.values import size as bytes_of
from penstock.errors import ConfigError, PenstockError
from penstock.units import show_duration, show_size

F = TypeVar("F", bound=Callable[..., Any])
FINE, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
"""What monitoring systems expect a check to exit with."""


class Threshold:
    """Above `warning` a person should look, above `critical` now. Written WARNING:CRITICAL, or one for both."""

    def __init__(self, text: str, convert: Callable[[str], float]) -> None:
        first, colon, second = text.partition(":")
        self.warning = convert(first)
        self.critical = convert(second) if colon else self.warning
        if self.critical < self.warning:
            raise ConfigError(f"{text!r} warns later than it alarms: write WARNING:CRITICAL")

    def judge(self, value: float) -> int:
        if value > self.critical:
            return CRITICAL
        return WARNING if value > self.warning else FINE


def _limit(name: str, convert: Callable[[str], float], help: str) -> Callable[[F], F]:
    return click.option(name, metavar="WARN:CRIT", type=lambda text: Threshold(text, convert), help=help)


def share(text: str) -> float:
    """A share of one: 80%."""
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise ValueError(f"a share is like 80%, not {text!r}") from None


@command("check", "penstock check", "penstock check --lag 1000:10000 --age 5m:1h --failed 0")
@_limit("--lag", number, "events any consumer may be behind")
@_limit("--idle", duration, "how long a consumer that is behind may stand still")
@_limit("--backlog", number, "messages any queue may have ready")
@_limit("--age", duration, "how old the oldest ready message may be")
@_limit("--failed", number, "messages any queue may have given up")
@_limit("--dead", number, "dead letters any queue may have")
@_limit("--flow-lag", number, "what may wait to be read by any flow of a pipeline")
@_limit("--batch-time", duration, "how long any flow's newest batch may have taken")
@_limit("--restarts", number, "how often any flow may have been started again")
@_limit("--pressure", share, "how full the writer may be")
@_limit("--size", bytes_of, "bytes the journal may have")
@_limit("--objects", number, "objects a journal may have in an object store")
@_limit("--unstored", duration, "how long a commit may be in the memory of an object store's writer only")
@several("--topic", shell_complete=topic_names, help="look at this topic only")
@several("--queue", shell_complete=queue_names, help="look at this queue only")
def check(
    context: CommandContext,
    lag: Threshold | None,
    idle: Threshold | None,
    backlog: Threshold | None,
    age: Threshold | None,
    failed: Threshold | None,
    dead: Threshold | None,
    flow_lag: Threshold | None,
    batch_time: Threshold | None,
    restarts: Threshold | None,
    pressure: Threshold | None,
    size: Threshold | None,
    objects: Threshold | None,
    unstored: Threshold | None,
    topic: tuple[str, ...],
    queue: tuple[str, ...],
) -> int:
    """Says whether the journal is well, for monitoring: exit code 0 fine, 1 warning, 2 critical, 3 unknown.

    Without thresholds it looks whether the journal can be read, and warns of failed messages, dead letters, paused
    queues, messages that waited for half their time to live, pipelines that failed, restart or fell silent, workers
    that gave up, topics that housekeeping could not read, a disk that is nearly full, and a writer that is more than
    75% full (critical above 95%). What is wrong comes first in the one line it prints.

    Of a journal in an object store it also says who holds the lease.
    """
    try:
        with context.journal(read_only=True) as journal:
            sample = sampler_of(journal)()
            described = journal.describe()
    except ConfigError as error:
        return _verdict(context, UNKNOWN, [(UNKNOWN, str(error))], {})
    except (PenstockError, OSError) as error:
        return _verdict(context, CRITICAL, [(CRITICAL, f"{type(error).__name__}: {error}")], {})
    nothing_failed = failed or Threshold("0:1000000000", number)
    nothing_dead = dead or Threshold("0:1000000000", number)
    not_too_full = pressure or Threshold("75:95", share)
    found: list[tuple[int, str]] = []
    missing = [name for name in topic if name not in sample.topics] + [
        name for name in queue if name not in sample.queues
    ]
    found += [(UNKNOWN, f"there is no {name}") for name in missing]
    worst: dict[str, float] = {"rate": round(sample.rate, 3), "pressure": sample.pressure}
    for one in sample.topics.values():
        for consumer, behind in one.lags.items():
            if not topic or one.name in topic:
                _judge(found, worst, "lag", lag, behind, f"{consumer} is {behind:,} behind in {one.name}")
                still = sample.at - one.moved.get(consumer, sample.at) if behind else 0.0
                says = f"{consumer} is behind in {one.name} and has not moved for {show_duration(still)}"
                _judge(found, worst, "idle", idle, max(0.0, still), says)
    for groups in sample.queues.values():
        for group in groups:
            if queue and group.name not in queue:
                continue
            name = group.name if group.group == "default" else f"{group.name}/{group.group}"
            _judge(found, worst, "backlog", backlog, group.ready, f"{group.ready:,} messages are ready in {name}")
            oldest = group.oldest_age or 0.0
            _judge(found, worst, "age", age, oldest, f"a message of {name} waits for {show_duration(oldest)}")
            _judge(
                found,
                worst,
                "failed",
                nothing_failed,
                group.failed,
                f"{_counted(group.failed, 'message')} of {name} failed",
            )
            _judge(found, worst, "dead", nothing_dead, group.dead, f"{_counted(group.dead, 'dead letter')} from {name}")
    for flow in sample.flows:
        behind, took = flow.lag or 0, flow.batch_seconds or 0.0
        _judge(found, worst, "flow_lag", flow_lag, behind, f"{behind:,} wait to be read by pipeline {flow.key}")
        says = f"the newest batch of pipeline {flow.key} took {show_duration(took)}"
        _judge(found, worst, "batch_time", batch_time, took, says)
        says = f"pipeline {flow.key} was started again {flow.restarts:,} times"
        _judge(found, worst, "restarts", restarts, flow.restarts, says)
    # What has a threshold of its own was judged above; the rest of what is wrong is a warning.
    judged = ("dead", "failed") if lag is None else ("dead", "failed", "lag")
    found += [(WARNING, one.says) for one in sample.findings if one.kind not in judged]
    _judge(found, worst, "pressure", not_too_full, sample.pressure, f"the writer is {sample.pressure:.0%} full")
    _judge(found, worst, "size", size, described.size_bytes, f"the journal has {show_size(described.size_bytes)}")
    if described.objects:
        count, late = sum(described.objects.values()), described.unstored_seconds
        _judge(found, worst, "objects", objects, count, f"the object store holds {count:,} objects")
        _judge(found, worst, "unstored", unstored, late, f"a commit is not stored since {show_duration(late)}")
    code = max((severity for severity, _ in found), key=(FINE, WARNING, UNKNOWN, CRITICAL).index, default=FINE)
    return _verdict(context, code, found, worst, described.writer)


def _counted(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def _judge(
    found: list[tuple[int, str]], worst: dict[str, float], name: str, limit: Threshold | None, value: float, says: str
) -> None:
    worst[name] = max(worst.get(name, 0.0), value)
    severity = limit.judge(value) if limit is not None else FINE
    if severity:
        found.append((severity, says))


def _verdict(
    context: CommandContext,
    code: int,
    found: list[tuple[int, str]],
    worst: dict[str, float],
    writer: str | None = None,
) -> int:
    name = ("OK", "WARNING", "CRITICAL", "UNKNOWN")[code]
    found.sort(key=lambda one: -(FINE, WARNING, UNKNOWN, CRITICAL).index(one[0]))
    if context.json:
        lease = {} if writer is None else {"written_by": writer}
        context.document({"status": name, "code": code, "problems": [says for _, says in found], **worst, **lease})
        return code
    said = "; ".join(says for _, says in found) or "all is well"
    if writer is not None:
        said += f"; written by {writer}"
    measured = " ".join(f"{key}={value:g}" for key, value in sorted(worst.items()))
    context.line(f"PENSTOCK {name} - {safe(said)}" + (f" | {measured}" if measured else ""))
    return code
