"""The differences between the versions of Spark, of which the oldest is `OLDEST`. Nothing else asks for a version.

| | 4.0 | 4.1 | 4.2 and newer |
|---|---|---|---|
| a stream is asked for the end of a batch with its start, and may be limited | no | no | yes |
| `TIME` | no | yes | yes |
| sockets of workers are files | no | yes | yes |
| runs on Java 24 and newer | no | yes | yes |
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

try:
    import pyspark
except ImportError as error:
    raise ConfigError('Spark is not installed; run pip install "penstock[spark]".') from error

OLDEST = (4, 0)
_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

if _VERSION < OLDEST:
    raise ConfigError(
        f"penstock needs Spark {'.'.join(map(str, OLDEST))} or newer, and pyspark {pyspark.__version__} is installed: "
        'run pip install --upgrade "pyspark>=4"'
    )

from pyspark.sql import types as T  # noqa: E402
from pyspark.sql.datasource import (  # noqa: E402
    DataSourceArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)
from pyspark.sql.pandas.types import to_arrow_schema  # noqa: E402

SPARK = Path(pyspark.__file__).parent
"""The installed pyspark package."""
HAS_FILE_SOCKETS = _VERSION >= (4, 1)
NEWEST_JAVA = 23 if _VERSION < (4, 1) else None
"""The newest Java that this Spark runs on; None: no Java is too new."""
_STREAMING = "org.apache.spark.sql.execution.streaming"
CHECKPOINT_FILES = f"{_STREAMING}.{'checkpointing.' if _VERSION >= (4, 1) else ''}FileSystemBasedCheckpointFileManager"
STREAM_CLASSES = f"{_STREAMING}{'.runtime' if _VERSION >= (4, 1) else ''}"
"""The package of the classes by which Spark runs streams."""
AVAILABLE_NOW_IS_ONE_BATCH = _VERSION < (4, 2)
"""True if trigger(availableNow=True) ends after a batch, even if that was one that was not finished before."""
TIMES: tuple[type[T.DataType], ...] = (T.TimeType,) if _VERSION >= (4, 1) else ()


def arrow_schema_of(schema: T.StructType) -> pa.Schema:
    """Returns the Arrow schema in which Spark hands over rows of a schema: times in UTC."""
    if _VERSION >= (4, 2):
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # type: ignore[call-arg,unused-ignore]


def check_batch_limits(given: frozenset[str], names: Sequence[str]) -> None:
    """Raises ConfigError when one of the options that limit a stream's batches was given, and this Spark cannot."""
    named = next((name for name in names if name.lower() in given), None)
    if named is not None and _VERSION < (4, 2):
        raise ConfigError(
            f"{named} needs Spark 4.2 or newer, and this is {pyspark.__version__}, where a batch has all that is "
            "there: leave it out"
        )


if TYPE_CHECKING or _VERSION >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 asks of a stream's writer, too, whether it is an Arrow writer."""


class ArrowStreamWriter(DataSourceStreamArrowWriter):
    """A stream's writer that takes record batches."""


class OffsetReader(DataSourceStreamReader):
    """Reads a stream; asked for the end of the next batch with its start, also where Spark does not say it."""

    limited: bool
    """True if the options limit batches."""

    @abstractmethod
    def end_after(self, start: dict[str, int], *, limited: bool) -> dict[str, int]:
        """Returns the end of the batch that begins at `start`. `limited`: as the options say."""

    def plan(self, start: dict[str, int], end: dict[str, int]) -> None:
        """Hears of every batch that is planned."""

    def done(self, reached: dict[str, int]) -> None:
        """Hears that the checkpoint holds all batches up to there as complete."""


if TYPE_CHECKING or _VERSION >= (4, 2):
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    class LimitedReader(OffsetReader, SupportsTriggerAvailableNow):
        """A reader that Spark tells where a batch begins, and whether it may be limited."""

        def getDefaultReadLimit(self) -> ReadLimit:
            return ReadMaxRows(1) if self.limited else ReadAllAvailable()  # how many, `end_after` knows

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
            self.done(start)
            return self.end_after(start, limited=not isinstance(limit, ReadAllAvailable))

else:

    class LimitedReader(OffsetReader):
        """A reader that Spark asks for the newest offset alone.

        Where a batch begins it has heard by then: a query that goes on plans a batch from its newest offset to the same
        first. That one may be of a batch that was not finished. A batch is complete when the next offset is asked for;
        trigger(availableNow=True) never asks again, and says so by `commit`, in the next batch.
        """

        _at: dict[str, int] | None = None
        """The end of the batch that was planned last; None for a new query."""
        _ran = False
        """True if it was planned in order to run."""

        def latestOffset(self) -> dict[str, int]:
            if self._at is None:
                return self.end_after(self.initialOffset(), limited=False)
            if self._ran:
                self.done(self._at)
            return self.end_after(self._at, limited=False)

        def plan(self, start: dict[str, int], end: dict[str, int]) -> None:
            self._at, self._ran = end, start != end

        def commit(self, end: dict[str, int]) -> None:
            self.done(end)
