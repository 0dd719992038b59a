"""How the journal does: live in a terminal, or as a verdict for monitoring."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli import values
from penstock.cli.command import command, flag, option
from penstock.cli.context import Run
from penstock.cli.output import table
from penstock.errors import ConfigError, PenstockError
from penstock.units import parse_duration, show_duration

if TYPE_CHECKING:
    from penstock.observe.sample import Sample

FINE, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
"""What monitoring systems expect a check to exit with."""


@contextmanager
def _samples(run: Run) -> Iterator[Callable[[], Sample]]:
    """A function that says how the journal is now, here or at a server."""
    with run.journal(read_only=True) as journal:
        from penstock.api import LocalJournal

        if not isinstance(journal, LocalJournal):  # the server measures rates
            yield journal.stats
            return
        from penstock.server.sampler import Sampler

        yield Sampler(journal).sample


# ── top ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
@command(
    "top",
    "Shows live how the journal does: rates, backlog, oldest age, in flight, failures, writer pressure",
    option("--interval", "how often it looks", metavar="DURATION", default=1.0, convert=values.duration),
    option("-n --rows", "topics and queues to show, busiest first", metavar="NUMBER", default=15, convert=values.count),
    option("--count", "end after so many looks", metavar="NUMBER", convert=values.count),
    flag("--once", "look twice, print once, end"),
    example=("penstock top", "penstock top --url http://127.0.0.1:7367"),
)
def top(run: Run, interval: float, rows: int, count: int | None, once: bool) -> None:
    if interval < 0.05:
        raise ConfigError("--interval is at least 50ms")
    with _samples(run) as look:
        look()  # rates need a before
        time.sleep(min(interval, 1.0))
        if once:
            _say(run, look(), rows)
            return
        looks = 0
        with _screen(run) as show:
            while count is None or looks < count:
                sample = look()
                if run.json:
                    run.document(sample)
                    run.flush()
                else:
                    show(_frame(sample, rows, color=run.color))
                looks += 1
                if count is None or looks < count:
                    time.sleep(interval)


def _say(run: Run, sample: Sample, rows: int) -> None:
    if run.json:
        run.document(sample)
    else:
        run.line(_frame(sample, rows, color=run.color))


@contextmanager
def _screen(run: Run) -> Iterator[Callable[[str], None]]:
    """Shows frames in place on a terminal, one after the other elsewhere."""
    if run.json or not run.out.isatty():
        yield lambda frame: run.line(frame + "\n")
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(file=run.out), screen=True, auto_refresh=False) as live:

        def show(frame: str) -> None:
            live.update(Text.from_ansi(frame), refresh=True)

        yield show


def _frame(sample: Sample, rows: int, *, color: bool) -> str:
    groups = [group for found in sample.queues.values() for group in found]
    oldest = max((group.oldest_age for group in groups if group.oldest_age is not None), default=None)
    groups_size = sample.operations / sample.commits if sample.commits else 0.0
    head = (
        f"{time.strftime('%H:%M:%S', time.localtime(sample.at))}   {sample.rate:,.1f} events/s   "
        f"ready {sum(group.ready for group in groups):,}   oldest {show_duration(oldest)}   "
        f"in flight {sum(group.in_flight for group in groups):,}   failed {sum(group.failed for group in groups):,}   "
        f"dead {sum(group.dead for group in groups):,}   "
        f"writer {sample.pressure:.0%} ({sample.queued:,} wait, {groups_size:.1f} a commit)"
    )
    topics = sorted(sample.topics.values(), key=lambda topic: (-topic.rate, topic.name))[:rows]
    topic_rows = [
        (topic.name, round(topic.rate, 1), topic.events, topic.latest, max(topic.lags.values(), default=None))
        for topic in topics
    ]
    groups.sort(key=lambda group: (-group.ready - group.failed - group.dead, group.name))
    queue_rows = [
        (
            group.name,
            group.group,
            round(group.rate, 1),
            group.ready,
            group.in_flight,
            group.delayed,
            group.failed,
            group.dead if group.letters is None else group.letters,
            show_duration(group.oldest_age),
        )
        for group in groups[:rows]
    ]
    parts = [head]
    if topic_rows:
        parts.append(table(("Topic", "Rate/s", "Events", "Latest", "Worst lag"), topic_rows, color=color))
    if queue_rows:
        columns = ("Queue", "Group", "Pushed/s", "Ready", "In flight", "Delayed", "Failed", "Dead", "Oldest")
        parts.append(table(columns, queue_rows, color=color))
    return "\n\n".join(parts)


# ── check ────────────────────────────────────────────────────────────────────────────────────────────────────────────
class Threshold:
    """Above `warning` somebody should look, above `critical` now. Written WARNING:CRITICAL, or one for both."""

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


def _threshold(convert: Callable[[str], float]) -> Callable[[str], Threshold]:
    return lambda text: Threshold(text, convert)


def _percent(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise ConfigError(f"a share is like 80%, not {text!r}") from None


@command(
    "check",
    "Says whether the journal is well, for monitoring: exit code 0 fine, 1 warning, 2 critical, 3 unknown",
    option("--lag", "events any consumer may be behind", metavar="WARN:CRIT", convert=_threshold(values.count)),
    option("--backlog", "messages any queue may have ready", metavar="WARN:CRIT", convert=_threshold(values.count)),
    option("--age", "how old the oldest ready message may be", metavar="WARN:CRIT", convert=_threshold(parse_duration)),
    option(
        "--failed",
        "messages any queue may have given up",
        metavar="WARN:CRIT",
        default=None,
        convert=_threshold(values.count),
    ),
    option("--dead", "dead letters any queue may have", metavar="WARN:CRIT", convert=_threshold(values.count)),
    option("--pressure", "how full the writer may be", metavar="WARN:CRIT", convert=_threshold(_percent)),
    option("--topic", "look at this topic only", many=True),
    option("--queue", "look at this queue only", many=True),
    example=("penstock check", "penstock check --lag 1000:10000 --age 5m:1h --failed 0"),
    details="""
    Without thresholds it looks whether the journal can be read, and warns of failed messages, dead letters, messages
    that waited for half their time to live, pipelines that failed, restart or fell silent, a disk that is nearly full,
    and a writer that is more than 75% full (critical above 95%). What is wrong comes first in the one line it prints.
    """,
)
def check(
    run: Run,
    lag: Threshold | None,
    backlog: Threshold | None,
    age: Threshold | None,
    failed: Threshold | None,
    dead: Threshold | None,
    pressure: Threshold | None,
    topic: list[str],
    queue: list[str],
) -> int:
    try:
        with _samples(run) as look:
            sample = look()
    except ConfigError as error:
        return _verdict(run, UNKNOWN, [(UNKNOWN, str(error))], {})
    except (PenstockError, OSError) as error:
        return _verdict(run, CRITICAL, [(CRITICAL, f"{type(error).__name__}: {error}")], {})
    nothing_failed = failed or Threshold("0:1000000000", values.count)
    nothing_dead = dead or Threshold("0:1000000000", values.count)
    not_too_full = pressure or Threshold("75:95", _percent)
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
    for groups in sample.queues.values():
        for group in groups:
            if queue and group.name not in queue:
                continue
            name = group.name if group.group == "default" else f"{group.name}/{group.group}"
            _judge(found, worst, "backlog", backlog, group.ready, f"{group.ready:,} messages are ready in {name}")
            oldest = group.oldest_age or 0.0
            _judge(found, worst, "age", age, oldest, f"a message of {name} waits for {show_duration(oldest)}")
            _judge(found, worst, "failed", nothing_failed, group.failed, f"{group.failed:,} messages of {name} failed")
            _judge(found, worst, "dead", nothing_dead, group.dead, f"{group.dead:,} dead letters from {name}")
    # What has a threshold of its own was judged above; the rest of what is wrong is a warning.
    found += [(WARNING, one.says) for one in sample.findings if one.kind in ("disk", "pipeline", "oldest")]
    _judge(found, worst, "pressure", not_too_full, sample.pressure, f"the writer is {sample.pressure:.0%} full")
    code = max((severity for severity, _ in found), key=(FINE, WARNING, UNKNOWN, CRITICAL).index, default=FINE)
    return _verdict(run, code, found, worst)


def _judge(
    found: list[tuple[int, str]], worst: dict[str, float], name: str, limit: Threshold | None, value: float, says: str
) -> None:
    worst[name] = max(worst.get(name, 0.0), value)
    severity = limit.judge(value) if limit is not None else FINE
    if severity:
        found.append((severity, says))


def _verdict(run: Run, code: int, found: list[tuple[int, str]], worst: dict[str, Any]) -> int:
    name = ("OK", "WARNING", "CRITICAL", "UNKNOWN")[code]
    found.sort(key=lambda one: -(FINE, WARNING, UNKNOWN, CRITICAL).index(one[0]))
    if run.json:
        run.document({"status": name, "code": code, "problems": [says for _, says in found], **worst})
        return code
    said = "; ".join(says for _, says in found) or "all is well"
    measured = " ".join(f"{key}={value:g}" for key, value in sorted(worst.items()))
    run.line(f"PENSTOCK {name} - {said}" + (f" | {measured}" if measured else ""))
    return code
