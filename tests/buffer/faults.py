"""A store that misbehaves on purpose: by seed, or exactly where a test says."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.errors import StorageError
from penstock.objects.store import ObjectStore, Stored


class Rates(NamedTuple):
    """How often, from 0 to 1, a call goes wrong in each way."""

    fail: float = 0.0  # nothing is done, an error is raised
    lose: float = 0.0  # it is done, and an error is raised
    delay: float = 0.0  # it waits up to `longest` seconds, before or after
    stale: float = 0.0  # a list shows the objects of an earlier one
    longest: float = 0.004


class Killed(BaseException):
    """The process died in the middle of this call."""


class FaultyStore:
    """Wraps a store. `script` holds what the next calls of a verb do; without one, the seeded rates decide.

    A script's step is "ok", "fail", "lose", "hold" (wait until `release`), or a function that is given the call.
    """

    def __init__(self, inner: ObjectStore, rates: Rates | None = None, seed: int = 0) -> None:
        self._inner = inner
        self.url = f"faulty+{inner.url}"
        self.identity = inner.identity
        self.rates = rates or Rates()
        self.script: dict[str, deque[Any]] = {}
        self.calls: Counter[str] = Counter()
        self.puts: list[str] = []
        self.dead = False
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._listed: dict[str, list[str]] = {}

    def on(self, verb: str, *steps: Any) -> None:
        self.script.setdefault(verb, deque()).extend(steps)

    def release(self) -> None:
        self._released.set()

    def _do(self, verb: str, path: str, act: Callable[[], Any]) -> Any:
        with self._lock:
            self.calls[verb] += 1
            steps = self.script.get(verb)
            step = steps.popleft() if steps else self._drawn()
            pause = self._random.uniform(0, self.rates.longest) if self._random.random() < self.rates.delay else 0.0
            before = self._random.random() < 0.5
        if self.dead:
            raise Killed
        if pause and before:
            time.sleep(pause)
        if step == "hold":
            self._released.wait(30)
        if step == "fail":
            raise StorageError(f"injected: {verb} {path} was refused", retryable=True)
        if callable(step):
            return step(act)
        result = act()
        if pause and not before:
            time.sleep(pause)
        if self.dead:
            raise Killed
        if step == "lose":
            raise StorageError(f"injected: the answer to {verb} {path} was lost", retryable=True)
        return result

    def _drawn(self) -> str:
        draw = self._random.random()
        if draw < self.rates.fail:
            return "fail"
        return "lose" if draw < self.rates.fail + self.rates.lose else "ok"

    def get(self, path: str) -> Any:
        return self._do("get", path, lambda: self._inner.get(path))

    def read(self, path: str, known: Stored | None = None) -> Stored | None:
        return self._do("read", path, lambda: self._inner.read(path, known))

    def put(self, path: str, data: bytes) -> None:
        self.puts.append(path)
        self._do("put", path, lambda: self._inner.put(path, data))

    def put_if(self, path: str, data: bytes, version: Any) -> Any:
        verb = "put_trail" if path.endswith(".trail") else "put_if"
        return self._do(verb, path, lambda: self._inner.put_if(path, data, version))

    def list(self, prefix: str) -> Iterator[str]:
        found = self._do("list", prefix, lambda: list(self._inner.list(prefix)))
        with self._lock:
            stale = self._random.random() < self.rates.stale
        if stale and prefix in self._listed:
            return iter(self._listed[prefix])
        self._listed[prefix] = found
        return iter(found)

    def delete(self, paths: Sequence[str]) -> int:
        return self._do("delete", "", lambda: self._inner.delete(paths))

    def sweep(self, prefix: str, older_than_ms: int) -> None:
        self._do("sweep", prefix, lambda: self._inner.sweep(prefix, older_than_ms))
