"""Power cuts: what a disk may hold at many moments of a recorded run, each opened and checked."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torture.disk import Disk
from torture.recorder import HERE, MARK, Recording


class Checker:
    """A process that opens stores (`check.py`); one that a store takes down is a finding, and is started anew."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **store: Any) -> list[str]:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(store) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            return json.loads(answer)  # type: ignore[no-any-return]
        self._process = None
        return [f"the process that opened the store died: {process.wait(60)}"]

    def _start(self) -> subprocess.Popen[str]:
        source = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE.parent)])
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "check.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.stdin is not None and self._process.stdout is not None:
            self._process.stdin.close()
            self._process.wait(60)
            self._process.stdout.close()


def cut_power(
    recording: Recording,
    root: Path,
    scheme: str,
    checker: Checker,
    *,
    seed: int,
    cuts: int,
    synced: bool,
    after: int = 0,
) -> list[str]:
    """Cuts the power at `cuts` moments of a recording after a call; what was found wrong, with its moment and seed."""
    rng = random.Random(seed)
    moments = sorted(rng.randrange(after, len(recording.calls)) for _ in range(cuts))
    disk = Disk(root)
    image = root.parent / f"{root.name}.image"
    found: list[str] = []
    marks: list[Any] = []
    done = 0
    for moment in moments:
        disk.follow(recording.calls[done:moment])
        marks += [json.loads(call.one) for call in recording.calls[done:moment] if call.op == MARK]
        done = moment
        own = rng.randrange(1 << 30)
        shutil.rmtree(image, ignore_errors=True)
        disk.image(image, random.Random(own))
        wrong = checker.ask(scheme=scheme, folder=str(image), marks=marks, synced=synced)
        found += [f"power cut before call {moment} (seed {own}): {each}" for each in wrong]
    shutil.rmtree(image, ignore_errors=True)
    return found


def first_mark(recording: Recording, name: str) -> int:
    """Where in a recording a mark stands."""
    for at, call in enumerate(recording.calls):
        if call.op == MARK and name in json.loads(call.one):
            return at
    raise AssertionError(f"the recording has no mark {name!r}: {recording.output}")


def summary(found: Sequence[str]) -> str:
    return "\n".join(found[:5]) + (f"\n… and {len(found) - 5} more" if len(found) > 5 else "")
