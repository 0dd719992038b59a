"""Pipelines as Python files: functions from DataFrame to DataFrame, with sources and targets declared by `@flow`."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from penstock.entity.staging.declared import DeclaredGate
from penstock.errors import ConfigError, PenstockError
from penstock.names import check_name
from penstock.spark.pipeline.places import Endpoint
from penstock.spark.startup.launch import spark_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OutputMode = Literal["append", "update", "complete"]


class Flow:
    """A function whose frames come from sources and whose result goes to a target; still callable, for tests."""

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
    """Declares a flow: the function gets one streaming DataFrame for each source, and what it returns is written.

        @flow(source=topic("orders", payloadSchema="total DOUBLE"), target=queue("alerts"))
        def alerts(orders):
            return orders.where("total > 1000").selectExpr("struct(total) AS payload", "id AS cause")

    `output_mode` is Spark's: append (rows that are final), or update (rows that changed, in aggregations). `every` is
    the least number of seconds between two batches. `gates` see every row before it is written: functions under
    `penstock.gate`, in this file or elsewhere, or names like "shop.rules:only_positive". `name` is the function's
    unless it is given; a flow's progress is kept under it.
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
    """Where the flows were read from."""

    @classmethod
    def of(cls, flows: Iterable[Flow], name: str = "pipeline", file: str | None = None) -> Pipeline:
        """A pipeline of these flows; ConfigError when two have one name."""
        made = cls(check_name(name, "pipeline"), tuple(flows), file)
        names = [flow.name for flow in made.flows]
        twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if twice is not None:
            raise ConfigError(f"two flows are named {twice!r}: their progress is kept by name, so give one another")
        return made

    def only(self, names: Sequence[str]) -> Pipeline:
        """The pipeline with just the flows of these names."""
        known = {flow.name for flow in self.flows}
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise ConfigError(f"there is no flow {unknown!r} in {self.name}; flows: {', '.join(sorted(known))}")
        return Pipeline(self.name, tuple(flow for flow in self.flows if flow.name in names), self.file)


def load_pipeline(path: str | Path, *, name: str | None = None) -> Pipeline:
    """The pipeline in a file: every flow it declares or imports. ConfigError says in which line something is wrong."""
    spark_folder()
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
        raise ConfigError(f"{place_of(error, str(file)) or path}: {error_line(error)}{_advice(error)}") from error
    flows = {id(value): value for value in vars(module).values() if isinstance(value, Flow)}
    if not flows:
        raise ConfigError(
            f"{path} declares no flow: put @flow(source=topic(…), target=topic(…)) above a function "
            "(from penstock.spark import flow, topic)"
        )
    return Pipeline.of(flows.values(), name or _name_of(file), str(file))


def _advice(error: Exception) -> str:
    """What to do about code of a file that wants Spark before it is there."""
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


def place_of(error: BaseException, file: str) -> str | None:
    """The innermost line of a file that an error came through: `pipeline.py, line 12`."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}, line {lines[-1]}" if lines else None


def error_line(error: BaseException) -> str:
    """What an error says, in a line: penstock's own speak for themselves, others with their kind."""
    text = str(error).strip()
    if isinstance(error, PenstockError):
        return text
    first = text.split("\n\nJVM stacktrace", 1)[0].strip()
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _module(file: Path) -> types.ModuleType:
    """A module for the file's code, under a name that no other module has.

    Spark's workers cannot import it, so what is defined in it travels to them by value. What lies beside the file can
    be imported, here and (`PYTHONPATH`, in `running`) by the workers.
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


def _name_of(file: Path) -> str:
    """The file's name, as far as it can be a name: `orders pipeline.py` is orders-pipeline."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in file.stem).strip("-.")
    return plain or "pipeline"
