"""`view`: a temporary view that always shows current data.

`CREATE TEMPORARY VIEW … USING penstock` keeps a resolved plan, and with it a Python source that Spark plans once: what
the view showed first it shows for ever. A view that is the text of a query is resolved for each query instead. The text
here names a table function. Spark asks the function for a plan each time, and gets the plan of a new `read_topic`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.core.surface.journal import Journal
from penstock.errors import ConfigError
from penstock.spark.history import OptionValue, read_topic
from penstock.spark.options import location_of_journal

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def view(
    spark: SparkSession, name: str, journal: Journal | str, topic: str | None = None, **options: OptionValue
) -> None:
    """Makes a temporary view of a topic as it is whenever the view is used, also in SQL and in other views.

    The other arguments are those of `read_topic`. Every use of the view in a query is a frame of its own. The view
    lives as long as the session and this program.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"a view is named by letters, digits and _, not {name!r}")
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigError(
            "a view that always shows current data is made in the program that runs Spark, and this session is one "
            "over Spark Connect: call read_topic for each query instead"
        )
    location = location_of_journal(journal, "a view")  # the view outlives a handle, and the program's folder
    if location.token is not None:
        options = {"token": location.token.reveal(), **options}
    read_topic(spark, location.url, topic, **options)  # a mistake is an error here, and not at the first use
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    function = f"penstock_view_{name.lower()}"
    builder = _PlanBuilder(spark, location.url, topic, options)
    registry = spark._jsparkSession.sessionState().tableFunctionRegistry()
    registry.createOrReplaceTempFunction(function, builder, "python_udtf")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{name}` AS SELECT * FROM {function}()")


class _PlanBuilder:
    """The builder of the plan of a table function, as a function of Scala's."""

    def __init__(self, spark: SparkSession, url: str, topic: str | None, options: dict[str, OptionValue]) -> None:
        self._spark = spark
        self._url = url
        self._topic = topic
        self._options = options

    def apply(self, arguments: object) -> JavaObject:
        frame = read_topic(self._spark, self._url, self._topic, **self._options)
        return frame._jdf.queryExecution().analyzed()

    class Java:
        implements = ("scala.Function1",)
