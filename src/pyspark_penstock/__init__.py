"""Lets Spark find the data source by itself: `spark.read.format("penstock")` needs no registration.

Spark imports every module named pyspark_* and takes its `DefaultSource`. A module that fails to import hides all
others from it, so that this one offers nothing rather than fail.
"""

from penstock.errors import ConfigError

try:
    from penstock.spark.source import PenstockSource as DefaultSource
except (ImportError, ConfigError):  # pragma: no cover - penstock without its extra for Spark, or an old one
    pass
else:
    __all__ = ["DefaultSource"]
