"""Running a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.failure import Nothing
from penstock.cli.loading import load_named
from penstock.cli.output import safe, safe_lines
from penstock.cli.stopping import StopSignals
from penstock.cli.values import choice, count, duration, number, queue_names, with_create

if TYPE_CHECKING:
    from penstock.queue.tasks.registry import Tasks
    from penstock.surface.journal import Journal
    from penstock.surface.queue import Queue


@command("work", "penstock work emails shop.mail:send --concurrency 4", "penstock work shop.jobs:tasks")
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
@with_create
def work(
    context: CommandContext,
    queue: str,
    handler: str | None,
    until_empty: bool,
    log_level: str,
    create: bool,
    **given: Any,
) -> None:
    """Runs a worker: gives a queue's messages to a function of yours.

    The module is looked for in the current folder first. A function that returns acknowledges its message; one that
    raises gives it back, and it comes again after about 5 s, 30 s, 3 min, 10 min, unless the queue's policy says when.
    SIGINT and SIGTERM let the messages in hand finish. With the name of a penstock.Tasks alone it runs the tasks of all
    its queues, in the journal they were made with, and makes the queues that are not there.
    """
    import logging

    tasks = None if handler is not None else _tasks(queue)
    function: Any = None if handler is None else load_named(handler)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with _journal_of(tasks, context) as journal:
        if tasks is not None:
            handles = [journal.queue(name) for name in tasks.queues()]
            workers = tasks.workers(**given)
        else:
            handles = [context.existing_queue(journal, queue, create=create)]
            workers = [handles[0].worker(function, **given)]
        with StopSignals() as stop:
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
        raise click.UsageError(f"{path} has no tasks: make some with @tasks.task(queue=…)")
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
