"""Lets Spark find the data source by itself: `spark.read.format("penstock-buffer")` needs no registration.

A module named pyspark_* can offer one source; `pyspark_penstock` offers the other. Like that one, this offers nothing
rather than fail to import.
"""

from penstock.errors import ConfigError

try:
    from penstock.spark.buffer import BufferSource as DefaultSource
except (ImportError, ConfigError):  # pragma: no cover - penstock without its extra for Spark, or an old one
    pass
else:
    __all__ = ["DefaultSource"]
