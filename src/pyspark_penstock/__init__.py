"""Lets Spark find the data source by itself: `spark.read.format("penstock")` needs no registration.

Spark imports every module named pyspark_* and takes its `DefaultSource`. A module that fails to import hides all
others from it, so that this one offers nothing rather than fail.
"""

try:
    from penstock.spark.source import PenstockSource as DefaultSource
except ImportError:  # pragma: no cover - penstock without its extra for Spark
    pass
else:
    __all__ = ["DefaultSource"]
