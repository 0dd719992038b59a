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


class Contention:
    """Waits after a lost race, in units of what a round of the race takes: short on a disk, longer across a network."""

    # Linear, and short at first: with few contenders every round has a winner, and an idle store helps no contender.
    # With many, the waits grow until a round has about one of them in it.
    _STEP = 0.5
    _MOST_ROUNDS = 32.0
    _WEIGHT = 0.2

    def __init__(self) -> None:
        self._round = 0.005
        self._random = random.Random()

    def took(self, seconds: float) -> None:
        """Learns from one more round."""
        self._round += self._WEIGHT * (seconds - self._round)

    def delay(self, losses: int) -> float:
        """Seconds to wait after losing this many times in a row."""
        rounds = min(self._MOST_ROUNDS, self._STEP * losses)
        return min(2.0, self._random.uniform(0.0, rounds) * self._round)
