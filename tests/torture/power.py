"""Power cuts: what a disk may hold at many moments of a recorded run, each opened and checked."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torture.disk import Disk
from torture.recorder import HERE, MARK, Recording, record


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
            stderr=subprocess.DEVNULL,
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


@dataclass
class Segment:
    """The part of a recording that one run of the workload made."""

    folder: str
    begin: int
    end: int
    marks: list[tuple[int, Any]]


def segments(recording: Recording) -> list[Segment]:
    """The runs in a recording, in order."""
    found: list[Segment] = []
    for at, call in enumerate(recording.calls):
        if call.op != MARK:
            continue
        said = json.loads(call.one)
        if "begin" in said:
            found.append(Segment(str(said["begin"]), at, at, []))
        elif "end" in said:
            found[-1].end = at
        else:
            found[-1].marks.append((at, said))
    assert all(segment.end > segment.begin for segment in found), recording.output
    return found


def record_load(root: Path, scheme: str, durability: str, seed: int, steps: int, *failing: str) -> Recording:
    """Records the use of a store, or (`files`) of what is written beside one."""
    if scheme == "files":
        return record(HERE / "files" / "workload.py", root, str(seed), str(steps), *failing)
    return record(HERE / "workload.py", root, scheme, durability, str(seed), str(steps), *failing)


def cut_power(
    recording: Recording,
    root: Path,
    scheme: str,
    checker: Checker,
    *,
    seed: int,
    cuts: int,
    synced: bool,
    last: int = 0,
) -> list[str]:
    """Cuts the power at moments of every run in a recording, and kills it once at its end; what was found wrong.

    `cuts` moments anywhere in a run, or among its `last` calls.
    """
    rng = random.Random(seed)
    disk = Disk(root)
    found: list[str] = []
    done = 0
    for segment in segments(recording):
        image = root / segment.folder  # where the run was: sealed history is found by the place it was written to
        begin = max(segment.begin, segment.end - last) if last else segment.begin
        moments = sorted(rng.randrange(begin, segment.end) + 1 for _ in range(cuts))
        for moment, own in [*((moment, rng.randrange(1 << 30)) for moment in moments), (segment.end, None)]:
            disk.follow(recording.calls[done:moment])
            done = moment
            shutil.rmtree(image, ignore_errors=True)
            disk.image(segment.folder, image, None if own is None else random.Random(own))
            marks = [said for at, said in segment.marks if at < moment]
            wrong = checker.ask(scheme=scheme, folder=str(image), marks=marks, synced=synced or own is None)
            what = "a kill" if own is None else f"a power cut (seed {own})"
            found += [f"run {segment.folder}, {what} before call {moment}: {each}" for each in wrong]
        shutil.rmtree(image, ignore_errors=True)
    return found


def summary(found: Sequence[str]) -> str:
    return "\n".join(found[:5]) + (f"\n… and {len(found) - 5} more" if len(found) > 5 else "")
