"""Lets Spark find the data source by itself: `spark.read.format("penstock-buffer")` needs no registration.

A module named pyspark_* can offer one source; `pyspark_penstock` offers the other. Like that one, this offers nothing
rather than fail to import.
"""

try:
    from penstock.spark.buffer.source import BufferSource as DefaultSource
except ImportError:  # pragma: no cover - penstock without its extra for Spark
    pass
else:
    __all__ = ["DefaultSource"]
