"""`mapInArrow` without pandas: pyspark asks for pandas to be installed, and then does not use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    Map = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: Map, schema: StructType) -> DataFrame:
    """A frame of what a function makes of each partition's record batches."""
    plan: Any = getattr(frame, "_jdf", None)
    if plan is None or find_spec("pandas") is not None:
        return frame.mapInArrow(function, schema)
    from pyspark.sql import DataFrame as ClassicFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    mapped = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = mapped(*[frame[name] for name in frame.columns])
    return ClassicFrame(plan.mapInArrow(column._jc, False, None), frame.sparkSession)
