"""Spark pipelines: running a pipeline, and the state of running pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import CommandContext, Nothing, command
from penstock.cli.output import table
from penstock.cli.values import choice, number, several, with_yes
from penstock.core.units import show_duration

if TYPE_CHECKING:
    from penstock.core.observe.pipelines import FlowStatus
    from penstock.spark.pipeline.running import Runner


_COLUMNS = ("Flow", "State", "Rows", "Rows/s", "Lag", "Batch", "Batch time", "Restarts", "Error")


def _setting(text: str) -> tuple[str, str]:
    """Returns a Spark setting from spark.NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise ValueError(f"a Spark setting is spark.NAME=VALUE, not {text!r}")
    return name, value


@command(
    "run",
    "penstock run orders_pipeline.py --once",
    "penstock run orders_pipeline.py --url shop.db --master 'local[4]'",
    "penstock run orders_pipeline.py --remote sc://spark.example --url https://journal.example --checkpoints s3a://shop/run",
    "penstock run orders_pipeline.py --dry",
    also="create",
)
@click.argument("file", type=click.Path(), help="the pipeline: a Python file with functions under @flow")
@click.option("--once", is_flag=True, help="carry what is there through all flows, then end")
@click.option("--continuous", is_flag=True, help="run until stopped (what it does unless told otherwise)")
@click.option("--dry", is_flag=True, help="check the graph (topics, circles, columns) and run nothing")
@click.option("--reset", is_flag=True, help="forget how far the flows have come, and begin again; asks first")
@with_yes
@several("--flow", metavar="NAME", help="only this flow")
@click.option("--name", metavar="NAME", help="the pipeline's name, if not the file's")
@click.option(
    "--master",
    "--remote",
    default="local[*]",
    help="where Spark runs: local[2], spark://host:7077, yarn, k8s://…; or sc://host, a server of Spark Connect",
)
@several("--conf", metavar="NAME=VALUE", type=_setting, help="a Spark setting")
@click.option("--checkpoints", metavar="FOLDER", help="where progress is kept, if not beside the journal")
@click.option("--restarts", type=number, default="5", help="how often in a row a flow may fail for a passing reason")
@click.option("--keep-going", is_flag=True, help="a flow that fails rests while the others run; exit code 1 at the end")
@click.option("--ui", is_flag=True, help="switch Spark's own pages on, and say where they are")
@choice("--log", "off error warn info", default="off", help="what Spark itself may say on the error stream")
def run(
    context: CommandContext,
    file: str,
    continuous: bool,
    dry: bool,
    reset: bool,
    yes: bool,
    flow: tuple[str, ...],
    name: str | None,
    conf: tuple[tuple[str, str], ...],
    ui: bool,
    log: str,
    **given: Any,
) -> None:
    """Runs a Spark pipeline: a Python file whose functions are flows between topics, queues and more.

    Every flow has its own checkpoint and goes on where it was, exactly once, after any kill. A flow that fails for a
    passing reason (a busy store, a lost worker) starts again after a pause. A flow that fails for a lasting reason ends
    the run with exit code 1. SIGTERM and Ctrl-C let the batch in hand finish. A second signal ends it at once.
    """
    if given["once"] and continuous:
        raise click.UsageError("give --once or --continuous, not both")
    if dry and reset:
        raise click.UsageError("--dry changes nothing, and --reset does: give one of them")
    if not context.create:
        with context.journal(read_only=True):
            pass  # a pipeline with a mistyped name is not created
    from penstock.spark.pipeline.flows import load_pipeline
    from penstock.spark.pipeline.running import Runner, journal_url
    from penstock.spark.startup.sessions import announce

    announce(given["master"])
    pipeline = load_pipeline(file, name=name)
    if flow:
        pipeline = pipeline.only(list(flow))
    with _view(context) as watch:

        def say(address: str) -> None:
            context.note(f"Spark's pages: {address}")

        settings = {**({"spark.ui.enabled": "true"} if ui else {}), **dict(conf)}
        runner = Runner(
            pipeline, journal_url(context.url), conf=settings, log=log.upper(), watch=watch, at=say, **given
        )
        if dry:
            _say_graph(context, runner)
            return
        if reset:
            _reset(context, runner, yes)
        if not context.json:
            how = "once" if given["once"] else "until stopped (Ctrl-C)"
            context.note(f"running {pipeline.name} over {runner.url} {how}")
        runner.run()


def _reset(context: CommandContext, runner: Runner, yes: bool) -> None:
    targets = sorted({flow.target.label for flow in runner.pipeline.flows})
    context.confirm(
        f"{runner.pipeline.name} forgets how far it has come and reads everything again from where its sources start; "
        f"what it has written stays, and is written again ({', '.join(targets)}). Go on?",
        yes,
    )
    gone = runner.reset()
    context.note(f"forgot the progress of {', '.join(gone)}" if gone else "there was no progress to forget")


def _say_graph(context: CommandContext, runner: Runner) -> None:
    columns = runner.check()
    rows = [
        (flow.name, ", ".join(one.label for one in flow.sources), flow.target.label, ", ".join(columns[flow.name]))
        for flow in runner.pipeline.flows
    ]
    context.rows(("Flow", "From", "To", "Columns"), rows)
    context.note(f"{runner.pipeline.name} is fine; nothing was run")


# ── the view ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def _view(context: CommandContext) -> Iterator[Callable[[list[FlowStatus]], None]]:
    """Shows the state of flows: in place on a terminal, otherwise a line (or an object) for each flow that has
    changed.
    """
    if context.json or not context.out.isatty():
        yield FlowLines(context)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(file=context.out), auto_refresh=False) as live:
        yield lambda flows: live.update(Text.from_ansi(_frame(flows, color=context.color)), refresh=True)


class FlowLines:
    """The output of a line for each flow that has changed since its last line."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._said: dict[str, object] = {}

    def __call__(self, flows: list[FlowStatus]) -> None:
        for flow in flows:
            news = (flow.state, flow.batch, flow.restarts, flow.error)
            if self._said.get(flow.flow) == news:
                continue
            self._said[flow.flow] = news
            if self._context.json:
                self._context.document(flow, reported_at=datetime.now(UTC))
            else:
                self._context.line(_line(flow))
        self._context.flush()


def _line(flow: FlowStatus) -> str:
    parts = [f"{time.strftime('%H:%M:%S')}  {flow.flow}: {flow.state}"]
    if flow.batch is not None:
        parts.append(f"batch {flow.batch} in {show_duration(flow.batch_seconds)}")
        parts.append(f"{flow.rows:,} rows")
    if flow.rows_per_second is not None:
        parts.append(f"{flow.rows_per_second:,.0f} rows/s")
    if flow.lag is not None:
        parts.append(f"lag {flow.lag:,}")
    if flow.error:
        parts.append(flow.error)
    return ", ".join(parts)


def _row(flow: FlowStatus, name: str, state: str) -> tuple[object, ...]:
    rate = None if flow.rows_per_second is None else round(flow.rows_per_second)
    took = show_duration(flow.batch_seconds)
    return name, state, flow.rows, rate, flow.lag, flow.batch, took, flow.restarts, flow.error


def _frame(flows: list[FlowStatus], *, color: bool) -> str:
    return table(_COLUMNS, [_row(flow, flow.flow, flow.state) for flow in flows], color=color)


# ── pipelines ────────────────────────────────────────────────────────────────────────────────────────────────────────
@command(
    "pipelines",
    "penstock pipelines",
    "penstock pipelines orders_pipeline --json",
    "penstock pipelines orders_pipeline --forget",
)
@click.argument("pipeline", required=False, help="one pipeline only")
@click.option("--forget", is_flag=True, help="remove its reports, cursors and checkpoints; asks first")
@click.option("--yes", is_flag=True, help="do not ask")
def pipelines(context: CommandContext, pipeline: str | None, forget: bool, yes: bool) -> None:
    """Shows how pipelines do, as they last reported: state, rates, lag, batch times, errors.

    A flow that claims to run and has not reported for a minute is `silent`: it was killed, or hangs.
    """
    from penstock.core.observe.pipelines import status

    if forget:
        _forget(context, pipeline, yes)
        return
    now = datetime.now(UTC)
    with context.journal(read_only=True) as journal:
        found = status(journal, pipeline=pipeline)
    if pipeline is not None and not found:
        raise Nothing(f"no pipeline {pipeline!r} has run over this journal")
    if context.json:
        for flow in found:
            context.document(flow, state=flow.believed(now))
        return
    rows = [(*_row(flow, flow.key, flow.believed(now))[:-1], flow.reported_at, flow.error) for flow in found]
    context.rows((*_COLUMNS[:-1], "Reported", "Error"), rows, otherwise="no pipeline has run: penstock run pipeline.py")


def _forget(context: CommandContext, pipeline: str | None, yes: bool) -> None:
    if pipeline is None:
        raise click.UsageError("say which pipeline to forget: penstock pipelines NAME --forget")
    from penstock.core.observe.pipelines import forget
    from penstock.spark.pipeline.alone import forget_checkpoints
    from penstock.spark.pipeline.running import journal_url

    context.confirm(
        f"{pipeline} is forgotten: how it stands, its cursors, how far it has come; what it has written stays. Go on?",
        yes,
    )
    with context.journal() as journal:
        url = journal_url(context.url)
        gone = not url.startswith(("http://", "https://")) and forget_checkpoints(url, pipeline)
        flows = forget(journal, pipeline)
    if not flows and not gone:
        raise Nothing(f"no pipeline {pipeline!r} has run over this journal")
    context.note(f"forgot {pipeline} and its flows {', '.join(flow.flow for flow in flows)}".removesuffix(" "))
