"""Which Spark the tests run on, and what of them needs a newer one than the oldest."""

from __future__ import annotations

import re

import pyspark
import pytest

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
HAS_LIMITS = SPARK >= (4, 2)
HAS_TIME = SPARK >= (4, 1)
SECOND = 1 if HAS_LIMITS else 0
"""The second batch of a run, where it has several."""
needs_limits = pytest.mark.since((4, 2))


def most(count: int) -> dict[str, int]:
    """The option for batches of a size, where it is to have several batches and not what is tested."""
    return {"maxOffsetsPerTrigger": count} if HAS_LIMITS else {}


def program(text: str) -> str:
    """The text of a program, without that option where there is none."""
    return text if HAS_LIMITS else re.sub(r", maxOffsetsPerTrigger=\d+", "", text)
