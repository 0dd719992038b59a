"""Spark pipelines: running one, and how those that run do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.cli import values
from penstock.cli.command import argument, command, flag, option
from penstock.cli.context import Run
from penstock.cli.failure import Nothing, UsageError
from penstock.cli.output import table
from penstock.units import show_duration

if TYPE_CHECKING:
    from penstock.observe.pipelines import FlowStatus
    from penstock.spark.pipeline.running import Runner

_COLUMNS = ("Flow", "State", "Rows", "Rows/s", "Lag", "Batch", "Batch time", "Restarts", "Error")


def _setting(text: str) -> tuple[str, str]:
    """A Spark setting: spark.NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise ValueError(f"a Spark setting is spark.NAME=VALUE, not {text!r}")
    return name, value


@command(
    "run",
    "Runs a Spark pipeline: a Python file whose functions are flows between topics, queues and more",
    argument("file", "the pipeline: a Python file with functions under @flow"),
    flag("--once", "carry what is there through all flows, then end"),
    flag("--continuous", "run until stopped (what it does unless told otherwise)"),
    flag("--dry", "check the graph (topics, circles, columns) and run nothing"),
    flag("--reset", "forget how far the flows have come, and begin again; asks first"),
    flag("--yes", "do not ask"),
    option("--flow", "only this flow; may be given more than once", metavar="NAME", many=True),
    option("--name", "the pipeline's name, if not the file's", metavar="NAME"),
    option("--master", "where Spark runs: local[2], spark://host:7077, yarn, k8s://…", default="local[*]"),
    option("--conf", "a Spark setting", metavar="NAME=VALUE", many=True, convert=_setting),
    option("--checkpoints", "where progress is kept, if not beside the journal", metavar="FOLDER"),
    option(
        "--restarts",
        "how often in a row a flow may fail in passing",
        metavar="NUMBER",
        default=5,
        convert=values.count,
    ),
    option("--log", "what Spark itself may say on the error stream", choices=("off", "error", "warn", "info")),
    example=(
        "penstock run orders_pipeline.py --once",
        "penstock run orders_pipeline.py --url shop.db --master 'local[4]'",
        "penstock run orders_pipeline.py --dry",
    ),
    details="""
    Every flow has a checkpoint of its own and goes on where it was, exactly once, whatever was killed when. A flow
    that fails in passing (a busy store, a lost worker) is started again after a pause; one that fails for a reason
    that stays ends the run with exit code 1. SIGTERM and Ctrl-C let the batch in hand finish; a second one does not.
    """,
)
def run(
    run: Run,
    file: str,
    once: bool,
    continuous: bool,
    dry: bool,
    reset: bool,
    yes: bool,
    flow: list[str],
    name: str | None,
    master: str,
    conf: list[tuple[str, str]],
    checkpoints: str | None,
    restarts: int,
    log: str | None,
) -> None:
    if once and continuous:
        raise UsageError("give --once or --continuous, not both")
    if dry and reset:
        raise UsageError("--dry changes nothing, and --reset does: give one of them")
    from penstock.spark.pipeline.flows import load_pipeline
    from penstock.spark.pipeline.running import Runner, journal_url

    pipeline = load_pipeline(file, name=name)
    if flow:
        pipeline = pipeline.only(flow)
    with _view(run) as watch:
        runner = Runner(
            pipeline,
            journal_url(run.url),
            once=once,
            master=master,
            conf=dict(conf),
            checkpoints=checkpoints,
            restarts=restarts,
            log=(log or "off").upper(),
            watch=watch,
        )
        if dry:
            _say_graph(run, runner)
            return
        if reset:
            _reset(run, runner, yes)
        if not run.json:
            how = "once" if once else "until stopped (Ctrl-C)"
            run.note(f"running {pipeline.name} over {runner.url} {how}")
        runner.run()


def _reset(run: Run, runner: Runner, yes: bool) -> None:
    targets = sorted({flow.target.label for flow in runner.pipeline.flows})
    run.confirm(
        f"{runner.pipeline.name} forgets how far it has come and reads everything again from where its sources start; "
        f"what it has written stays, and is written again ({', '.join(targets)}). Go on?",
        yes,
    )
    gone = runner.reset()
    run.note(f"forgot the progress of {', '.join(gone)}" if gone else "there was no progress to forget")


def _say_graph(run: Run, runner: Runner) -> None:
    columns = runner.check()
    rows = [
        (
            flow.name,
            ", ".join(source.label for source in flow.sources),
            flow.target.label,
            ", ".join(columns[flow.name]),
        )
        for flow in runner.pipeline.flows
    ]
    run.rows(("Flow", "From", "To", "Columns"), rows)
    run.note(f"{runner.pipeline.name} is fine; nothing was run")


# ── the view ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def _view(run: Run) -> Iterator[Callable[[list[FlowStatus]], None]]:
    """Shows how flows do: in place on a terminal, else a line (or an object) for each flow that has changed."""
    if run.json or not run.out.isatty():
        yield _Lines(run)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(file=run.out), auto_refresh=False) as live:
        yield lambda flows: live.update(Text.from_ansi(_frame(flows, color=run.color)), refresh=True)


class _Lines:
    """A line for each flow that has changed since its last."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._said: dict[str, Any] = {}

    def __call__(self, flows: list[FlowStatus]) -> None:
        for flow in flows:
            news = (flow.state, flow.batch, flow.restarts, flow.error)
            if self._said.get(flow.flow) == news:
                continue
            self._said[flow.flow] = news
            if self._run.json:
                import msgspec

                self._run.document({**msgspec.to_builtins(flow), "reported_at": datetime.now(UTC)})
            else:
                self._run.line(_line(flow))
        self._run.flush()


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


def _row(flow: FlowStatus, name: str, state: str) -> tuple[Any, ...]:
    return (
        name,
        state,
        flow.rows,
        None if flow.rows_per_second is None else round(flow.rows_per_second),
        flow.lag,
        flow.batch,
        show_duration(flow.batch_seconds),
        flow.restarts,
        flow.error,
    )


def _frame(flows: list[FlowStatus], *, color: bool) -> str:
    return table(_COLUMNS, [_row(flow, flow.flow, flow.state) for flow in flows], color=color)


# ── pipelines ────────────────────────────────────────────────────────────────────────────────────────────────────────
@command(
    "pipelines",
    "Shows how pipelines do, as they last reported: state, rates, lag, batch times, errors",
    argument("pipeline", "one pipeline only", required=False),
    example=("penstock pipelines", "penstock pipelines orders_pipeline --json"),
    details="A flow that claims to run and has not reported for a minute is `silent`: it was killed, or hangs.",
)
def pipelines(run: Run, pipeline: str | None) -> None:
    from penstock.observe.pipelines import status

    now = datetime.now(UTC)
    with run.journal(read_only=True) as journal:
        found = status(journal, pipeline=pipeline)
    if pipeline is not None and not found:
        raise Nothing(f"no pipeline {pipeline!r} has run over this journal")
    if run.json:
        for flow in found:
            run.document({**_document(flow), "state": flow.believed(now)})
        return
    rows = [(*_row(flow, flow.key, flow.believed(now))[:-1], flow.reported_at, flow.error) for flow in found]
    run.rows((*_COLUMNS[:-1], "Reported", "Error"), rows, otherwise="no pipeline has run: penstock run pipeline.py")


def _document(flow: FlowStatus) -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(flow)
    return document
