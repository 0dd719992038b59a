"""Calls to a JVM that may be gone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Gone(Exception):
    """Spark cannot be reached any more."""


@contextmanager
def reaching_spark() -> Iterator[None]:
    """Tells a JVM that is gone from a query that failed: that one's exceptions come from Java, with their own words."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError:
        raise
    except (Py4JError, ConnectionError) as error:
        raise Gone(str(error) or type(error).__name__) from error


class _Hushed(logging.Filter):
    """Keeps py4j from printing a page for every call to a JVM that is gone: the flows' states say so."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname


@contextmanager
def hushed() -> Iterator[None]:
    """While it is open, only the flows' states speak of a JVM that is gone."""
    hush = _Hushed()
    loggers = [logging.getLogger(name) for name in (None, "py4j", "py4j.clientserver", "py4j.java_gateway")]
    for logger in loggers:
        logger.addFilter(hush)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(hush)
