"""A pipeline's graph: which flow feeds which, in what order they run, and what is wrong with it beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import penstock
from penstock.errors import ConfigError, Denied
from penstock.spark.pipeline.flows import Flow, Pipeline, error_line, place_of
from penstock.spark.pipeline.places import Endpoint, Node
from penstock.spark.source.place import is_served
from penstock.spark.source.stores import journal_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class BoundFlow:
    """A flow whose places know their journals."""

    def __init__(self, flow: Flow, pipeline: str, url: str) -> None:
        self.flow = flow
        self.name = flow.name
        self.consumer = f"{pipeline}/{flow.name}"
        self.sources = tuple(source.at(url) for source in flow.sources)
        self.target = flow.target.at(url)


class FlowGraph:
    """The flows of a pipeline over a journal, and what connects them."""

    def __init__(self, pipeline: Pipeline, url: str) -> None:
        self.pipeline = pipeline
        self.flows = [BoundFlow(flow, pipeline.name, url) for flow in pipeline.flows]
        self.urls = {place.url for flow in self.flows for place in (*flow.sources, flow.target) if place.url}
        self.existing = {node for url in self.urls for node in _topics_in(url)}
        self.made = {node for flow in self.flows for node in flow.target.nodes()}
        self.feeders = {flow.name: self._feeders(flow) for flow in self.flows}

    def _feeders(self, flow: BoundFlow) -> set[str]:
        """The flows that write what this one reads."""
        known = self.existing | self.made
        wanted = {node for source in flow.sources for node in source.nodes(known)}
        return {other.name for other in self.flows if other.target.nodes() & wanted}

    def levels(self) -> list[list[BoundFlow]]:
        """The flows in the order in which one run carries everything through: each level reads what others wrote."""
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
        """A circle among flows that all wait for one another, named from a flow to itself."""
        path = [min(left)]
        while True:
            feeder = min(left[path[-1]] & left.keys())
            if feeder in path:
                circle = [*path[path.index(feeder) :], feeder][::-1]
                return f"these flows feed each other in a circle and would never come to an end: {' → '.join(circle)}"
            path.append(feeder)

    def problems(self) -> list[str]:
        """What is wrong without asking Spark: topics that are not there, options, circles."""
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
    """PolicyMismatch when a queue is there with another policy than the flow's."""
    if target.kind != "queue" or not target.policy or target.url is None:
        return
    if target.names[0] in _queues_in(target.url):
        with penstock.open(target.url, read_only=True) as journal:
            journal.queue(target.names[0], **target.policy)


def _queues_in(url: str) -> list[str]:
    if not _topics_in(url):
        return []
    with penstock.open(url, read_only=True) as journal:
        return journal.queues()


def _topics_in(url: str) -> list[Node]:
    """The topics of a journal; none when there is no journal yet."""
    if not is_served(url) and journal_id(url) is None:
        return []
    with penstock.open(url, read_only=True) as journal:
        return [(url, name) for name in journal.topics()]


# ── with Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────
def frame_of(flow: BoundFlow, spark: SparkSession, file: str | None, hold: str | None = None) -> DataFrame:
    """What a flow's function makes of its sources; ConfigError when it fails, or makes no stream."""
    from pyspark.sql import DataFrame

    frames = [source.read(spark, flow.consumer, hold) for source in flow.sources]
    try:
        result: object = flow.flow(*frames)
    except Exception as error:
        place = place_of(error, file) if file else None
        raise ConfigError(f"{place + ': ' if place else ''}{error_line(error)}") from error
    if not isinstance(result, DataFrame):
        raise ConfigError(f"the function must return a DataFrame, and returned {type(result).__name__}")
    if not result.isStreaming:
        raise ConfigError(
            "the function returned a frame that is no stream: it must be made from the frames it is given"
        )
    return result


def check_frame(flow: BoundFlow, frame: DataFrame, spark: SparkSession) -> None:
    """ConfigError when what a flow makes does not fit its target, or cannot be computed as a stream."""
    target = flow.target
    if target.in_journal:
        from penstock.spark.sink.layout import SinkLayout
        from penstock.spark.source.options import resolved, write_options

        SinkLayout.of(frame.schema, write_options(resolved(target.write_options())))
    _check_operations(frame, flow.flow.output_mode, spark)


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
    """The columns that each flow makes, and what is wrong with them. `query_of`: a flow's query, if it has run."""
    from penstock.spark.projection.follow import planned_folds

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
