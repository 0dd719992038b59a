"""Runs pipelines: a query for each flow, which is restarted after a temporary failure, stopped between batches, and
watched.

One process runs a pipeline at a time: a lock beside the journal ensures it, and the kernel releases the lock when the
process is gone. Each flow has its own checkpoint:

    shop.db.checkpoints/orders.lock           who runs the pipeline `orders`
    shop.db.checkpoints/orders/revenue/       the checkpoint of its flow `revenue`

A failure of Python code in a task arrives as text: Spark's exception with a Python traceback. Its cause decides whether
a restart may help. A busy store, a full queue, a lost connection and a killed worker are temporary. A mistake in the
flow, rows that do not fit, and rows that crash a worker are permanent, because the same rows would fail again.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock.core.observe.pipelines import FlowStatus
from penstock.errors import ConfigError, FlowFailed, PenstockError, StorageError
from penstock.limits import DEFAULT_URL
from penstock.spark.journals import check_reach, passes, release_journals
from penstock.spark.options import absolute_url
from penstock.spark.payload import crash_of
from penstock.spark.pipeline.alone import alone, checkpoint_root, lies_here, query_at, remove_checkpoint
from penstock.spark.pipeline.flows import (
    Flow,
    FlowGraph,
    Pipeline,
    check_frame,
    frame_of,
    load_pipeline,
    make_targets,
    schema_problems,
    sealed_frames,
)
from penstock.spark.pipeline.progress import Reporter, RunningFlow
from penstock.spark.startup import sessions
from penstock.spark.startup.launch import variables
from penstock.spark.versions import AVAILABLE_NOW_IS_ONE_BATCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Gone(Exception):
    """Spark can no longer be reached."""


_SESSION_LOST = re.compile(r"INVALID_HANDLE\.SESSION_|NO_ACTIVE_SESSION|RETRIES_EXCEEDED|StatusCode\.UNAVAILABLE")
"""The messages of Spark Connect about a server that does not answer, or has forgotten the session."""


@contextmanager
def reaching_spark() -> Iterator[None]:
    """Distinguishes a driver that is gone from a failed query, whose exceptions come from Java."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except Py4JJavaError:
        raise
    except (Py4JError, ConnectionError) as error:
        raise Gone(str(error) or type(error).__name__) from error
    except PySparkException as error:
        if _SESSION_LOST.search(str(error)) is None:
            raise
        raise Gone(_in_short(str(error))) from error


_QUERY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""The loggers in which pyspark prints an exception of a query, with its stack in the JVM, before it is raised."""


def _is_said_here_alone(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname and record.name not in _QUERY_LOGGERS


@contextmanager
def hushed() -> Iterator[None]:
    """Keeps py4j from printing a page for every call to a JVM that is gone, and pyspark from printing a page for every
    mistake in a query: the flows' states and errors say so."""
    from pyspark.logger import PySparkLogger

    loggers = [logging.getLogger(name) for name in (None, "py4j", "py4j.clientserver", "py4j.java_gateway")]
    loggers += [PySparkLogger.getLogger(name) for name in _QUERY_LOGGERS]
    for logger in loggers:
        logger.addFilter(_is_said_here_alone)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_said_here_alone)


_PASSING = frozenset(
    {
        "StorageError",
        "OutcomeUnknown",
        "Unflushed",
        "Backpressure",
        "Locked",
        "QueueFull",
        "FenceActive",
        "ConnectionError",
        "ConnectionResetError",
        "ConnectionAbortedError",
        "ConnectionRefusedError",
        "BrokenPipeError",
        "TimeoutError",
        "EOFError",
        "OSError",
        "MemoryError",
    }
)
"""Errors of Python code after which the same work may succeed. StorageError says itself; see `_passes`."""

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t]+.*\n)+)([\w.]+(?:: .*)?)")
_SENTENCE = re.compile(r"penstock\.errors\.\w+: .*")
"""An error of penstock's own, as `sentences` lets Spark tell it."""
_FRAME = re.compile(r'^[ \t]+File "([^"]+)", line (\d+)', re.MULTILINE)
_LASTING = frozenset(
    {
        "AnalysisException",
        "ArithmeticException",
        "ArrayIndexOutOfBoundsException",
        "DateTimeException",
        "IllegalArgumentException",
        "NumberFormatException",
        "ParseException",
        "UnsupportedOperationException",
    }
)
"""Exceptions of the JVM (as pyspark names them) that the query or its rows are to blame for."""
_STATE = re.compile(r"SQLSTATE: ([0-9A-Z]{2})[0-9A-Z]{3}")
_LASTING_STATES = frozenset({"0A", "21", "22", "23", "42"})
"""Classes of SQL states that the query or its rows are to blame for: unsupported, bad data, bad names."""


class Fault(NamedTuple):
    """An explained failure."""

    message: str
    passing: bool


def fault_of(error: BaseException, file: str | None = None) -> Fault:
    """Returns the meaning of a failed query, or of a query that could not be started."""
    if isinstance(error, PenstockError):
        return Fault(str(error), _passes(type(error).__name__, str(error), error))
    chain = _chain(error)
    raised = [match for one in chain for match in _TRACEBACK.finditer(_text(one))]
    if raised:
        return _python_fault(raised[-1][1], raised[-1][2], file)
    sentences = [match[0] for one in chain for match in _SENTENCE.finditer(_text(one))]
    if sentences:
        return _python_fault("", sentences[-1], file)
    crash = next((said for one in chain if (said := crash_of(_text(one))) is not None), None)
    if crash is not None:
        return Fault(crash, False)
    lasting = any(type(one).__name__ in _LASTING for one in chain)
    lasting = lasting or any(state in _LASTING_STATES for one in chain for state in _STATE.findall(_text(one)))
    return Fault(_in_short(_text(error)) or type(error).__name__, not lasting)


def _chain(error: BaseException) -> list[BaseException]:
    """Returns an exception of Spark's and its causes, as far as Spark knows them."""
    chain: list[BaseException] = []
    following: object = error
    while isinstance(following, BaseException) and following not in chain:
        chain.append(following)
        following = getattr(following, "_cause", None)
    return chain


def _text(error: BaseException) -> str:
    """Returns the text of an exception; of one that comes from the JVM, without asking the JVM, which may be gone."""
    found = getattr(error, "_desc", None)
    return found if isinstance(found, str) else str(error)


def _python_fault(frames: str, last: str, file: str | None) -> Fault:
    name, _, message = last.partition(": ")
    name = name.rpartition(".")[2]
    own = getattr(__import__("penstock.errors", fromlist=[name]), name, None)
    text = message.strip() if own is not None and message else f"{name}: {message}".rstrip(": ")
    lines = [line for where, line in _FRAME.findall(frames) if where == file]
    line = f" ({file}, line {lines[-1]})" if lines else ""
    return Fault(text + line, _passes(name, message, None))


def _passes(name: str, message: str, error: PenstockError | None) -> bool:
    return passes(error) if isinstance(error, StorageError) else name in _PASSING


def _in_short(text: str) -> str:
    """Returns the sentence in a Java exception's text: without its stack, its SQL state, and the query's ids."""
    text = re.split(r"\n\s*(?:at |=== Streaming Query ===|JVM stacktrace|Driver stacktrace)", text, maxsplit=1)[0]
    text = re.sub(r"\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ", "", text)
    text = re.sub(r"\s*SQLSTATE: \w+", "", text).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:600]


GRACE = 30.0
"""The seconds that a batch may take to finish after the pipeline was asked to stop."""
_POLLS, _POLL_SECONDS = 5, 0.05
"""The number of looks in a row, and the seconds between them, at which a query must do nothing before it is stopped."""


class Hold:
    """A file that keeps the streams of a run, which are in other processes, from beginning another batch."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"penstock-hold-{uuid.uuid4().hex}"

    def release(self) -> None:
        """Lets streams continue."""
        self.path.unlink(missing_ok=True)

    def stop(self, flows: Sequence[RunningFlow]) -> None:
        """Ends every query between two batches; a query that takes too long is interrupted, and its batch is
        repeated.
        """
        deadline = time.monotonic() + GRACE
        with suppress(OSError):
            self.path.touch()
        for one in flows:
            with suppress(Exception):
                query = one.query
                idle = 0
                while query is not None and query.isActive and idle < _POLLS and time.monotonic() < deadline:
                    status = query.status
                    # Once may be the moment between asking for offsets and beginning a batch with them.
                    idle = 0 if status["isTriggerActive"] and status["isDataAvailable"] else idle + 1
                    time.sleep(_POLL_SECONDS)
                if query is not None:
                    query.stop()
                    one.refresh()


POLL_SECONDS = 0.2
"""The seconds between two checks of the queries."""
BACKOFF = (1.0, 2.0, 5.0, 10.0, 30.0)
"""The seconds before a failed flow is restarted; the last number repeats."""
Watcher = Callable[[list[FlowStatus]], None]
"""A function that is called about once a second with the states of the flows."""


class Runner:
    """A run of a pipeline: `run()` until it is done or `stop()` is called, from another thread or a signal.

    `ui` switches Spark's own pages on, and `at` gets their address.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        url: str,
        *,
        once: bool = False,
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
        checkpoints: str | None = None,
        restarts: int = 5,
        log: str = "OFF",
        keep_going: bool = False,
        watch: Watcher | None = None,
        at: Callable[[str], None] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.url = absolute_url(url)
        self.once = once
        self.master = master
        self.conf = dict(conf or {})
        self.keep_going = keep_going
        self.restarts = restarts
        self.log = log
        self.connect = sessions.is_connect(master)
        self.checkpoints = checkpoints or checkpoint_root(self.url)
        if checkpoints is None and self.connect and not lies_here(self.url):
            raise ConfigError(
                "over Spark Connect, progress is kept where its server is: say where, with --checkpoints, a url like "
                "s3a://… or a folder there"
            )
        self._watch = watch
        self._at = at
        self._stop = threading.Event()
        self._starting = False
        self._spark: SparkSession | None = None
        self._owns = False
        self._flows: list[RunningFlow] = []
        self._reporter = Reporter(self.url)
        self._shown = 0.0
        self._hold = Hold()

    # ── from outside ─────────────────────────────────────────────────────────────────────────────────────────────────
    def stop(self) -> None:
        """Asks the run to end: every flow finishes its current batch."""
        self._stop.set()

    def check(self) -> dict[str, list[str]]:
        """Checks everything that can be checked before a batch runs; returns the columns of each flow, or raises
        ConfigError.
        """
        graph = FlowGraph(self.pipeline, self.url)
        _raise([*self._unreachable(graph), *graph.problems()])
        with hushed(), self._session():
            assert self._spark is not None
            spark = self._spark
            columns, problems = schema_problems(graph, spark, lambda flow: query_at(self._checkpoint(flow), spark))
        _raise(problems)
        return columns

    def run(self) -> list[FlowStatus]:
        """Runs the flows; returns their states at the end. Raises FlowFailed when a flow fails permanently."""
        graph = FlowGraph(self.pipeline, self.url)
        _raise([*self._unreachable(graph), *graph.problems()])
        levels = graph.levels() if self.once else [graph.flows]
        with alone(self.url, self.pipeline.name):
            make_targets(graph)
            mode: Literal["once", "continuous"] = "once" if self.once else "continuous"
            flows = {flow.name: RunningFlow(flow, self.pipeline.name, mode) for flow in graph.flows}
            self._flows = list(flows.values())
            try:
                with hushed(), self._signals(), self._session():
                    for level in levels:
                        self._run_level([flows[flow.name] for flow in level])
            finally:
                self._hold.release()
                self._end()
        failed = [running.status for running in self._flows if running.status.state == "failed"]
        if failed:
            said = "\n".join(f"flow {status.flow!r}: {status.error}" for status in failed)
            raise FlowFailed(said, flow=failed[0].flow)
        return [running.status for running in self._flows]

    def _unreachable(self, graph: FlowGraph) -> list[str]:
        """Returns the addresses that tasks cannot reach from where they run, as the master tells: the session's, or the
        one to come.

        What a server of Spark Connect reaches, only that knows.
        """
        if self.connect:
            return []
        problems = []
        active = sessions.active()
        for url in sorted(graph.urls):
            try:
                check_reach(url, self.master if active is None else active.sparkContext.master)
            except ConfigError as error:
                problems.append(str(error))
        return problems

    def reset(self) -> list[str]:
        """Removes the checkpoints of the flows, and returns the flows that had a checkpoint."""
        with alone(self.url, self.pipeline.name):
            removed = []
            for flow in self.pipeline.flows:
                checkpoint = self._checkpoint(flow.name)
                if "://" in checkpoint:
                    with self._session():
                        gone = self._remove_remote(checkpoint)
                else:
                    gone = Path(checkpoint).exists()
                    remove_checkpoint(Path(checkpoint)) if gone else None
                if gone:
                    removed.append(flow.name)
            return removed

    # ── levels ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _run_level(self, flows: list[RunningFlow]) -> None:
        for running in flows:
            running.status.state = "starting"
        self._tell(now=True)
        while not self._stop.is_set():
            try:
                for running in flows:
                    self._step(running)
            except Gone as gone:
                self._revive(flows, gone)
            if all(running.status.state in ("done", "failed") for running in flows):
                return
            self._tell()
            self._stop.wait(POLL_SECONDS)

    def _step(self, running: RunningFlow) -> None:
        """Starts the flow if it is due, else checks its query."""
        if running.query is None:
            if running.status.state not in ("done", "failed") and time.monotonic() >= running.due:
                self._start(running)
            return
        with reaching_spark():
            active = running.query.isActive
            with suppress(PenstockError):  # a store that is busy now: the next look will do
                running.refresh()
            if active:
                return
            error = running.query.exception()
        if error is None and running.backfills and not self._stop.is_set():
            self._start(running)
        elif error is None and self.once and AVAILABLE_NOW_IS_ONE_BATCH and running.status.lag and not running.repeated:
            running.repeated = True  # the batch may have been one that was left unfinished
            self._start(running)
        elif error is None:
            running.ended("done" if self.once else "stopped")
        else:
            self._failed(running, fault_of(error, self.pipeline.file))

    def _start(self, running: RunningFlow) -> None:
        flow = running.flow
        assert self._spark is not None
        try:
            with reaching_spark():
                hold, checkpoint = str(self._hold.path), self._checkpoint(flow.name)
                sealed = sealed_frames(flow, self._spark, checkpoint, hold)
                running.backfills = sealed is not None
                frames = sealed or [source.read(self._spark, flow.consumer, hold) for source in flow.sources]
                frame = frame_of(flow, self._spark, self.pipeline.file, frames)
                check_frame(flow, frame, self._spark)
                writer = flow.target.write(frame, flow.flow.output_mode, checkpoint).queryName(flow.consumer)
                writer = writer.option("checkpointLocation", checkpoint)
                if self.once or running.backfills:
                    writer = writer.trigger(availableNow=True)
                elif flow.flow.every:
                    writer = writer.trigger(processingTime=f"{flow.flow.every} seconds")
                running.started(writer.start())
        except Gone:
            raise
        except Exception as error:
            self._failed(running, fault_of(error, self.pipeline.file))

    def _failed(self, running: RunningFlow, fault: Fault) -> None:
        """Restarts the flow later, or gives up: at once for a permanent failure, else after several failures."""
        running.failures += 1
        if not fault.passing or running.failures > self.restarts:
            running.ended("failed", fault.message)
            again = f" (after {running.failures} attempts)" if fault.passing and self.restarts else ""
            if self.keep_going:
                running.status.error = f"{fault.message}{again}"
                return
            raise FlowFailed(f"flow {running.flow.name!r}: {fault.message}{again}", flow=running.flow.name)
        running.ended("waiting", fault.message)
        running.status.restarts += 1
        running.due = time.monotonic() + BACKOFF[min(running.failures, len(BACKOFF)) - 1]

    def _revive(self, flows: list[RunningFlow], gone: Gone) -> None:
        """Starts a new JVM and every flow again, because Spark's JVM, or its server, is gone."""
        if not self._owns:
            raise FlowFailed(f"Spark is gone: {gone}", flow=flows[0].flow.name) from gone
        for running in flows:
            if running.status.state not in ("done", "failed"):
                self._failed(running, Fault("Spark is gone", True))
        self._tell(now=True)
        self._close_session(lost=True)
        self._open_session()

    # ── the session ──────────────────────────────────────────────────────────────────────────────────────────────────
    @contextmanager
    def _session(self) -> Iterator[None]:
        """Opens Spark for this run: the program's own session, else a session that ends with the run."""
        if self._spark is not None:
            yield
            return
        self._owns = sessions.active() is None
        try:
            self._open_session()
            yield
        finally:
            self._hold.stop([one for one in self._flows if one.query is not None])
            if self._owns:
                self._close_session(lost=False)
            self._spark = None

    def _close_session(self, *, lost: bool) -> None:
        """Ends the run's own session; one that is lost at a server of Spark Connect, without a word to that."""
        remote: Any = self._spark if self.connect else None
        if remote is None:
            sessions.stop()
            return
        remote.release_session_on_close = not lost
        remote.stop()

    def _open_session(self) -> None:
        self._starting = True
        try:
            with _folder_for_workers(self.pipeline.file):
                self._spark = sessions.session(self.pipeline.name, master=self.master, **self.conf)
        finally:
            self._starting = False
        _activate(self._spark)
        if self._owns and not self.connect:
            # What goes wrong is told by the flows' states: Spark's own words are a page of Java for each.
            self._spark.sparkContext.setLogLevel(self.log)
            address = self._spark.sparkContext.uiWebUrl
            if address and self._at is not None:
                self._at(address)
        if self._asked is not None:  # Spark's own handler for Ctrl-C took the place of this one
            signal.signal(signal.SIGINT, self._asked)

    def _checkpoint(self, flow: str) -> str:
        return f"{self.checkpoints}/{self.pipeline.name}/{flow}"

    def _remove_remote(self, checkpoint: str) -> bool:
        spark: Any = self._spark
        if self.connect:
            raise ConfigError(
                f"files cannot be removed over Spark Connect: remove {checkpoint} yourself, or name another place with "
                "--checkpoints"
            )
        path = spark._jvm.org.apache.hadoop.fs.Path(checkpoint)
        files = path.getFileSystem(spark._jsc.hadoopConfiguration())
        files.delete(spark._jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/metadata"), False)  # see remove_checkpoint
        return bool(files.delete(path, True))

    # ── ending ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _end(self) -> None:
        for running in self._flows:
            if running.status.state not in ("done", "failed"):
                running.ended("stopped", running.status.error)
        self._tell(now=True)
        release_journals()

    def _tell(self, *, now: bool = False) -> None:
        self._reporter.report(self._flows, now=now)
        if self._watch is not None and (now or time.monotonic() >= self._shown):
            self._shown = time.monotonic() + 1.0
            self._watch([running.status for running in self._flows])

    # ── signals ──────────────────────────────────────────────────────────────────────────────────────────────────────
    _asked: Callable[[int, FrameType | None], None] | None = None

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Lets SIGINT and SIGTERM end the run orderly; a second signal, or a signal while Spark is starting, ends it
        at once.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def asked(number: int, frame: FrameType | None) -> None:
            if self._starting or self._stop.is_set():
                raise KeyboardInterrupt
            self.stop()

        before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
        self._asked = asked
        try:
            yield
        finally:
            self._asked = None
            for number, old in before.items():
                signal.signal(number, old)


def _activate(spark: Any) -> None:
    """Makes the session this thread's own: where a stream starts, Spark finds sources written in Python by that."""
    if getattr(spark, "_jvm", None) is not None:
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)


def _folder_for_workers(file: str | None) -> AbstractContextManager[None]:
    """Puts the pipeline's folder on PYTHONPATH while Spark starts, so that workers import modules beside the file."""
    if file is None:
        return nullcontext()
    paths = [str(Path(file).resolve().parent), os.environ.get("PYTHONPATH", "")]
    return variables({"PYTHONPATH": os.pathsep.join(filter(None, paths))})


def journal_url(url: str | os.PathLike[str] | None) -> str:
    """Returns the journal of a pipeline: the named journal, else $PENSTOCK_URL, else ./penstock.db."""
    return str(url) if url is not None else os.environ.get("PENSTOCK_URL", "").strip() or DEFAULT_URL


def _raise(problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError("\n".join(problems))


def run(
    pipeline: str | Path | Pipeline | Sequence[Flow],
    *,
    url: str | os.PathLike[str] | None = None,
    once: bool = False,
    master: str = "local[*]",
    name: str | None = None,
    restarts: int = 5,
    checkpoints: str | None = None,
    keep_going: bool = False,
    watch: Watcher | None = None,
    **conf: str,
) -> list[FlowStatus]:
    """Runs a pipeline like `penstock run`: a file, or flows; until it is stopped, or `once` over the existing events.

    Returns the states of the flows at the end. Raises FlowFailed when a flow failed permanently, ConfigError when the
    graph is wrong, and Locked when the pipeline already runs. With `keep_going`, the other flows continue after a
    failure, and FlowFailed is raised at the end. `url` is the journal ($PENSTOCK_URL, else ./penstock.db). An active
    session is used; otherwise a session is started and ended.
    """
    if isinstance(pipeline, str | Path):
        sessions.announce(master)
        pipeline = load_pipeline(pipeline, name=name)
    elif not isinstance(pipeline, Pipeline):
        pipeline = Pipeline.of(pipeline, name or "pipeline")
    runner = Runner(
        pipeline,
        journal_url(url),
        once=once,
        master=master,
        conf=conf,
        checkpoints=checkpoints,
        restarts=restarts,
        keep_going=keep_going,
        watch=watch,
    )
    return runner.run()
