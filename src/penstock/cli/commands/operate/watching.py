"""How the journal does, live in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.output import table
from penstock.cli.values import duration, number
from penstock.units import show_duration

if TYPE_CHECKING:
    from penstock.observe.sample import Sample
    from penstock.surface.journal import Journal

SHORTEST = 0.05
"""Seconds between two looks, at the least."""


@command("top", "penstock top", "penstock top --url http://127.0.0.1:7367")
@click.option("--interval", type=duration, default="1s", help="how often it looks")
@click.option("-n", "--rows", type=number, default="15", help="topics and queues to show, busiest first")
@click.option("--count", type=number, help="end after so many looks")
@click.option("--once", is_flag=True, help="look twice, print once, end")
def top(context: CommandContext, interval: float, rows: int, count: int | None, once: bool) -> None:
    """Shows live how the journal does: rates, backlog, oldest age, in flight, failures, writer pressure.

    At a terminal, q ends it.
    """
    if interval < SHORTEST:
        raise click.UsageError("--interval is at least 50ms")
    with context.journal(read_only=True) as journal:
        sample = sampler_of(journal)
        sample()  # rates need a before
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


def sampler_of(journal: Journal) -> Callable[[], Sample]:
    """A function that says how the journal is now; a server measures rates itself."""
    from penstock.local.journal import LocalJournal

    if not isinstance(journal, LocalJournal):
        return journal.stats
    from penstock.server.sampler import Sampler

    return Sampler(journal).sample


def _say(context: CommandContext, sample: Sample, rows: int, show: Callable[[str], None]) -> None:
    if context.json:
        context.document(sample)
    else:
        show(_frame(sample, rows, color=context.color))
    context.flush()  # the reader of a pipe sees each as it comes


@contextmanager
def _screen(context: CommandContext) -> Iterator[tuple[Callable[[str], None], Callable[[float], bool]]]:
    """Shows frames in place on a terminal, one after the other elsewhere; and waits, where q means to leave."""
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
    """A wait that ends when q is pressed: keys come one by one, without Enter, for as long as it lasts."""
    if not context.input.isatty():
        yield _sleep
        return
    import os
    import select
    import termios
    import tty

    keyboard = context.input.fileno()
    before = termios.tcgetattr(keyboard)

    def leave(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([keyboard], [], [], left)[0] and os.read(keyboard, 1) in (b"q", b"Q", b""):
                return True
        return False

    tty.setcbreak(keyboard)
    try:
        yield leave
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


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
            *(group.name, group.group, round(group.rate, 1), group.ready, group.in_flight, group.delayed, group.failed),
            *(group.dead if group.letters is None else group.letters, show_duration(group.oldest_age)),
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
