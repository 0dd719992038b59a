"""The sentences in which Spark reports an error of penstock's: its sentence, where it would begin with a traceback.

Spark quotes what a Python process says of an exception in the first line of its own, and puts pages of Java below it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from traceback import walk_stack
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader

from penstock.errors import PenstockError
from penstock.spark.versions import SPARK

C = TypeVar("C", bound=type[Any])

_ASKED = (
    *("__init__", "schema", "reader", "writer", "streamWriter", "partitions", "read"),
    *("initialOffset", "end_after", "done", "reportLatestOffset", "prepareForTriggerAvailableNow", "write", "commit"),
)


def in_sentences(cls: C) -> C:
    """Returns a class whose methods Spark calls, and in which errors of penstock's leave no traceback."""
    for name in _ASKED:
        if name == "__init__" and issubclass(cls, DataSourceStreamReader):
            continue  # while one is made, some versions of Spark let another error follow, and would show that alone
        if (method := vars(cls).get(name)) is not None:
            setattr(cls, name, _plainly(method))
    return cls


def _plainly(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def plain(*arguments: Any, **named: Any) -> Any:
        try:
            found = method(*arguments, **named)
        except PenstockError:
            _hide_traceback()
            raise
        return _each_plainly(found) if isinstance(found, Iterator) else found

    return plain


def _each_plainly(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except PenstockError:
        _hide_traceback()
        raise


def _hide_traceback() -> None:
    """Hides the traceback.

    Spark's worker looks for this name when it reports an exception, which ends it: no other error is meant.

    Only where a worker of Spark's has called: another process goes on, and its children would inherit it.
    """
    if any(Path(frame.f_code.co_filename).is_relative_to(SPARK) for frame, _ in walk_stack(None)):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
