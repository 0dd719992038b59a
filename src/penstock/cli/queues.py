"""Queues: messages in and out, workers, inspection, repair of failures, periodic messages, pauses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import values
from penstock.cli.command import NOTHING, CommandContext, Nothing, command, queue_command
from penstock.cli.output import event_record, payload_text, pretty_payload, safe, safe_lines
from penstock.core.consuming.stopping import StopSignals
from penstock.core.names import did_you_mean
from penstock.core.units import in_parts, pluralize, show_duration
from penstock.errors import StaleDelivery

if TYPE_CHECKING:
    from penstock import Delivery, Journal, Queue, Tasks
    from penstock.acts import Done, Outcome
    from penstock.core.model.conditions import Where
    from penstock.core.model.failure import Attempt
    from penstock.core.observe.sample import FailedMessage
    from penstock.core.queue.inspect import MessageState


WIDEST = 60
"""The maximum number of characters of an error or a payload in a table's cell."""

with_attempts = click.option(
    "--attempts", is_flag=True, help="each failed attempt (when, who, how it ended), in place of the table"
)
with_traceback = click.option("--traceback", is_flag=True, help="where each failed, in place of the table")
with_by_error = click.option(
    "--by-error", is_flag=True, help="all of them grouped by error, each group with the condition that chooses it"
)
only_group = click.option("--group", help="this group only")
default_group = click.option("--group", default="default", help="of this group")
at_most = click.option("-n", "--limit", type=values.number, default="100", help="how many at the most")
limited = click.option("-n", "--limit", type=values.number, help="how many at the most")
conditional = click.option("--where", type=values.condition, help="only those for which this holds")
with_dry_run = click.option("--dry-run", is_flag=True, help="only count them")


def unless_dry(given: dict[str, Any]) -> bool:
    return not given["dry_run"]


@command("queues", "penstock queues", "penstock queues mail --json")
@click.argument("pattern", required=False, help="only queues whose name contains this")
def queues(context: CommandContext, pattern: str | None) -> None:
    """Lists the queues: workers, messages by state, the age of the oldest, the last failure, and which are paused.

    A message given up counts once, as dead, in the queue it comes from. The row of a dead-letter queue says how many
    dead letters it keeps, and counts none of them as ready. `penstock top` shows rates and the trend.
    """
    with context.journal(read_only=True) as journal:
        sample = journal.stats()
    rows: list[tuple[object, ...]] = []
    for one in (one for _, groups in sorted(sample.queues.items()) for one in groups):
        if pattern is not None and pattern not in one.name:
            continue
        counts = (one.name, one.group, one.workers, one.ready, one.in_flight, one.delayed, one.failed, one.dead)
        if context.json:
            rows.append((*counts, one.oldest_age, one.last_failed_at, one.last_error, one.letters, one.paused))
            continue
        notes = ["paused"] * one.paused
        notes += [f"keeps {pluralize(one.letters, 'dead letter')}"] if one.letters else []
        failed = _cut(one.last_failure(sample.at))
        rows.append((*counts, show_duration(one.oldest_age), failed, ", ".join(notes)))
    otherwise = "no queues yet: `penstock push QUEUE '{…}'` makes one"
    if pattern is not None:
        otherwise = f"no queue's name contains {pattern!r}"
    last = ("Last failed at", "Last error", "Letters", "Paused") if context.json else ("Last failure", "Note")
    columns = ("Queue", "Group", "Workers", "Ready", "In flight", "Delayed", "Failed", "Dead", "Oldest", *last)
    context.rows(columns, rows, otherwise=otherwise)


@queue_command("peek", "penstock peek emails -n 3")
@click.option("-n", "--limit", type=values.number, default="10", help="how many")
@default_group
def peek(context: CommandContext, queue: Queue, limit: int, group: str) -> None:
    """Shows the messages that would be taken next, without taking them."""
    for event in queue.peek(limit, group=group):
        context.event(event)


@queue_command("pending", "penstock pending emails")
@only_group
def pending(context: CommandContext, queue: Queue, group: str | None) -> None:
    """Shows the deliveries in flight: who holds what until when."""
    held = queue.pending(group)
    if context.json:
        for one in held:
            context.document(one)
        return
    rows = [
        (one.seq, one.group, one.consumer, one.attempt, one.progress, one.delivered_at, one.deadline, one.token)
        for one in held
    ]
    columns = ("Seq", "Group", "Consumer", "Attempt", "Progress", "Delivered at", "Deadline", "Token")
    context.rows(columns, rows, otherwise="nothing is in flight")


@queue_command(
    "messages",
    "penstock messages emails",
    "penstock messages emails --state delayed --json",
    "penstock messages news --group search --after 1000",
    "penstock messages emails --state failed --attempts",
)
@values.choice("--state", "ready delayed in_flight failed", help="only those")
@only_group
@click.option("--after", type=values.position, default="0", help="from this position on")
@at_most
@with_attempts
def messages(
    context: CommandContext, queue: Queue, state: MessageState | None, limit: int, attempts: bool, **given: Any
) -> None:
    """Shows what is not settled: attempts, last error, due time, priority, who holds it.

    The next page begins --after the last position. With --json each message comes with its event.
    """
    found = queue.messages(state, limit=limit, **given)
    if context.json:
        for one in found:
            context.document(one)
        return
    if attempts:
        for one in found:
            _say_attempts(context, f"{queue.name}#{one.seq}: {one.state.replace('_', ' ')}", one.failed_attempts)
    rows = [
        (
            *(one.seq, "blocked" if one.blocked else one.state.replace("_", " "), one.group),
            *(f"{one.attempts}/{one.max_attempts}", one.priority, one.key, one.due or one.deadline, one.consumer),
            *(one.progress, _cut(safe(one.error or "–")), _cut(payload_text(one.event))),
        )
        for one in ([] if attempts else found)
    ]
    what = ("Seq", "State", "Group", "Attempts", "Priority", "Key")
    columns = (*what, "Until", "Consumer", "Progress", "Error", "Payload")
    nothing = "nothing waits" if state is None else f"no message is {state.replace('_', ' ')}"
    context.rows(columns, rows, otherwise="" if found else nothing)
    if found and len({one.seq for one in found}) >= limit:
        context.note(f"there may be more: --after {found[-1].seq}")


@queue_command("failed", "penstock failed emails", "penstock failed emails --by-error")
@default_group
@at_most
@conditional
@with_by_error
@with_traceback
@with_attempts
def failed(context: CommandContext, queue: Queue, group: str, **how: Any) -> None:
    """Shows messages that were given up and have no dead-letter queue to go to."""
    _say_failures(context, queue.failures(group), "nothing has failed", **how)


@queue_command(
    "dead",
    "penstock dead emails",
    "penstock dead emails --by-error",
    about="the queue they come from, or the dead-letter queue itself",
)
@at_most
@conditional
@with_by_error
@with_traceback
@with_attempts
def dead(context: CommandContext, queue: Queue, **how: Any) -> None:
    """Shows a queue's dead letters: its message, its place in the dead-letter queue, and why it was given up."""
    _say_failures(context, queue.dead_letters(), "no dead letters", **how)


def _say_attempts(context: CommandContext, heading: str, tried: list[Attempt]) -> None:
    context.line(heading, "bold")
    rows = [(one.number, one.delivered_at, one.ended_at, one.ended, one.consumer, one.host, one.error) for one in tried]
    columns = ("Attempt", "Delivered at", "Ended at", "Ended", "Consumer", "Host", "Error")
    context.rows(columns, rows, otherwise="none has failed")


def _say_failures(
    context: CommandContext,
    found: Iterator[FailedMessage],
    otherwise: str,
    *,
    limit: int,
    where: Where | None,
    by_error: bool,
    traceback: bool,
    attempts: bool,
) -> None:

    from penstock.core.events import GivenUpEvent
    from penstock.core.observe import failures

    rows: list[tuple[object, ...]] = []
    if where is not None:
        found = (one for one in found if where.matches(GivenUpEvent.of(one.event, one)))
    if by_error:
        rows = [(one.count, _cut(one.error), one.since, one.last, one.where) for one in failures.by_error(found)]
        context.rows(("Count", "Error", "Since", "Last", "Condition"), rows, otherwise=otherwise)
        return
    shown = list(islice(found, limit + 1))
    for failure in shown[:limit]:
        event = failure.event
        was, letter = f"{event.topic}#{event.seq}", None
        if event.topic != failure.queue:
            was, letter = f"{failure.queue}#{event.headers.get('dead-seq', '?')}", was
        if context.json:
            context.document(failure, message=was, letter=letter)
            continue
        heading = safe(f"{was}: {failure.error or failure.reason}")
        if attempts:
            _say_attempts(context, heading, failure.failed_attempts)
        if traceback:
            context.line(heading, "bold")
            context.line(safe_lines(failure.traceback or "no traceback: it was not given up for an exception"))
        cells = _cut(safe(failure.error or "–")), _cut(payload_text(event))
        rows.append((was, letter, failure.attempts, failure.reason, failure.at, *cells))
    if not context.json and not (shown and (traceback or attempts)):
        columns = ("Message", "Dead letter", "Attempts", "Reason", "At", "Error", "Payload")
        context.rows(columns, rows, otherwise=otherwise)
    if len(shown) > limit:
        context.note(f"… and more; --limit shows more than {limit}")


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


# ── Repairing queues: messages sent back, moved, removed ──


def rate(text: str) -> float:
    """Returns a rate in messages a second from text: 100, 100/s, 20/m."""
    from penstock.core.queue.flow import read_rate

    found = read_rate(text if "/" in text else f"{text}/s")
    return found.count / found.period_ms * 1000


@queue_command(
    "redrive",
    "penstock redrive emails --dry-run",
    "penstock redrive emails --rate 50/s --where \"error contains 'Timeout'\"",
    about="the queue whose messages failed, or a dead-letter queue",
    writes=unless_dry,
)
@click.option("--to", metavar="QUEUE", shell_complete=values.queue_names, help="send them to this queue instead")
@limited
@conditional
@click.option("--rate", "slowly", type=rate, help="no faster than this: 100/s, 30/m")
@with_dry_run
def redrive(
    context: CommandContext, queue: Queue, to: str | None, slowly: float | None, dry_run: bool, **which: Any
) -> Done:
    """Sends dead letters and failed messages back to their queue, with a fresh budget."""
    from penstock import acts

    target = context.existing_queue(queue.journal, to) if to is not None else None
    act = acts.SendBack(queue, **which, to=target, rate=slowly)
    return acts.redriven(act.count(), "would_redrive", "found to send back") if dry_run else context.perform(act)


@queue_command("purge", "penstock purge emails --yes", writes=True)
@values.with_yes
def purge(context: CommandContext, queue: Queue, yes: bool) -> Done:
    """Removes every message of a queue, also those in flight."""
    from penstock import acts

    return context.perform(acts.PurgeQueue(queue), yes)


@command("drop", "penstock drop old-emails --yes", "penstock drop old-orders --topic --yes")
@click.argument("queue", shell_complete=values.queue_names, help="the queue")
@click.option("--topic", is_flag=True, help="remove the topic of this name, with everything that belongs to it")
@click.option("--force", is_flag=True, help="with --topic: also when it has cursors, sealed files or a queue")
@values.with_yes
def drop(context: CommandContext, queue: str, topic: bool, force: bool, yes: bool) -> None:
    """Removes a queue with its messages, groups and schedules; or, with --topic, a whole topic.

    The topic of a queue's name stays, and with it the count of positions: a queue made again goes on from there. With
    --topic nothing stays but where it ended: a topic made again under this name goes on after it.
    """
    from penstock import acts

    if force and not topic:
        raise click.UsageError("--force is for --topic: a queue is dropped whatever is in it")
    with context.journal() as journal:
        if topic:
            context.done(
                context.perform(acts.DropTopic(context.existing_topic(journal, queue), force), yes), topic=queue
            )
            return
        if queue not in journal.queues() and queue in journal.topics():
            raise Nothing(f"there is no queue {queue!r}; there is a topic: `penstock drop {queue} --topic`")
        context.done(context.perform(acts.DropQueue(context.existing_queue(journal, queue)), yes), queue=queue)


@queue_command(
    "discard",
    "penstock discard emails 17 18",
    "penstock discard emails --where 'payload.test = true' --dry-run",
    writes=unless_dry,
)
@click.argument("positions", nargs=-1, type=values.position, help="the messages' positions")
@conditional
@limited
@with_dry_run
def discard(
    context: CommandContext,
    queue: Queue,
    positions: tuple[int, ...],
    where: Where | None,
    limit: int | None,
    dry_run: bool,
) -> Done:
    """Settles messages that are not in flight as if they had been handled: by position, or by a condition.

    Failed messages can be discarded too. Those in flight are left alone.
    """
    if bool(positions) == (where is not None):
        raise click.UsageError("say which: positions, or --where")
    from penstock import acts

    if where is not None and where.of_failures:
        given_up = acts.Discard.given_up(queue, where, limit)
        return given_up.count_only() if dry_run else context.perform(given_up)
    held = {one.seq for one in queue.pending()}
    if where is not None:
        chosen = [event.seq for event in queue if event.seq not in held and where.matches(event)]
    else:
        chosen = [seq for seq in dict.fromkeys(positions) if not dry_run or seq not in held]
        chosen = [seq for seq in chosen if not dry_run or queue.get(seq) is not None]
    act = acts.Discard(queue.journal, f"of {queue.name}", {queue.name: chosen[:limit]})
    return act.count_only() if dry_run else context.perform(act)


@queue_command("run-now", "penstock run-now emails 17 18", writes=True)
@click.argument("positions", nargs=-1, required=True, type=values.position, help="the messages' positions")
@only_group
def run_now(context: CommandContext, queue: Queue, positions: tuple[int, ...], group: str | None) -> Done:
    """Makes delayed messages ready at once, including messages that wait for their retry."""
    from penstock import acts

    return context.perform(acts.RunNow(queue, list(positions), group))


@queue_command(
    "move",
    "penstock move emails emails.later --where 'payload.total > 100'",
    "penstock move emails slow -n 50",
    writes=True,
)
@click.argument("to", shell_complete=values.queue_names, help="the queue they go to")
@limited
@conditional
def move(context: CommandContext, queue: Queue, to: str, **which: Any) -> Done:
    """Moves messages that are not in flight to the end of another queue, a thousand in a commit."""
    from penstock import acts

    return context.perform(acts.MoveMessages(queue, context.existing_queue(queue.journal, to), **which))


# ── Periodic messages, and stopping a queue for a while ──


def _changes_schedule(given: dict[str, Any]) -> bool:
    return bool(given["remove"]) or given["every"] is not None or given["cron"] is not None


@queue_command(
    "schedule",
    "penstock schedule reports",
    "penstock schedule reports daily --cron '0 6 * * mon-fri' --timezone Europe/Zurich",
    "penstock schedule reports daily --remove",
    writes=_changes_schedule,
    also="create",
)
@click.argument("name", required=False, help="the periodic message's name")
@click.option("--every", type=values.duration, help="push every so often: 90s, 1h30m")
@click.option("--cron", metavar="LINE", help="push by a cron line of five fields")
@click.option("--timezone", default="UTC", help="the cron line's time zone")
@click.option("--payload", metavar="JSON", default="null", help="the payload as JSON")
@click.option("--kind", default="message", help="the messages' kind")
@values.choice(
    "--missed", "all last none", default="last", help="which ticks are made up for that no program was there for"
)
@click.option("--remove", is_flag=True, help="remove it")
def schedule(
    context: CommandContext,
    queue: Queue,
    name: str | None,
    every: float | None,
    cron: str | None,
    payload: str,
    remove: bool,
    **given: Any,
) -> Done | None:
    """Shows, adds or removes a queue's periodic messages."""
    from penstock import acts

    if every is not None and cron is not None:
        raise click.UsageError("give --every or --cron, not both")
    interval = every if every is not None else cron
    if name is None and (remove or interval is not None):
        raise click.UsageError("NAME is missing: periodic messages have names")
    if interval is not None:
        context.perform(acts.AddSchedule(queue, str(name), interval, values.json_value(payload), **given))
    if remove:
        return context.perform(acts.RemoveSchedule(queue, str(name)))
    found = [one for one in queue.schedules() if name is None or one.name == name]
    rows = [
        (one.name, one.cron or f"every {one.interval:g} s", one.timezone, one.next_tick, one.last_tick) for one in found
    ]
    context.rows(("Name", "When", "Timezone", "Next", "Last"), rows, otherwise="no periodic messages")
    return None


@queue_command("pause", "penstock pause emails", "penstock pause orders --group audit", writes=True)
@only_group
def pause(context: CommandContext, queue: Queue, group: str | None) -> Done:
    """Hands out no message until `resume`, to any process; the queue accepts pushes.

    Messages in flight go on. `penstock queues` shows paused queues, and `penstock check` warns of them.
    """
    from penstock import acts

    return context.perform(acts.PauseQueue(queue, group))


@queue_command("resume", "penstock resume emails", "penstock resume orders --group audit", writes=True)
@only_group
def resume(context: CommandContext, queue: Queue, group: str | None) -> Done:
    """Ends a pause: workers and takes that wait go on at once.

    The pause of the whole queue and the pauses of its groups end separately.
    """
    from penstock import acts

    return context.perform(acts.ResumeQueue(queue, group))


# ── Workers ──


QUEUE_SECONDS = 0.5
"""The number of seconds between two checks for a queue that does not exist yet."""


def _supervise(
    context: CommandContext,
    named: list[str],
    processes: int,
    reload: bool,
    until_empty: bool,
    log_level: str,
    given: dict[str, Any],
) -> None:
    """Runs workers in separate processes, and starts a new process when one was killed."""
    from penstock.core.consuming.processes import Supervisor

    options = ["--log-level", log_level, *(["--until-empty"] if until_empty else [])]
    options += ["--create"] if context.create else []
    options += ["--url", context.url] if context.url else []
    options += ["--token", context.token] if context.token else []
    calls = []
    for number in range(processes):
        own = dict(given)
        if own["consumer"] is not None and processes > 1:
            own["consumer"] = f"{own['consumer']}-{number + 1}"
        pairs = [(f"--{name}", str(value)) for name, value in own.items() if value is not None]
        calls.append((["work", *named, *options, *(word for pair in pairs for word in pair)],))
    with StopSignals() as stop:
        code = Supervisor(_run_again, calls, context.note, Path.cwd() if reload else None).run(stop.wait)
    if code:
        raise SystemExit(code)


def _run_again(words: list[str]) -> None:
    """Runs a command in a separate process."""
    from penstock.cli.main import run
    from penstock.cli.output import prepare_streams

    prepare_streams()
    sys.exit(run(words))


@command(
    "work",
    "penstock work emails shop.mail:send --concurrency 4",
    "penstock work shop.jobs:tasks",
    also="create takeover",
)
@click.argument(
    "queue", shell_complete=values.queue_names, help="the queue; or, alone, module:name of a penstock.Tasks"
)
@click.argument("handler", required=False, help="the function: module:function; it gets the delivery, may be async")
@click.option("-c", "--concurrency", type=values.count, default="1", help="messages at a time")
@click.option("--ahead", type=values.number, help="messages it takes beyond those it works on; none, if not said")
@click.option("--group", default="default", help="for this group")
@click.option("--consumer", help="under this name")
@click.option("--lease", type=values.duration, help="for how long messages are held")
@click.option("--until-empty", is_flag=True, help="end when nothing is left to take")
@click.option(
    "--processes", type=values.count, help="work in so many processes; a call that exceeds its time limit ends its own"
)
@click.option(
    "--reload", is_flag=True, help="for development: start again when a Python file below this folder changes"
)
@values.choice(
    "--log-level",
    "debug info warning error",
    default="info",
    help="what is logged: successes are infos, failures warnings, those given up errors",
)
def work(
    context: CommandContext,
    queue: str,
    handler: str | None,
    until_empty: bool,
    processes: int | None,
    reload: bool,
    log_level: str,
    **given: Any,
) -> None:
    """Runs a worker: gives a queue's messages to your function.

    The worker looks for the module in the current folder first. A function that returns acknowledges its message. A
    function that raises gives the message back. The message comes again after about 5 s, 30 s, 3 min, 10 min, unless
    the queue's policy says when. SIGINT and SIGTERM let the messages in hand finish. A second signal ends the process
    at once, and these messages come again when their leases have ended.

    With the name of a penstock.Tasks alone the worker runs the tasks of all their queues, in the journal of the tasks,
    and makes missing queues. With the name of a queue it waits until the queue exists. Several processes are for work
    that keeps the processor busy. They need a store that several processes may open.
    """
    import logging

    if processes is not None or reload:
        named = [queue, *([handler] if handler else [])]
        _supervise(context, named, processes or 1, reload, until_empty, log_level, given)
        return
    from penstock.core.queue.tasks.processes import work as work_until

    tasks = None if handler is not None else _tasks(queue)
    function: Any = None if handler is None else values.load_named(handler)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with StopSignals() as stop, _journal_of(tasks, context) as journal:
        if tasks is not None:
            handles = [journal.queue(name) for name in tasks.queues()]
            workers = tasks.workers(**given)
        else:
            handles = [
                context.existing_queue(journal, queue) if until_empty else _awaited(context, journal, queue, stop)
            ]
            workers = [handles[0].worker(function, **given)]
        names = ", ".join(handle.name for handle in handles)
        context.note(
            f"working on {names} of {journal.describe().location} with {handler or queue}, "
            f"{given['concurrency']} at a time; Ctrl-C ends it"
        )
        work_until(workers, stop, lambda: until_empty and all(_is_empty(one, given["group"]) for one in handles))
        if stop.asked:
            context.note("finishing what is in hand; Ctrl-C once more leaves it: it comes again once its lease ends")
        for worker in workers:
            worker.stop()
    context.note("ended")


@command(
    "task",
    "penstock task 01995c1e-9d3a-7c52-8c15-3f8f4be3c6a1",
    "penstock task 01995c1e-9d3a-7c52-8c15-3f8f4be3c6a1 --json",
)
@click.argument("id", help="the id of its receipt")
def task(context: CommandContext, id: str) -> None:
    """Shows what became of a task's call: waiting, running, done, failed or dead, with its result or error."""
    with context.journal(read_only=True) as journal:
        found = journal.task(id)
    if found is None:
        raise Nothing(f"there is no call with the id {id}, or its result is not kept any more")
    if context.json:
        context.document(found)
        return
    from msgspec.structs import asdict

    shown = {name: value for name, value in asdict(found).items() if value is not None and name != "binary"}
    trace = shown.pop("traceback", None)
    context.record({name.replace("_", " "): value for name, value in shown.items()})
    if trace:
        context.line(f"\n{safe_lines(trace)}")


def _awaited(context: CommandContext, journal: Journal, name: str, stop: StopSignals) -> Queue:
    """Returns the queue. Waits for a missing queue, because a worker may start before the program that makes the queue.

    A misspelt name raises an error.
    """
    told = False
    while True:
        try:
            return context.existing_queue(journal, name)
        except Nothing as missing:
            if did_you_mean(name, journal.queues()):
                raise
            if not told:
                context.note(f"{missing}. Waiting for it; Ctrl-C ends it")
                told = True
            if stop.wait(QUEUE_SECONDS):
                raise


@contextmanager
def _journal_of(tasks: Tasks | None, context: CommandContext) -> Iterator[Journal]:
    """Opens the journal with which the tasks were made, else the command's journal.

    Raises UsageError when --url names another journal.
    """
    bound = None if tasks is None else tasks.bound
    if bound is None:
        with context.journal() as journal:
            if tasks is not None:
                tasks.bind(journal)
            try:
                yield journal
            finally:
                if tasks is not None:
                    tasks.bind(None)
        return
    if context.url is not None and not _is_at(bound, context):
        raise click.UsageError(
            f"these tasks were made with the journal at {bound.describe().location}, and --url names another: leave "
            "--url out, or make them without a journal, Tasks()"
        )
    with bound:
        yield bound


def _is_at(journal: Journal, context: CommandContext) -> bool:
    from penstock.errors import Locked, NoStore

    try:
        with context.journal(read_only=True) as named:
            return named.id == journal.id
    except NoStore:
        return False
    except Locked:  # the engine allows one process: only this process can have the journal open
        return True


def _tasks(path: str) -> Tasks:
    """Returns the tasks that `module:name` names."""
    from penstock.core.queue.tasks.tasks import Tasks

    if ":" not in path:
        raise click.UsageError(
            f"HANDLER is missing: the function that gets the messages of {path!r}, like shop.mail:send; "
            "or give the name of a penstock.Tasks alone, like shop.jobs:tasks"
        )
    found = values.load_named(path, "a penstock.Tasks", "shop.jobs:tasks", also=(Tasks,))
    if not isinstance(found, Tasks):
        raise click.UsageError(f"{path} is no penstock.Tasks: to run a function, name its queue first")
    if not found.queues():
        raise click.UsageError(f"{path} has no tasks: make some with @tasks.task")
    return found


@command("workers", "penstock workers", "penstock workers --queue emails", "penstock workers --forget orders:billing")
@click.option("--queue", "only", metavar="QUEUE", shell_complete=values.queue_names, help="those of this queue only")
@click.option("--forget", metavar="WORKER", help="this one's failure was seen; it is not shown any more")
@click.option("--traceback", is_flag=True, help="where each failed, in place of the table")
def workers(context: CommandContext, only: str | None, forget: str | None, traceback: bool) -> None:
    """Shows workers: their machine, the work of each and its progress, their last failure and last sign of life.

    Workers that failed too often and gave up come first: `penstock check` warns of them until they are started again.
    Other consumers that gave their name are shown as well. A consumer that ended without saying so is forgotten after
    a day.
    """
    from penstock import acts
    from penstock.core.observe import workers as reports
    from penstock.errors import UnknownQueue

    if forget is not None:
        with context.journal() as journal:
            context.done(context.perform(acts.ForgetWorker(journal, forget)))
        return
    with context.journal(read_only=True) as journal:
        found = [one for one in reports.gave_up(journal) if only is None or one.worker.startswith(f"{only}:")]
        if only is not None:
            there = [(only, one) for one in context.existing_queue(journal, only).consumers()]
        else:
            there = []
            for name in journal.queues():
                with suppress(UnknownQueue):  # dropped at this moment
                    there += [(name, one) for one in journal.queue(name, create=False).consumers()]
    if context.json:
        for one in found:
            context.document(one)
        for name, consumer in there:
            context.document(consumer, queue=name)
    elif traceback and found:
        for one in found:
            context.line(safe(f"{one.worker}: {one.error or ''}"), "bold")
            context.line(safe_lines(one.traceback or ""))
    else:
        rows = [(one.worker, one.at, one.error, one.host, one.pid) for one in found]
        context.rows(("Worker", "Gave up", "Error", "Host", "Pid"), rows)
        now = datetime.now(UTC)
        lines = [
            (
                *(name, one.group, one.name, one.host, one.state, one.since, one.last_seen),
                *(one.works_on(now), _cut(one.last_failure(now))),
            )
            for name, one in there
        ]
        columns = ("Queue", "Group", "Worker", "Host", "State", "Since", "Last seen", "Works on", "Last failure")
        context.rows(columns, lines, otherwise="" if rows else "no worker is there, and none gave up")


def _is_empty(queue: Queue, group: str) -> bool:
    stats = queue.stats(group)
    return stats.ready + stats.in_flight + stats.delayed == 0


# ── Messages in and out of queues: push, take, settle ──


BATCH = 1000
"""The number of lines that one commit pushes."""


@command(
    "push",
    """penstock push emails '{"to": "ada@example.com"}'""",
    """penstock push emails '{"to": "ada@example.com"}' --delay 10m --dedup welcome-ada""",
    also="create takeover",
)
@click.argument("queue", shell_complete=values.queue_names, help="the queue; it is made when it is not there")
@click.argument("payload", required=False, help="the payload as JSON; - (or nothing) pushes lines of standard input")
@click.option("--kind", default="message", help="the message's kind")
@click.option("--key", help="its ordering key: messages of one key are delivered in order, one at a time")
@click.option("--priority", type=int, default=0, help="its priority, in a queue that has them")
@click.option("--front", is_flag=True, help="before everything that waits, in any queue")
@click.option("--delay", type=values.duration, default="0s", help="not before so much time has passed")
@click.option("--not-before", type=values.moment, help="not before this time")
@click.option("--dedup", help="push once only within the queue's window")
@click.option("--max-attempts", type=values.number, help="its own number of deliveries")
@values.the_headers
@click.option("--cause", metavar="ID", help="the id of the event that caused it")
@click.option("--text", is_flag=True, help="the payload is text, not JSON")
def push(context: CommandContext, queue: str, payload: str | None, text: bool, headers: Any, **given: Any) -> None:
    """Pushes a message to a queue; makes the queue when it is not there."""
    given["headers"] = dict(headers) or None
    if given.pop("front"):
        if given["priority"]:
            raise click.UsageError("--front is a priority of its own: leave --priority out")
        given["priority"] = "front"
    if payload is not None and payload != "-":
        value = payload if text else values.json_value(payload)
        with context.journal() as journal:
            context.receipt(journal.queue(queue).push(value, **given), "pushed")
        return
    if given["dedup"] is not None:
        raise click.UsageError("--dedup is for one message")
    with context.journal() as journal:
        handle = journal.queue(queue)
        parts = in_parts(_payloads(context, text), lambda _: 1, BATCH)
        total = sum(len(handle.push_many(part, **given)) for part in parts)
    context.record({"queue": queue, "pushed": total})


def _payloads(context: CommandContext, text: bool) -> Iterator[object]:
    """Yields the payloads on the lines of standard input."""
    for at, line in enumerate(context.lines("message"), 1):
        if line.strip():
            try:
                decoded = line.decode().rstrip("\r\n")
                yield decoded if text else values.json_value(decoded)
            except ValueError as error:
                raise click.UsageError(f"line {at}: {error}") from None


# ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@queue_command(
    "take",
    "penstock take emails",
    "penstock take emails --wait 30s --settle ack --json",
    writes=True,
    also="create takeover",
)
@click.option("-n", "--limit", type=values.count, default="1", help="how many")
@click.option("--group", default="default", help="for this group")
@click.option("--consumer", help="under this name")
@click.option("--wait", type=values.duration, default="0s", help="how long to wait for one")
@click.option("--lease", type=values.duration, help="for how long")
@click.option("--newest", is_flag=True, help="from the other end")
@values.choice("--settle", "ack nack dead release none", help="what becomes of them; none: they stay leased")
@click.option("--error", help="the error to give with nack or dead")
def take(
    context: CommandContext, queue: Queue, limit: int, settle: str | None, error: str | None, **given: Any
) -> int | None:
    """Takes messages from a queue and settles them: asks what to do, or does what --settle says.

    At a terminal, each message is shown and you say what becomes of it: ack, nack (it comes again), dead (given up),
    extend (more time), release (given back, no attempt counted). Without a terminal --settle must say it. Exit code 3
    when there was no message.
    """
    if settle is None and (context.json or not context.input.isatty()):
        raise click.UsageError("there is no terminal to ask at: say with --settle what becomes of the messages")
    taken = queue.take_many(limit, **given)
    if not taken:
        context.note(_why_none(queue, given["group"]))
        return NOTHING
    left = list(taken)
    try:
        for delivery in taken:
            if settle is None:
                _ask(context, delivery)
            else:
                _say_delivery(context, delivery, settle)
                context.flush()  # a message that was never shown must not be settled
                _settle(delivery, settle, error)
            left.remove(delivery)
    finally:
        for delivery in left:
            delivery.release()
    return None


def _why_none(queue: Queue, group: str) -> str:
    """Returns the reason why a take of a queue found nothing."""
    stats = queue.stats(group)
    if not stats.ready:
        return f"no message is ready in {queue.name}"
    waiting = f"{pluralize(stats.ready, 'message')} of {queue.name} cannot be taken now: "
    if stats.paused:
        return f"{waiting}it is paused, and `penstock resume {queue.name}` ends that"
    if stats.breaker == "open":
        return f"{waiting}too many failed lately, and its breaker is open"
    return f"{waiting}its rate, its max_in_flight or another message of the same key holds them back"


def _settle(delivery: Delivery, how: str, error: str | None) -> None:
    if how == "ack":
        delivery.ack()
    elif how in ("nack", "dead"):
        delivery.nack(error=error, dead=how == "dead")
    elif how == "release":
        delivery.release()


def _say_delivery(context: CommandContext, delivery: Delivery, settled: str | None = None) -> None:
    from penstock.core.documents.events import event_document

    held = {"attempt": delivery.attempt, "deadline": delivery.deadline}
    if context.json:
        about = {"group": delivery.group, "settled": settled, "event": event_document(delivery.event)}
        context.document({"token": delivery.token, **held, **about})
        return
    context.record({**event_record(delivery.event), **held, "token": delivery.token})
    context.line(pretty_payload(delivery.event))
    if settled is not None:
        context.line(f"→ {settled}", "dim")
    context.line("")


def _ask(context: CommandContext, delivery: Delivery) -> None:
    _say_delivery(context, delivery)
    answers = {"a": "ack", "n": "nack", "d": "dead", "e": "extend", "r": "release"}
    while True:
        context.err.write("[a]ck, [n]ack, [d]ead, [e]xtend, [r]elease? ")
        context.err.flush()
        line = context.input.readline()
        how = answers.get(line.strip().lower()[:1]) if line else "release"
        if how is None:
            continue
        try:
            if how == "extend":
                delivery.extend()
                context.note(f"yours until {delivery.deadline.astimezone():%H:%M:%S}")
                continue
            _settle(delivery, how, None)
        except StaleDelivery as error:
            context.note(f"too late: {error}")
        return


@queue_command(
    "settle",
    "penstock settle emails TOKEN",
    "penstock settle emails TOKEN --as nack --error 'mailbox full' --delay 10m",
    writes=True,
)
@click.argument("delivery", help="the delivery's token")
@values.choice("--as", "how", "ack nack dead release extend", default="ack", help="what becomes of it")
@click.option("--error", help="the error to give with nack or dead")
@click.option("--delay", type=values.duration, help="how long nack keeps it back, if not the policy's")
@click.option("--lease", type=values.duration, help="how long extend keeps it, if not the policy's")
def settle(
    context: CommandContext,
    queue: Queue,
    delivery: str,
    how: Outcome,
    error: str | None,
    delay: float | None,
    lease: float | None,
) -> Done:
    """Settles a delivery by the token that `take --settle none` or `pending` printed."""
    from penstock import acts

    return context.perform(acts.SettleDelivery(queue.delivery(delivery), how, error, delay, lease))
