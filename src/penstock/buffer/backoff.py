"""How long to wait before trying again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator


class Backoff:
    """Waits that grow with every failure and are spread at random, so that those who collided do not collide again."""

    def __init__(self, *, first: float = 0.002, most: float = 1.0, seed: int | None = None) -> None:
        self._first = first
        self._most = most
        self._random = random.Random(seed)

    def delay(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row."""
        ceiling = min(self._most, self._first * 2.0 ** min(failures, 30))
        return self._random.uniform(ceiling / 4, ceiling)

    def attempts(self) -> Iterator[int]:
        """Counts attempts without end, waiting between them."""
        failures = 0
        while True:
            yield failures
            time.sleep(self.delay(failures))
            failures += 1
