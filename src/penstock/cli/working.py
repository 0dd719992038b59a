"""Workers, and messages in and out of queues: work, push, take, settle."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import (
    NOTHING,
    CommandContext,
    Nothing,
    Record,
    command,
    did_you_mean,
    queue_command,
)
from penstock.cli.output import event_record, pretty_payload, safe, safe_lines
from penstock.cli.values import (
    choice,
    count,
    duration,
    json_value,
    load_named,
    moment,
    number,
    queue_names,
    the_headers,
)
from penstock.errors import StaleDelivery

if TYPE_CHECKING:
    from penstock.queue.tasks.registry import Tasks
    from penstock.surface.delivery import Delivery
    from penstock.surface.journal import Journal
    from penstock.surface.queue import Queue


POLL_SECONDS = 0.2
"""The system may give a signal to another thread, which does not end the main thread's wait: Python calls the handler
when that thread next runs."""


QUEUE_SECONDS = 0.5
"""Seconds between two looks for a queue that is not there yet."""


class StopSignals:
    """Within its block, SIGINT and SIGTERM are noted and do nothing else.

    A `threading.Event` would not do: its `set` takes a lock that the interrupted thread may hold at that moment.
    """

    def __init__(self) -> None:
        self._came: SimpleQueue[int] = SimpleQueue()
        self.asked = False
        """Whether one came."""

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._came.put(number)

    def wait(self, seconds: float) -> bool:
        """Waits for so long, or until a signal comes; whether one came."""
        deadline = time.monotonic() + seconds
        while not self.asked and (left := deadline - time.monotonic()) > 0:
            with suppress(Empty):
                self._came.get(timeout=min(left, POLL_SECONDS))
        return self.asked


@command(
    "work",
    "penstock work emails shop.mail:send --concurrency 4",
    "penstock work shop.jobs:tasks",
    also="create takeover",
)
@click.argument("queue", shell_complete=queue_names, help="the queue; or, alone, module:name of a penstock.Tasks")
@click.argument("handler", required=False, help="the function: module:function; it gets the delivery, may be async")
@click.option("-c", "--concurrency", type=count, default="1", help="messages at a time")
@click.option("--ahead", type=number, help="messages it takes beyond those it works on; none, if not said")
@click.option("--group", default="default", help="for this group")
@click.option("--consumer", help="under this name")
@click.option("--lease", type=duration, help="for how long messages are held")
@click.option("--until-empty", is_flag=True, help="end when nothing is left to take")
@choice(
    "--log-level",
    "debug info warning error",
    default="warning",
    help="what is logged: failures are warnings, those given up errors",
)
def work(
    context: CommandContext,
    queue: str,
    handler: str | None,
    until_empty: bool,
    log_level: str,
    **given: Any,
) -> None:
    """Runs a worker: gives a queue's messages to a function of yours.

    The module is looked for in the current folder first. A function that returns acknowledges its message; one that
    raises gives it back, and it comes again after about 5 s, 30 s, 3 min, 10 min, unless the queue's policy says when.
    SIGINT and SIGTERM let the messages in hand finish. With the name of a penstock.Tasks alone it runs the tasks of all
    its queues, in the journal they were made with, and makes the queues that are not there. Else it waits for a queue
    that is not there yet.
    """
    import logging

    tasks = None if handler is not None else _tasks(queue)
    function: Any = None if handler is None else load_named(handler)
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
        for worker in workers:
            worker.start()
        named = ", ".join(handle.name for handle in handles)
        context.note(
            f"working on {named} of {journal.describe().location} with {handler or queue}, "
            f"{given['concurrency']} at a time; Ctrl-C ends it"
        )
        while all(worker.alive for worker in workers) and not stop.wait(0.1):
            if until_empty and all(_is_empty(handle, given["group"]) for handle in handles):
                break
        for worker in workers:
            worker.stop()
    context.note("ended")


def _awaited(context: CommandContext, journal: Journal, name: str, stop: StopSignals) -> Queue:
    """The queue; waits for it, as a worker may start before the program that makes it. A misspelt name is an error."""
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
    """The journal that tasks were made with, else the command's; UsageError when --url names another one."""
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
    except Locked:  # an engine of one process: only this one can have it open
        return True


def _tasks(path: str) -> Tasks:
    """The tasks that `module:name` names."""
    from penstock.queue.tasks.registry import Tasks

    if ":" not in path:
        raise click.UsageError(
            f"HANDLER is missing: the function that gets the messages of {path!r}, like shop.mail:send; "
            "or give the name of a penstock.Tasks alone, like shop.jobs:tasks"
        )
    found = load_named(path, "a penstock.Tasks", "shop.jobs:tasks", also=(Tasks,))
    if not isinstance(found, Tasks):
        raise click.UsageError(f"{path} is no penstock.Tasks: to run a function, name its queue first")
    if not found.queues():
        raise click.UsageError(f"{path} has no tasks: make some with @tasks.task")
    return found


@command("workers", "penstock workers", "penstock workers --queue emails", "penstock workers --forget orders:billing")
@click.option("--queue", "only", metavar="QUEUE", shell_complete=queue_names, help="those of this queue only")
@click.option("--forget", metavar="WORKER", help="this one's failure was seen; it is not shown any more")
@click.option("--traceback", is_flag=True, help="where each failed, in place of the table")
def workers(context: CommandContext, only: str | None, forget: str | None, traceback: bool) -> None:
    """Shows workers: their machine, since when they work, their last sign of life, what they have in hand.

    Those that failed too often and gave up come first: `penstock check` warns of them until they are started again.
    Other consumers that gave their name are shown as well; one that ended without saying so is forgotten after a day.
    """
    import msgspec

    from penstock.errors import UnknownQueue
    from penstock.observe import workers as reports

    if forget is not None:
        with context.journal() as journal:
            if not reports.forget(journal, forget):
                raise Nothing(f"no worker {forget!r} gave up")
        context.record({"worker": forget, "forgotten": True})
        return
    with context.journal(read_only=True) as journal:
        found = [one for one in reports.gave_up(journal) if only is None or one.worker.startswith(f"{only}:")]
        if only is not None:
            there = [(only, one) for one in context.existing_queue(journal, only).consumers()]
        else:
            there = []
            for name in journal.queues():
                with suppress(UnknownQueue):  # dropped this very moment
                    there += [(name, one) for one in journal.queue(name, create=False).consumers()]
    if context.json:
        for one in found:
            context.document(one)
        for name, consumer in there:
            context.document({"queue": name} | msgspec.to_builtins(consumer))
    elif traceback and found:
        for one in found:
            context.line(safe(f"{one.worker}: {one.error or ''}"), "bold")
            context.line(safe_lines(one.traceback or ""))
    else:
        rows = [(one.worker, one.at, one.error, one.host, one.pid) for one in found]
        context.rows(("Worker", "Gave up", "Error", "Host", "Pid"), rows)
        lines = [
            (name, one.group, one.name, one.host, one.state, one.since, one.last_seen, one.in_hand)
            for name, one in there
        ]
        columns = ("Queue", "Group", "Worker", "Host", "State", "Since", "Last seen", "In hand")
        context.rows(columns, lines, otherwise="" if rows else "no worker is there, and none gave up")


def _is_empty(queue: Queue, group: str) -> bool:
    stats = queue.stats(group)
    return stats.ready + stats.in_flight + stats.delayed == 0


# ── Messages in and out of queues: push, take, settle ──


BATCH = 1000
"""Lines pushed in one commit."""


@command(
    "push",
    """penstock push emails '{"to": "ada@example.com"}'""",
    """penstock push emails '{"to": "ada@example.com"}' --delay 10m --dedup welcome-ada""",
    also="create takeover",
)
@click.argument("queue", shell_complete=queue_names, help="the queue; it is made when it is not there")
@click.argument("payload", required=False, help="the payload as JSON; - (or nothing) pushes lines of standard input")
@click.option("--kind", default="message", help="the message's kind")
@click.option("--key", help="its ordering key: messages of one key are delivered in order, one at a time")
@click.option("--priority", type=int, default=0, help="its priority, in a queue that has them")
@click.option("--front", is_flag=True, help="before everything that waits, in any queue")
@click.option("--delay", type=duration, default="0s", help="not before so much time has passed")
@click.option("--not-before", type=moment, help="not before this time")
@click.option("--dedup", help="push once only within the queue's window")
@click.option("--max-attempts", type=number, help="its own number of deliveries")
@the_headers
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
        value = payload if text else json_value(payload)
        with context.journal() as journal:
            context.receipt(journal.queue(queue).push(value, **given), "pushed")
        return
    if given["dedup"] is not None:
        raise click.UsageError("--dedup is for one message")
    with context.journal() as journal:
        handle = journal.queue(queue)
        total = 0
        lines: list[Any] = []
        for at, line in enumerate(context.lines("message"), 1):
            if not line.strip():
                continue
            try:
                decoded = line.decode().rstrip("\r\n")
                lines.append(decoded if text else json_value(decoded))
            except ValueError as error:
                raise click.UsageError(f"line {at}: {error}") from None
            if len(lines) >= BATCH:
                total += len(handle.push_many(lines, **given))
                lines = []
        total += len(handle.push_many(lines, **given)) if lines else 0
    context.record({"queue": queue, "pushed": total})


# ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@queue_command(
    "take",
    "penstock take emails",
    "penstock take emails --wait 30s --settle ack --json",
    writes=True,
    also="create takeover",
)
@click.option("-n", "--limit", type=count, default="1", help="how many")
@click.option("--group", default="default", help="for this group")
@click.option("--consumer", help="under this name")
@click.option("--wait", type=duration, default="0s", help="how long to wait for one")
@click.option("--lease", type=duration, help="for how long")
@click.option("--newest", is_flag=True, help="from the other end")
@choice("--settle", "ack nack dead release none", help="what becomes of them; none: they stay leased")
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
        context.note(f"no message is ready in {queue.name}")
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


def _settle(delivery: Delivery, how: str, error: str | None) -> None:
    if how == "ack":
        delivery.ack()
    elif how in ("nack", "dead"):
        delivery.nack(error=error, dead=how == "dead")
    elif how == "release":
        delivery.release()


def _say_delivery(context: CommandContext, delivery: Delivery, settled: str | None = None) -> None:
    from penstock.documents.events import event_document

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
@choice("--as", "how", "ack nack dead release extend", default="ack", help="what becomes of it")
@click.option("--error", help="the error to give with nack or dead")
@click.option("--delay", type=duration, help="how long nack keeps it back, if not the policy's")
@click.option("--lease", type=duration, help="how long extend keeps it, if not the policy's")
def settle(
    context: CommandContext,
    queue: Queue,
    delivery: str,
    how: str,
    error: str | None,
    delay: float | None,
    lease: float | None,
) -> Record:
    """Settles a delivery by the token that `take --settle none` printed."""
    held = queue.delivery(delivery)
    if how == "extend":
        held.extend(lease)
        return {"seq": held.seq, "deadline": held.deadline}
    if how == "nack":
        held.nack(delay=delay, error=error)
    else:
        _settle(held, how, error)
    return {"seq": held.seq, "settled": how}
