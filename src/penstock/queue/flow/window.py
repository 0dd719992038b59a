"""A sliding window: how many of something began within the last period, and when the next one may.

Exact in that no stretch of the period's length ever sees more than the rate allows. Times are kept to a hundredth of
the period, rounded so that room comes back late rather than early: a window is at most a hundred pairs of numbers.
"""

from __future__ import annotations

import msgspec

from penstock.clock import set_back_ms
from penstock.queue.flow.rate import Rate

SLOTS = 100


class Window(msgspec.Struct, array_like=True):
    """When things began, and how many of them, the oldest first."""

    begun: list[tuple[int, int]] = []

    def forget(self, rate: Rate, now: int) -> None:
        """Leaves out what lies a period back."""
        bound = now - rate.period_ms
        self.begun = [one for one in self.begun if one[0] > bound]

    def set_back(self, now: int) -> bool:
        """The clock was set back: nothing has begun later than now. True when something had."""
        moved = [(at - set_back_ms(at, now), count) for at, count in self.begun]
        changed, self.begun = moved != self.begun, moved
        return changed

    def room(self, rate: Rate, now: int) -> int:
        """How many more may begin now."""
        self.forget(rate, now)
        return max(0, rate.count - sum(count for _, count in self.begun))

    def next_ms(self, rate: Rate, now: int) -> int:
        """When the next one may begin: now, or when enough of the others lie a period back."""
        self.forget(rate, now)
        left = sum(count for _, count in self.begun)
        for at, count in self.begun:
            if left < rate.count:
                break
            left -= count
            now = at + rate.period_ms
        return now

    def note(self, rate: Rate, now: int, count: int) -> None:
        """Some began now."""
        slot = max(1, rate.period_ms // SLOTS)
        if self.begun:
            now = max(now, self.begun[-1][0])  # a clock may go back a little without anyone setting windows back
            if self.begun[-1][0] // slot == now // slot:
                count += self.begun.pop()[1]
        self.begun.append((now, count))

    def is_over(self, rate: Rate, now: int) -> bool:
        """Whether nothing of it counts any more."""
        return not self.begun or self.begun[-1][0] + rate.period_ms <= now
