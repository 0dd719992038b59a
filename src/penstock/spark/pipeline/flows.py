"""Pipelines as Python files: functions from DataFrame to DataFrame, with sources and targets declared by `@flow`.

A source or target of a flow is a value. It has a `label`, the nodes of the pipeline's graph that it stands for
(`nodes`), and the way in which Spark opens it. Options are the options of the data source, in its spelling or in
Python's: `payloadSchema`, `payload_schema`. Errors of a graph are reported before Spark starts.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

import penstock
from penstock.core.entity.gate import DeclaredGate, check_gate_names, load_gates
from penstock.core.names import check_name, is_system, shown_url
from penstock.errors import ConfigError, Denied, PenstockError
from penstock.spark.journals import journal_id
from penstock.spark.options import HOLD, absolute_url, check_stream, is_served, read_options, resolved, write_options
from penstock.spark.pipeline.alone import query_at
from penstock.spark.startup.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


Node = tuple[str, str]
"""A store and a name in it: what connects the target of one flow with the source of another."""


@dataclass(frozen=True)
class Endpoint:
    """A source or a target of a flow; made by `topic`, `queue`, `buffer_at` and `external`."""

    format: str
    label: str
    options: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["topic", "pattern", "queue", "buffer", "external"] = "external"
    names: tuple[str, ...] = ()
    url: str | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)

    @property
    def in_journal(self) -> bool:
        """True if it is a part of a journal."""
        return self.kind in ("topic", "pattern", "queue")

    def at(self, url: str) -> Endpoint:
        """Returns the endpoint with its journal: its own journal, or the pipeline's."""
        return replace(self, url=absolute_url(self.url or url)) if self.in_journal else self

    def gated(self, gates: Sequence[str | DeclaredGate]) -> Endpoint:
        """Returns the endpoint with gates for its rows."""
        if not self.in_journal:
            raise ConfigError(f"gates see what is written to topics and queues, and the target is {self.label}")
        if "gates" in self.options:
            raise ConfigError(f"the gates of {self.label} are named twice: by the flow, and by its target")
        if isinstance(gates, str) or not all(isinstance(one, str | DeclaredGate) for one in gates):
            raise ConfigError('gates is a list of names ("shop.rules:only_positive") and of functions under @gate(…)')
        names = check_gate_names(one if isinstance(one, str) else one.name for one in gates)
        return replace(self, options={**self.options, "gates": msgspec.json.encode(names).decode()})

    def nodes(self, known: Iterable[Node] = ()) -> frozenset[Node]:
        """Returns the nodes of the graph that the endpoint stands for; a pattern chooses among `known`."""
        if self.kind == "pattern":
            wanted = re.compile(self.names[0])
            own = self.names[0].startswith("penstock")
            there = (name for url, name in known if url == self.url and (own or not is_system(name)))
            return frozenset((self.url or "", name) for name in there if wanted.fullmatch(name))
        return frozenset((self.url or self.format, name) for name in self.names)

    def read(self, spark: SparkSession, consumer: str, hold: str | None = None) -> DataFrame:
        """Returns the stream of this endpoint; a journal's stream begins no batch while the file `hold` exists."""
        return spark.readStream.format(self.format).options(**self.read_options(consumer, hold)).load()

    def read_options(self, consumer: str, hold: str | None = None) -> dict[str, str]:
        """Returns the data source's options; a cursor follows the flow, unless the endpoint names a cursor."""
        if not self.in_journal:
            return dict(self.options)
        options = {"consumer": consumer, "url": self.url or "", **self.options, **self._naming()}
        if hold is not None:
            options[HOLD] = hold
        check_stream(read_options(resolved(options)))
        return options

    def write(self, frame: DataFrame, output_mode: str, checkpoint: str) -> DataStreamWriter:
        """Returns a writer of a stream to this endpoint, which writes every batch once, also after kills.

        Spark does not let a Python data source receive changing rows of an aggregation. Such rows are written batch by
        batch instead, under the query's id and the batch's number, which the journal also remembers.
        """
        options = self.write_options()
        if self.format.startswith("penstock") and output_mode != "append":
            batches = BatchByBatch(self.format, options, checkpoint)
            return frame.writeStream.foreachBatch(batches).outputMode(output_mode)
        return frame.writeStream.format(self.format).options(**options).outputMode(output_mode)

    def write_options(self) -> dict[str, str]:
        """Returns the sink's options."""
        if not self.in_journal:
            return dict(self.options)
        if self.kind == "pattern" or len(self.names) > 1:
            raise ConfigError(f"a flow writes to one topic, not to {self.label}")
        options = {"url": self.url or "", **self.options, **self._naming()}
        made = write_options(resolved(options))
        if made.location.server is None:
            load_gates(made.gates)
        return options

    def _naming(self) -> dict[str, str]:
        if self.kind == "pattern":
            return {"topicpattern": self.names[0]}
        return {self.kind: ",".join(self.names)} if self.names else {}


def into(format: str = "penstock", **options: object) -> Callable[[DataFrame, int], None]:
    """Returns the function with which `foreachBatch` writes each batch of a stream once, in any output mode; the
    options are the options of the sink.

    totals.writeStream.foreachBatch(penstock.spark.into(url="shop.db", topic="totals")).outputMode("update")
    """
    return BatchByBatch(format, {name: _text(name, value) for name, value in options.items()})


class BatchByBatch:
    """A function that writes the batches of a stream one by one, each once."""

    def __init__(self, format: str, options: Mapping[str, str], checkpoint: str | None = None) -> None:
        self.format = format
        self.options = dict(options)
        self.checkpoint = checkpoint
        """The checkpoint of the query, if known: over Spark Connect, only the checkpoint identifies the query."""
        self._query: str | None = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        writer = batch.write.format(self.format).mode("append").options(**self.options)
        if not any(name.lower() == "txnappid" for name in self.options):
            writer = writer.option("txnAppId", f"query {self._query_of(batch.sparkSession)}")
        writer.option("txnVersion", number).save()

    def _query_of(self, spark: SparkSession) -> str:
        if getattr(spark, "_jsc", None) is not None:
            return str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
        if self._query is None and self.checkpoint is not None:
            self._query = query_at(self.checkpoint, spark)
        if self._query is None:
            raise ConfigError(
                "Spark Connect does not say which streaming query a batch belongs to: give it a name that stays, "
                "into(…, txnAppId=…)"
            )
        return self._query


def topic(*names: str, pattern: str | None = None, url: str | None = None, **options: object) -> Endpoint:
    """Returns a topic to read from or write to; several topics (or a `pattern` of names) are read as one stream.

    For a target without a name, the column `topic` of a row names its topic. `url` is another journal than the
    pipeline's. The options are the options of the data source: `topic("orders", payloadSchema="customer STRING")`.
    """
    given = _options(options, "topic")
    if pattern is not None:
        if names:
            raise ConfigError("give topic() names or a pattern, not both")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"pattern {pattern!r} is no regular expression: {error}") from error
        return Endpoint("penstock", f"topics like {pattern}", given, "pattern", (pattern,), url)
    for name in names:
        check_name(name, "topic")
    if len(set(names)) != len(names):
        raise ConfigError(f"a topic is named twice in topic({', '.join(map(repr, names))})")
    label = f"topic {', '.join(names)}" if names else "topics by row"
    return Endpoint("penstock", label, given, "topic", names, url)


def queue(
    name: str, *, policy: Mapping[str, object] | None = None, url: str | None = None, **options: object
) -> Endpoint:
    """Returns a queue to push to, which is made with `policy` if it is missing; or whose messages are read without
    taking them.
    """
    check_name(name, "queue")
    return Endpoint("penstock", f"queue {name}", _options(options, "queue"), "queue", (name,), url, dict(policy or {}))


def buffer_at(url: str, **options: object) -> Endpoint:
    """Returns a buffer in object storage to read from or write to; the options are the options of the source
    `penstock-buffer`.

    Unknown options belong to the object store, so all options have the source's spelling.
    """
    if not isinstance(url, str) or not url:
        raise ConfigError(f"a buffer is named by its url (s3://bucket/prefix, file:///dir), not {url!r}")
    shown = shown_url(url)
    given = {"url": url, **{name: _text(name, value) for name, value in options.items()}}
    return Endpoint("penstock-buffer", f"buffer {shown}", given, "buffer", (f"{shown} {given.get('manifest', '')}",))


def external(format: str, path: str | None = None, **options: object) -> Endpoint:
    """Returns any other endpoint that Spark reads or writes as a stream: `external("parquet", "lake/raw")`,
    `external("kafka", …)`.
    """
    if not isinstance(format, str) or not format:
        raise ConfigError(f"external() needs the name of a Spark format, not {format!r}")
    given = {name: _text(name, value) for name, value in options.items()}
    if path is not None:
        given["path"] = str(path)
    names = (str(path),) if path is not None else ()
    return Endpoint(format, f"{format} {shown_url(str(path))}" if path else format, given, "external", names)


def _options(options: Mapping[str, object], what: str) -> dict[str, str]:
    """Options as the data source takes them: it knows no case, and Python's underscores are not part of a name."""
    given: dict[str, str] = {}
    for name, value in options.items():
        plain = name.replace("_", "").lower()
        if plain in ("topic", "topicpattern", "queue"):
            raise ConfigError(f"{what}() names what it reads by its own arguments, not by {name}=")
        given[plain] = _text(name, value)
    return given


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{name} must be text, a number or a yes or no, not {type(value).__name__}")


OutputMode = Literal["append", "update", "complete"]


class Flow:
    """A function whose frames come from sources and whose result goes to a target; it is still callable, for tests."""

    def __init__(
        self,
        function: Callable[..., DataFrame],
        sources: tuple[Endpoint, ...],
        target: Endpoint,
        *,
        name: str,
        output_mode: OutputMode,
        every: float | None,
    ) -> None:
        self.function = function
        self.sources = sources
        self.target = target
        self.name = name
        self.output_mode = output_mode
        self.every = every
        self.__doc__ = function.__doc__

    def __call__(self, *frames: DataFrame) -> DataFrame:
        return self.function(*frames)

    def __repr__(self) -> str:
        return f"<flow {self.name}: {', '.join(source.label for source in self.sources)} → {self.target.label}>"


def flow(
    *,
    source: Endpoint | Sequence[Endpoint],
    target: Endpoint,
    name: str | None = None,
    output_mode: OutputMode = "append",
    every: float | None = None,
    gates: Sequence[str | DeclaredGate] = (),
) -> Callable[[Callable[..., DataFrame]], Flow]:
    """Declares a flow: the function gets one streaming DataFrame for each source, and its result is written to the
    target.

        @flow(source=topic("orders", payloadSchema="total DOUBLE"), target=queue("alerts"))
        def alerts(orders):
            return orders.where("total > 1000").selectExpr("struct(total) AS payload", "id AS cause")

    `output_mode` is Spark's: append (final rows), or update (changed rows, in aggregations). `every` is the least
    number of seconds between two batches. `gates` see every row before it is written: functions under `penstock.gate`,
    in this file or elsewhere, or names like "shop.rules:only_positive". `name`, by default the function's name, is the
    name of the flow's progress.
    """
    sources = (source,) if isinstance(source, Endpoint) else tuple(source)
    if not sources or not all(isinstance(one, Endpoint) for one in sources):
        raise ConfigError("a flow's source is topic(…), queue(…), buffer_at(…) or external(…), or a list of them")
    if not isinstance(target, Endpoint):
        raise ConfigError("a flow's target is topic(…), queue(…), buffer_at(…) or external(…)")
    if output_mode not in ("append", "update", "complete"):
        raise ConfigError(f'output_mode is "append", "update" or "complete", not {output_mode!r}')
    if target.in_journal and output_mode == "complete":
        raise ConfigError('a journal only grows: use output_mode "append" or "update"')
    if every is not None and not every >= 0:
        raise ConfigError(f"every is a number of seconds, not {every!r}")

    if gates:
        target = target.gated(gates)

    def declare(function: Callable[..., DataFrame]) -> Flow:
        if not callable(function):
            raise ConfigError("@flow(…) goes above a function")
        title = str(name or getattr(function, "__name__", ""))
        check_name(title, "flow")
        _check_parameters(function, title, len(sources))
        return Flow(function, sources, target, name=title, output_mode=output_mode, every=every)

    return declare


def _check_parameters(function: Callable[..., object], name: str, count: int) -> None:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        raise ConfigError(
            f"flow {name!r} has {count} source{'s' * (count != 1)}, and its function does not take that many frames"
        ) from None


@dataclass(frozen=True)
class Pipeline:
    """Flows that run together."""

    name: str
    flows: tuple[Flow, ...]
    file: str | None = None
    """The file that the flows were read from."""

    @classmethod
    def of(cls, flows: Iterable[Flow], name: str = "pipeline", file: str | None = None) -> Pipeline:
        """Returns a pipeline of these flows; raises ConfigError when two flows have the same name."""
        made = cls(check_name(name, "pipeline"), tuple(flows), file)
        names = [flow.name for flow in made.flows]
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise ConfigError(f"two flows are named {twice!r}: their progress is kept by name, so give one another")
        return made

    def only(self, names: Sequence[str]) -> Pipeline:
        """Returns the pipeline with just the flows of these names."""
        known = {flow.name for flow in self.flows}
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise ConfigError(f"there is no flow {unknown!r} in {self.name}; flows: {', '.join(sorted(known))}")
        return Pipeline(self.name, tuple(flow for flow in self.flows if flow.name in names), self.file)


def load_pipeline(path: str | Path, *, name: str | None = None) -> Pipeline:
    """Returns the pipeline of a file: every flow that it declares or imports.

    A ConfigError names the line of an error.
    """
    import penstock.spark.versions  # noqa: F401  # says what is missing, or too old

    file = Path(path)
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; a pipeline is a Python file") from None
    try:
        code = compile(text, str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no Python file: {error}") from None
    module = _module(file)
    try:
        exec(code, vars(module))
    except Exception as error:
        raise ConfigError(f"{line_of(error, str(file)) or path}: {error_line(error)}{_advice(error)}") from error
    if is_connect():
        _send_by_value(file.resolve().parent)
    flows = {id(value): value for value in vars(module).values() if isinstance(value, Flow)}
    if not flows:
        raise ConfigError(
            f"{path} declares no flow: put @flow(source=topic(…), target=topic(…)) above a function "
            "(from penstock.spark import flow, topic)"
        )
    return Pipeline.of(flows.values(), name or _name_of(file), str(file))


def _advice(error: Exception) -> str:
    """Returns the advice for code of a file that uses Spark before it starts."""
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    wanted = "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error) or (
        isinstance(error, AssertionError) and f"{os.sep}pyspark{os.sep}" in innermost
    )
    if not wanted:
        return ""
    return (
        ". Spark is not there yet while the file is read: make columns inside the flow's function, and give a @udf its "
        "type as an object: @udf(returnType=IntegerType())"
    )


def line_of(error: BaseException, file: str) -> str | None:
    """Returns the innermost line of a file that an error came through: `pipeline.py, line 12`."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}, line {lines[-1]}" if lines else None


def error_line(error: BaseException) -> str:
    """Returns an error in a line; penstock's own speak for themselves, others with their kind, and those of Spark's
    without the plan of the query and the stack in the JVM."""
    text = str(error).strip()
    if isinstance(error, PenstockError):
        return text
    first = re.split(r"(?:\s*SQLSTATE: \w+)?;\n|\n\nJVM stacktrace", text, maxsplit=1)[0].strip()
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _module(file: Path) -> types.ModuleType:
    """Returns a module for the file's code, under a name that no other module has.

    Spark's workers cannot import this module, so its definitions travel to them by value. Modules beside the file can
    be imported, here and (by `PYTHONPATH`, in `running`) by the workers.
    """
    from pyspark import cloudpickle

    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = "penstock_pipeline_" + "".join(c if c.isalnum() else "_" for c in file.stem)
    module = types.ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call,unused-ignore]
    return module


def _send_by_value(folder: Path) -> None:
    """Has the modules beside a pipeline travel with its functions: a server of Spark Connect has not got them."""
    from pyspark import cloudpickle

    for module in list(sys.modules.values()):
        origin = getattr(module, "__file__", None)
        if origin is not None and Path(origin).resolve().is_relative_to(folder):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call,unused-ignore]


def _name_of(file: Path) -> str:
    """Returns the file's name, as far as it can be a name: `orders pipeline.py` is orders-pipeline."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in file.stem).strip("-.")
    return plain or "pipeline"


class BoundFlow:
    """A flow whose endpoints know their journals."""

    def __init__(self, flow: Flow, pipeline: str, url: str) -> None:
        self.flow = flow
        self.name = flow.name
        self.consumer = f"{pipeline}/{flow.name}"
        self.sources = tuple(source.at(url) for source in flow.sources)
        self.target = flow.target.at(url)


class FlowGraph:
    """The flows of a pipeline over a journal, and their connections."""

    def __init__(self, pipeline: Pipeline, url: str) -> None:
        self.pipeline = pipeline
        self.flows = [BoundFlow(flow, pipeline.name, url) for flow in pipeline.flows]
        self.urls = {end.url for flow in self.flows for end in (*flow.sources, flow.target) if end.url}
        self.existing = {node for url in self.urls for node in _topics_in(url)}
        self.made = {node for flow in self.flows for node in flow.target.nodes()}
        self.feeders = {flow.name: self._feeders(flow) for flow in self.flows}

    def _feeders(self, flow: BoundFlow) -> set[str]:
        """Returns the flows that write what this one reads."""
        known = self.existing | self.made
        wanted = {node for source in flow.sources for node in source.nodes(known)}
        return {other.name for other in self.flows if other.target.nodes() & wanted}

    def levels(self) -> list[list[BoundFlow]]:
        """Returns the flows in the order in which one run carries everything through: each level reads what others
        wrote.
        """
        left = {flow.name: set(self.feeders[flow.name]) for flow in self.flows}
        levels = []
        while left:
            ready = {name for name, feeders in left.items() if not feeders & left.keys()}
            if not ready:
                raise ConfigError(self._cycle(left))
            levels.append([flow for flow in self.flows if flow.name in ready])
            for name in ready:
                del left[name]
        return levels

    def _cycle(self, left: Mapping[str, set[str]]) -> str:
        """Returns a circle among flows that all wait for one another, named from a flow to itself."""
        path = [min(left)]
        while True:
            feeder = min(left[path[-1]] & left.keys())
            if feeder in path:
                circle = [*path[path.index(feeder) :], feeder][::-1]
                return f"these flows feed each other in a circle and would never come to an end: {' → '.join(circle)}"
            path.append(feeder)

    def problems(self) -> list[str]:
        """Returns the problems that can be found without Spark: missing topics, options, cycles."""
        found = []
        for flow in self.flows:
            found += [f"flow {flow.name!r}: {problem}" for problem in self._problems_of(flow)]
        try:
            self.levels()
        except ConfigError as error:
            found.append(str(error))
        return found

    def _problems_of(self, flow: BoundFlow) -> Iterable[str]:
        known = self.existing | self.made
        for source in flow.sources:
            yield from _complaint(lambda source=source: source.read_options(flow.consumer))
            if source.kind == "pattern" and not source.nodes(known):
                yield f"no topic in {source.url} has a name like {source.names[0]!r}"
            for url, name in sorted(source.nodes(known) - known) if source.in_journal else ():
                there = sorted(name for where, name in self.existing if where == url)
                close = get_close_matches(name, [*there, *(made for _, made in self.made)], 1, 0.6)
                hint = f"; did you mean {close[0]!r}?" if close else f"; topics: {', '.join(there) or 'none yet'}"
                yield f"there is no topic {name!r} in {url}{hint}"
        yield from _complaint(flow.target.write_options)
        yield from _complaint(lambda: _check_policy(flow.target))


def _complaint(check: Any) -> Iterable[str]:
    try:
        check()
    except ConfigError as error:
        yield str(error)


def _check_policy(target: Endpoint) -> None:
    """Raises PolicyMismatch when an existing queue has another policy than the flow's."""
    if target.kind != "queue" or not target.policy or target.url is None or not _topics_in(target.url):
        return
    with penstock.open(target.url, read_only=True) as journal:
        if target.names[0] in journal.queues():
            journal.queue(target.names[0], **target.policy)


def _topics_in(url: str) -> list[Node]:
    """Returns the topics of a journal; none when there is no journal yet."""
    if not is_served(url) and journal_id(url) is None:
        return []
    with penstock.open(url, read_only=True) as journal:
        return [(url, name) for name in journal.topics()]


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
def frame_of(
    flow: BoundFlow, spark: SparkSession, file: str | None, frames: Sequence[DataFrame] | None = None
) -> DataFrame:
    """Returns the frame that a flow's function makes of its sources, or of other frames with their rows; ConfigError
    when it fails, or makes no stream."""
    from pyspark.sql import DataFrame

    if frames is None:
        frames = [source.read(spark, flow.consumer) for source in flow.sources]
    try:
        result: object = flow.flow(*frames)
    except Exception as error:
        line = line_of(error, file) if file else None
        raise ConfigError(f"{line + ': ' if line else ''}{error_line(error)}") from error
    if not isinstance(result, DataFrame):
        raise ConfigError(f"the function must return a DataFrame, and returned {type(result).__name__}")
    if not result.isStreaming:
        raise ConfigError(
            "the function returned a frame that is no stream: it must be made from the frames it is given"
        )
    return result


def sealed_frames(flow: BoundFlow, spark: SparkSession, checkpoint: str, hold: str) -> list[DataFrame] | None:
    """Returns streams of the sealed files that a flow has still to read; None when its sources are to be read."""
    if not all(source.in_journal for source in flow.sources):
        return None
    from penstock.spark.backfill import sealed_streams

    given = [resolved(source.read_options(flow.consumer, hold)) for source in flow.sources]
    return sealed_streams(spark, given, checkpoint)


def check_frame(flow: BoundFlow, frame: DataFrame, spark: SparkSession) -> None:
    """Raises ConfigError when a flow's result does not fit its target, or cannot be computed as a stream."""
    target = flow.target
    if target.in_journal:
        from penstock.spark.layout import SinkLayout

        SinkLayout.of(frame.schema, write_options(resolved(target.write_options())))
    else:
        _check_format(target.format, spark)
    _check_operations(frame, flow.flow.output_mode, spark)


def _check_format(format: str, spark: SparkSession) -> None:
    """Raises ConfigError when Spark has no data source of this name; Spark itself looks for a sink only when its
    query starts.
    """
    try:
        spark.readStream.format(format).load()
    except Exception as error:  # py4j's, or pyspark's over Connect; what else is said is about reading
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise ConfigError(
                f"Spark has no data source {format!r}: give its jar with --conf spark.jars=… (or spark.jars.packages=…)"
            ) from error


def _check_operations(frame: DataFrame, output_mode: str, spark: SparkSession) -> None:
    """Asks Spark whether it can run the stream, as it does when a query starts."""
    from pyspark.errors import PySparkException

    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:  # Spark Connect: only the server knows, when the query starts
        return
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[output_mode]()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)
    except PySparkException as error:
        raise ConfigError(error_line(error).removeprefix("AnalysisException: ")) from error


def schema_problems(
    graph: FlowGraph, spark: SparkSession, query_of: Callable[[str], str | None]
) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the columns of each flow, and their problems. `query_of` returns a flow's query, if it has run."""
    from penstock.spark.projection.projecting import planned_folds

    columns: dict[str, list[str]] = {}
    problems = []
    for flow in graph.flows:
        try:
            with planned_folds() as folds:
                frame = frame_of(flow, spark, graph.pipeline.file)
            columns[flow.name] = list(frame.columns)
            check_frame(flow, frame, spark)
            query = query_of(flow.name) if folds else None
            if query is not None:
                for fold in folds:
                    fold.check(fold.keeper.load(fold.wanted(query), []))
        except Exception as error:
            problems.append(f"flow {flow.name!r}: {error_line(error)}")
    return columns, problems


def make_targets(graph: FlowGraph) -> None:
    """Makes the topics and queues that flows write to, so that the flows that read them find them."""
    for flow in graph.flows:
        target: Endpoint = flow.target
        if not target.in_journal or not target.names:
            continue
        assert target.url is not None
        name = target.names[0]
        if (target.url, name) in graph.existing and not target.policy:
            continue
        try:
            with penstock.open(target.url) as journal:
                if target.kind == "queue":
                    journal.queue(name, **target.policy)
                else:
                    journal.topic(name).configure()
        except Denied as error:
            raise ConfigError(
                f"{target.label} is not in {target.url} yet, and this token may not make it ({error}): give a token "
                "with the role admin, or make it where the journal is"
            ) from error
