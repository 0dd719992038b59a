"""Runs a program under the recorder (`recorder.c`) and reads what it recorded.

`record` runs a Python program whose every change below one folder is recorded; inside it, `mark` adds a line of its own
to the record and `arm` makes calls fail.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEAD = struct.Struct("<BBHiqqII")
OPEN, CLOSE, WRITE, SYNC, TRUNCATE, ALLOCATE, RENAME = range(1, 8)
UNLINK, MKDIR, RMDIR, MAP, MARK, FAILED_SYNC, LINK = range(8, 15)
KINDS = {"write": 1, "sync": 2, "open": 4, "rename": 8, "map": 16, "truncate": 32}
NO_COMPILER = "there is no C compiler (cc) here to build the recorder of system calls with"


@functools.cache
def compiler() -> str | None:
    """The C compiler, on the one system the recorder is written for."""
    return shutil.which("cc") if sys.platform == "linux" else None


@functools.cache
def library() -> Path:
    """The recorder, built once for each version of its source."""
    found = compiler()
    assert found is not None, NO_COMPILER
    source = HERE / "recorder.c"
    tag = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"penstock-recorder-{os.getuid()}-{tag}.so"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        command = [found, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(partial), str(source)]
        subprocess.run([*command, "-ldl", "-lpthread"], check=True, timeout=120)
        partial.rename(target)
    return target


@dataclass(slots=True)
class Call:
    """One recorded call."""

    op: int
    flag: int
    fd: int
    a: int
    b: int
    one: bytes
    two: bytes


def read_trace(path: Path) -> list[Call]:
    data = path.read_bytes()
    calls, at = [], 0
    while at < len(data):
        op, flag, _, fd, a, b, one, two = HEAD.unpack_from(data, at)
        at += HEAD.size
        calls.append(Call(op, flag, fd, a, b, data[at : at + one], data[at + one : at + one + two]))
        at += one + two
    return calls


@dataclass
class Recording:
    """What a program did, and how it ended."""

    calls: list[Call]
    returncode: int
    output: str

    def marks(self, until: int | None = None) -> Iterator[Any]:
        for call in self.calls[:until]:
            if call.op == MARK:
                yield json.loads(call.one)


def record(program: Path, root: Path, *arguments: str, timeout: float = 300) -> Recording:
    """Runs a program of this folder with its changes below `root` recorded; `root` is made first."""
    root.mkdir(parents=True, exist_ok=True)
    trace = root.parent / f"{root.name}.trace"
    trace.unlink(missing_ok=True)
    source = Path(__file__).parents[2] / "src"
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library()),
        "RECORD_ROOT": str(root),
        "RECORD_TRACE": str(trace),
        "PYTHONPATH": os.pathsep.join([str(source), str(HERE.parent)]),
    }
    done = subprocess.run(
        [sys.executable, str(program), str(root), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Recording(read_trace(trace) if trace.exists() else [], done.returncode, done.stdout + done.stderr)


# ── inside the recorded program ──────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def _loaded() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def mark(**said: Any) -> None:
    """Adds a line to the record; without a recorder, does nothing."""
    if "RECORD_TRACE" in os.environ:
        line = json.dumps(said).encode()
        _loaded().recorder_mark(line, ctypes.c_long(len(line)))


def arm(kinds: str, at: int, error: int, *, more: int = 0) -> None:
    """Makes the `at`-th call from now on of these kinds (comma-separated) fail, and `more` after it (-1: all)."""
    which = sum(KINDS[kind] for kind in kinds.split(",")) if kinds else 0
    _loaded().recorder_arm(which, ctypes.c_long(at), error, more)


def armed_calls() -> int:
    """How many calls of the armed kinds there were since `arm`."""
    found = _loaded().recorder_calls
    found.restype = ctypes.c_long
    return int(found())
