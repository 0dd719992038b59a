"""Messages in and out of queues: push, take, settle, workers, periodic messages."""

from __future__ import annotations

import signal
import threading
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from penstock.cli import values
from penstock.cli.command import argument, command, flag, option
from penstock.cli.commands.queues.inspecting import check_count, existing_queue
from penstock.cli.context import Run
from penstock.cli.failure import NOTHING, Nothing, UsageError
from penstock.cli.loading import load_named
from penstock.cli.show import event_record, pretty_payload
from penstock.document import event_document, receipt_document
from penstock.errors import ConfigError, StaleDelivery

if TYPE_CHECKING:
    from penstock.surface.delivery import Delivery
    from penstock.surface.queue import Queue

SETTLEMENTS = ("ack", "nack", "dead", "release", "none")


@command(
    "push",
    "Pushes a message to a queue; makes the queue when it is not there",
    argument("queue", "the queue"),
    argument("payload", "the payload as JSON; - (or nothing) pushes every line of standard input", required=False),
    option("--kind", "the message's kind", default="message"),
    option("--key", "its ordering key: messages of one key are delivered in order, one at a time"),
    option("--priority", "its priority, in a queue that has them", metavar="NUMBER", default=0, convert=int),
    option("--delay", "not before so much time has passed", metavar="DURATION", default=0.0, convert=values.duration),
    option("--not-before", "not before this time", metavar="TIME", convert=values.moment),
    option("--dedup", "push once only within the queue's window"),
    option("--max-attempts", "its own number of deliveries", metavar="NUMBER", convert=values.count),
    option("--header", "a header", metavar="NAME=VALUE", many=True, convert=values.header),
    option("--cause", "the id of the event that caused it", metavar="ID"),
    flag("--text", "the payload is text, not JSON"),
    example=(
        """penstock push emails '{"to": "ada@example.com"}'""",
        """penstock push emails '{"to": "ada@example.com"}' --delay 10m --dedup welcome-ada""",
    ),
)
def push(
    run: Run,
    queue: str,
    payload: str | None,
    text: bool,
    header: list[tuple[str, str]],
    not_before: datetime | None,
    **given: Any,
) -> None:
    given |= {"headers": dict(header) or None, "not_before": not_before}
    with_lines = payload is None or payload == "-"
    if with_lines and given["dedup"] is not None:
        raise UsageError("--dedup is for one message")
    value = None if with_lines else _payload(str(payload), text)
    with run.journal() as journal:
        handle = journal.queue(queue)
        if not with_lines:
            receipt = handle.push(value, **given)
            if run.json:
                run.document(receipt_document(receipt))
            else:
                again = " (pushed before: nothing new was written)" if receipt.duplicate else ""
                run.line(f"{queue}#{receipt.seq}  {receipt.id}{again}")
            return
        total = 0
        lines: list[Any] = []
        for number, line in enumerate(run.input, 1):
            if not line.strip():
                continue
            try:
                lines.append(_payload(line.rstrip("\r\n"), text))
            except ConfigError as error:
                raise UsageError(f"line {number}: {error}") from None
            if len(lines) >= 1000:
                total += len(handle.push_many(lines, **given))
                lines = []
        total += len(handle.push_many(lines, **given)) if lines else 0
    run.record({"queue": queue, "pushed": total})


def _payload(text: str, plain: bool) -> Any:
    return text if plain else values.json_value(text)


# ── taking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
@command(
    "take",
    "Takes messages from a queue and settles them: asks what to do, or does what --settle says",
    argument("queue", "the queue"),
    option("-n --limit", "how many", metavar="NUMBER", default=1, convert=values.count),
    option("--group", "for this group", default="default"),
    option("--consumer", "under this name"),
    option("--wait", "how long to wait for one", metavar="DURATION", default=0.0, convert=values.duration),
    option("--lease", "for how long", metavar="DURATION", convert=values.duration),
    flag("--newest", "from the other end"),
    option(
        "--settle",
        "what becomes of them, without asking; none leaves them leased, for `penstock settle`",
        choices=SETTLEMENTS,
    ),
    option("--error", "the error to give with nack or dead"),
    example=("penstock take emails", "penstock take emails --wait 30s --settle ack --json"),
    details="""
    At a terminal, each message is shown and you say what becomes of it: ack, nack (it comes again), dead (given up),
    extend (more time), release (given back, no attempt counted). Without a terminal --settle must say it. Exit code 3
    when there was no message.
    """,
)
def take(
    run: Run,
    queue: str,
    limit: int,
    group: str,
    consumer: str | None,
    wait: float,
    lease: float | None,
    newest: bool,
    settle: str | None,
    error: str | None,
) -> int | None:
    check_count(limit, "--limit")
    asking = settle is None
    if asking and (run.json or not run.input.isatty()):
        raise UsageError("nobody is here to be asked: say with --settle what becomes of the messages")
    with run.journal() as journal:
        handle = existing_queue(journal, queue)
        taken = handle.take_many(limit, group=group, consumer=consumer, wait=wait, lease=lease, newest=newest)
        if not taken:
            run.note("no message")
            return NOTHING
        for delivery in taken:
            if asking:
                _ask(run, delivery)
            else:
                _settle(delivery, str(settle), error)
                _say_delivery(run, delivery, str(settle))
    return None


def _settle(delivery: Delivery, how: str, error: str | None) -> None:
    if how == "ack":
        delivery.ack()
    elif how in ("nack", "dead"):
        delivery.nack(error=error, dead=how == "dead")
    elif how == "release":
        delivery.release()


def _say_delivery(run: Run, delivery: Delivery, settled: str | None = None) -> None:
    if run.json:
        run.document(
            {
                "token": delivery.token,
                "attempt": delivery.attempt,
                "deadline": delivery.deadline,
                "group": delivery.group,
                "settled": settled,
                "event": event_document(delivery.event),
            }
        )
        return
    run.record(
        {
            **event_record(delivery.event),
            "attempt": delivery.attempt,
            "deadline": delivery.deadline,
            "token": delivery.token,
        }
    )
    run.line(pretty_payload(delivery.event))
    if settled is not None:
        run.line(f"→ {settled}", "dim")
    run.line("")


def _ask(run: Run, delivery: Delivery) -> None:
    _say_delivery(run, delivery)
    answers = {"a": "ack", "n": "nack", "d": "dead", "e": "extend", "r": "release"}
    while True:
        run.err.write("[a]ck, [n]ack, [d]ead, [e]xtend, [r]elease? ")
        run.err.flush()
        line = run.input.readline()
        how = answers.get(line.strip().lower()[:1]) if line else "release"
        if how is None:
            continue
        try:
            if how == "extend":
                delivery.extend()
                run.note(f"yours until {delivery.deadline.astimezone():%H:%M:%S}")
                continue
            _settle(delivery, how, None)
        except StaleDelivery as error:
            run.note(f"too late: {error}")
        return


@command(
    "settle",
    "Settles a delivery by the token that `take --settle none` printed",
    argument("queue", "the queue"),
    argument("delivery", "the delivery's token"),
    option("--as", "what becomes of it", choices=("ack", "nack", "dead", "release", "extend"), default="ack"),
    option("--error", "the error to give with nack or dead"),
    option("--delay", "how long nack keeps it back, if not the policy's", metavar="DURATION", convert=values.duration),
    option("--lease", "how long extend keeps it, if not the policy's", metavar="DURATION", convert=values.duration),
    example=(
        "penstock settle emails TOKEN",
        "penstock settle emails TOKEN --as nack --error 'mailbox full' --delay 10m",
    ),
)
def settle(
    run: Run, queue: str, delivery: str, error: str | None, delay: float | None, lease: float | None, **given: Any
) -> None:
    how = given["as"]
    with run.journal() as journal:
        handle = existing_queue(journal, queue)
        held = handle.delivery(delivery)
        if how == "extend":
            held.extend(lease)
        elif how == "nack":
            held.nack(delay=delay, error=error)
        else:
            _settle(held, how, error)
    outcome = {"deadline": held.deadline} if how == "extend" else {"settled": how}
    run.record({"queue": queue, "seq": held.seq, **outcome})


# ── working ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@command(
    "work",
    "Runs a worker: gives a queue's messages to a function of yours",
    argument("queue", "the queue"),
    argument("handler", "the function: module:function; it gets the delivery, and may be async"),
    option("-c --concurrency", "messages at a time", metavar="NUMBER", default=1, convert=values.count),
    option("--group", "for this group", default="default"),
    option("--consumer", "under this name"),
    option("--lease", "for how long messages are held", metavar="DURATION", convert=values.duration),
    flag("--until-empty", "end when nothing is left to take"),
    example="penstock work emails shop.mail:send --concurrency 4",
    details="""
    The module is looked for in the current folder first. A function that returns acknowledges its message; one that
    raises gives it back, and the queue's policy says when it comes again. SIGINT and SIGTERM let the messages in hand
    finish.
    """,
)
def work(
    run: Run,
    queue: str,
    handler: str,
    concurrency: int,
    group: str,
    consumer: str | None,
    lease: float | None,
    until_empty: bool,
) -> None:
    function = load_named(handler)
    check_count(concurrency, "--concurrency")
    stop = threading.Event()

    def asked_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    with run.journal() as journal:
        handle = journal.queue(queue)
        worker = handle.worker(function, group=group, concurrency=concurrency, consumer=consumer, lease=lease)
        before = {number: signal.signal(number, asked_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            worker.start()
            run.note(f"working on {queue} with {handler}, {concurrency} at a time; Ctrl-C ends it")
            while worker.alive and not stop.wait(0.1):
                if until_empty and _is_empty(handle, group):
                    break
            worker.stop()
        finally:
            for number, old in before.items():
                signal.signal(number, old)
    run.note("ended")


def _is_empty(queue: Queue, group: str) -> bool:
    stats = queue.stats(group)
    return stats.ready + stats.in_flight + stats.delayed == 0


# ── periodic messages ────────────────────────────────────────────────────────────────────────────────────────────────
@command(
    "schedule",
    "Shows, adds or removes a queue's periodic messages",
    argument("queue", "the queue"),
    argument("name", "the periodic message's name", required=False),
    option("--every", "push every so often", metavar="DURATION", convert=values.duration),
    option("--cron", "push by a cron line of five fields", metavar="LINE"),
    option("--timezone", "the cron line's time zone", default="UTC"),
    option("--payload", "the payload as JSON", metavar="JSON", default="null"),
    option("--kind", "the messages' kind", default="message"),
    option("--missed", "what to do about ticks nobody was there for", choices=("all", "last", "none"), default="all"),
    flag("--remove", "remove it"),
    example=(
        "penstock schedule reports",
        "penstock schedule reports daily --cron '0 6 * * mon-fri' --timezone Europe/Zurich",
        "penstock schedule reports daily --remove",
    ),
)
def schedule(
    run: Run,
    queue: str,
    name: str | None,
    every: float | None,
    cron: str | None,
    timezone: str,
    payload: str,
    kind: str,
    missed: Literal["all", "last", "none"],
    remove: bool,
) -> None:
    if every is not None and cron is not None:
        raise UsageError("give --every or --cron, not both")
    interval = every if every is not None else cron
    if name is None and (remove or interval is not None):
        raise UsageError("NAME is missing: periodic messages have names")
    with run.journal(read_only=interval is None and not remove) as journal:
        if interval is not None:
            value = values.json_value(payload)
            journal.queue(queue).every(
                interval,
                value,
                name=str(name),
                timezone=timezone,
                missed=missed,
                kind=kind,
            )
        handle = existing_queue(journal, queue)
        if remove:
            if not handle.unschedule(str(name)):
                raise Nothing(f"queue {queue!r} has no periodic message {name!r}")
            run.record({"queue": queue, "removed": name})
            return
        found = [one for one in handle.schedules() if name is None or one.name == name]
    rows = [
        (one.name, one.cron or f"every {one.interval:g} s", one.timezone, one.next_tick, one.last_tick) for one in found
    ]
    run.rows(("Name", "When", "Timezone", "Next", "Last"), rows, otherwise="no periodic messages")
