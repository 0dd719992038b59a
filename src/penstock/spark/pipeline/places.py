"""Where flows read from and write to: topics, queues, buffers, and whatever else Spark has a format for.

A place is a value. It says what it is (`label`), which nodes of the pipeline's graph it stands for (`nodes`), and how
Spark opens it. Options are those of the data source, in its words or in Python's: `payloadSchema`, `payload_schema`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.entity.staging.declared import DeclaredGate, check_gate_names, load_gates
from penstock.errors import ConfigError, PenstockError
from penstock.names import check_name, shown_url
from penstock.spark.source.options import check_stream, read_options, resolved, write_options
from penstock.spark.source.place import absolute_url

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
        """Whether it is a part of a journal."""
        return self.kind in ("topic", "pattern", "queue")

    def at(self, url: str) -> Endpoint:
        """The place with its journal known: its own, or the pipeline's."""
        return replace(self, url=absolute_url(self.url or url)) if self.in_journal else self

    def gated(self, gates: Sequence[str | DeclaredGate]) -> Endpoint:
        """The place with gates that see what is written to it."""
        if not self.in_journal:
            raise ConfigError(f"gates see what is written to topics and queues, and the target is {self.label}")
        if "gates" in self.options:
            raise ConfigError(f"the gates of {self.label} are named twice: by the flow, and by its target")
        if isinstance(gates, str) or not all(isinstance(one, str | DeclaredGate) for one in gates):
            raise ConfigError('gates is a list of names ("shop.rules:only_positive") and of functions under @gate(…)')
        names = check_gate_names(one if isinstance(one, str) else one.name for one in gates)
        return replace(self, options={**self.options, "gates": msgspec.json.encode(names).decode()})

    def nodes(self, known: Iterable[Node] = ()) -> frozenset[Node]:
        """What it stands for in the graph; `known` is what a pattern chooses from."""
        if self.kind == "pattern":
            from penstock.spark.source.ranges import matches

            return frozenset((url, name) for url, name in known if url == self.url and matches(self.names[0], name))
        return frozenset((self.url or self.format, name) for name in self.names)

    def read(self, spark: SparkSession, consumer: str, hold: str | None = None) -> DataFrame:
        """The stream of what comes to this place; while there is a file `hold`, a journal's begins no batch."""
        options = self.read_options(consumer)
        if hold is not None and self.in_journal:
            options["hold"] = hold
        return spark.readStream.format(self.format).options(**options).load()

    def read_options(self, consumer: str) -> dict[str, str]:
        """The data source's options; a journal's cursor follows the flow unless the place names one."""
        if not self.in_journal:
            return dict(self.options)
        options = {"consumer": consumer, "url": self.url or "", **self.options, **self._naming()}
        check_stream(read_options(resolved(options)))
        return options

    def write(self, frame: DataFrame, output_mode: str) -> DataStreamWriter:
        """A writer of a stream to this place, once for every batch whatever is killed when.

        Spark lets no data source in Python take the rows of an aggregation as they change. Those are written batch
        by batch instead, under the query's own id and the batch's number, which the journal remembers alike.
        """
        options = self.write_options()
        if self.format.startswith("penstock") and output_mode != "append":
            return frame.writeStream.foreachBatch(BatchByBatch(self.format, options)).outputMode(output_mode)
        return frame.writeStream.format(self.format).options(**options).outputMode(output_mode)

    def write_options(self) -> dict[str, str]:
        """The sink's options."""
        if not self.in_journal:
            return dict(self.options)
        if self.kind == "pattern" or len(self.names) > 1:
            raise ConfigError(f"a flow writes to one topic, not to {self.label}")
        options = {"url": self.url or "", **self.options, **self._naming()}
        made = write_options(resolved(options))
        if made.place.server is None:
            load_gates(made.gates)
        return options

    def _naming(self) -> dict[str, str]:
        if self.kind == "pattern":
            return {"topicpattern": self.names[0]}
        return {self.kind: ",".join(self.names)} if self.names else {}


class BatchByBatch:
    """Writes the batches of a stream one by one, each once."""

    def __init__(self, format: str, options: Mapping[str, str]) -> None:
        self.format = format
        self.options = dict(options)

    def __call__(self, batch: DataFrame, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise PenstockError("Spark did not say which streaming query a batch belongs to")
        writer = batch.write.format(self.format).mode("append").options(**self.options)
        writer.options(txnAppId=f"query {query}", txnVersion=number).save()


def topic(*names: str, pattern: str | None = None, url: str | None = None, **options: object) -> Endpoint:
    """A topic to read from or write to; several (or a `pattern` of names) to read from as one stream.

    As a target without a name, rows say in a column `topic` where they go. `url` is another journal than the
    pipeline's. The options are those of the data source: `topic("orders", payloadSchema="customer STRING")`.
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
    """A queue to push to, made with `policy` when it is not there; or to read the messages of, without taking them."""
    check_name(name, "queue")
    return Endpoint("penstock", f"queue {name}", _options(options, "queue"), "queue", (name,), url, dict(policy or {}))


def buffer_at(url: str, **options: object) -> Endpoint:
    """A buffer in object storage to read from or write to; the options are those of the source `penstock-buffer`.

    Options that it does not know are the object store's own, so all of them are spelled as there.
    """
    if not isinstance(url, str) or not url:
        raise ConfigError(f"a buffer is named by its url (s3://bucket/prefix, file:///dir), not {url!r}")
    shown = shown_url(url)
    given = {"url": url, **{name: _text(name, value) for name, value in options.items()}}
    return Endpoint("penstock-buffer", f"buffer {shown}", given, "buffer", (f"{shown} {given.get('manifest', '')}",))


def external(format: str, path: str | None = None, **options: object) -> Endpoint:
    """Anything else Spark reads or writes as a stream: `external("parquet", "lake/raw")`, `external("kafka", …)`."""
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
