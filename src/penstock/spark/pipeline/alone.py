"""A pipeline's progress: where it is kept, and the lock that lets one process run it at a time.

The kernel lets go of the lock when that process is gone, however it went.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.engine.url import parse_url
from penstock.errors import ConfigError, Locked
from penstock.names import check_name, split_url
from penstock.spark.source.place import is_served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def checkpoint_root(url: str) -> str:
    """Where the progress of pipelines over a journal is kept: beside it; for a served one, in the working folder."""
    if not is_served(url):
        return f"{parse_url(url)[1]}.checkpoints"
    parts = split_url(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    name = "-".join([str(parts.hostname), str(port), *(piece for piece in parts.path.split("/") if piece)])
    return str(Path.cwd() / f"{name}.checkpoints")


def query_at(checkpoint: str, spark: SparkSession) -> str | None:
    """The id of the streaming query that a checkpoint belongs to; None when it has not run yet."""
    from pyspark.errors import AnalysisException

    file = f"{checkpoint}/metadata"
    try:
        found = Path(file).read_text("utf-8") if "://" not in file else spark.read.text(file).collect()[0].value
    except (OSError, AnalysisException):
        return None
    return str(json.loads(found)["id"])


@contextmanager
def alone(url: str, pipeline: str) -> Iterator[None]:
    """Holds the lock of a pipeline over a journal; Locked when another process has it."""
    root = Path(checkpoint_root(url))
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = os.open(root / f"{pipeline}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"a pipeline keeps its progress beside the journal, and cannot write there: {root}: {error.strerror}"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(lock, 100, 0).decode(errors="replace").strip()
            raise Locked(
                f"pipeline {pipeline!r} runs already over this journal{f' ({owner})' if owner else ''}; "
                "stop that one first, or give this one another --name"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def forget_checkpoints(url: str, pipeline: str) -> bool:
    """Removes a pipeline's checkpoints beside a journal; whether there were any. Locked when it runs.

    Those that `--checkpoints` put elsewhere are the user's.
    """
    check_name(pipeline, "pipeline")
    root = Path(checkpoint_root(url))
    if not (root / pipeline).exists() and not (root / f"{pipeline}.lock").exists():
        return False
    with alone(url, pipeline):
        shutil.rmtree(root / pipeline, ignore_errors=True)
        (root / f"{pipeline}.lock").unlink(missing_ok=True)
    return True
