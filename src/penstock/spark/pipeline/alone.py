"""A pipeline's progress: where it is kept, and the lock that lets one process run it at a time.

The kernel releases the lock when the process is gone, however it ended.
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

from penstock.core.engine.url import parse_url
from penstock.core.names import check_name, split_url
from penstock.errors import ConfigError, Locked
from penstock.spark.options import is_served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lies_here(url: str) -> bool:
    """Returns True if a journal is a file of this machine: not at a server, not in a bucket."""
    return not is_served(url) and not parse_url(url).in_bucket


def checkpoint_root(url: str) -> str:
    """Returns the place of the progress of pipelines over a journal: beside the journal, or in the working folder
    for a journal at a server or in a bucket.
    """
    if lies_here(url):
        return f"{parse_url(url)[1]}.checkpoints"
    if is_served(url):
        parts = split_url(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        where = [str(parts.hostname), str(port), *parts.path.split("/")]
    else:
        where = parse_url(url)[1].split("/")
    return str(Path.cwd() / f"{'-'.join(piece for piece in where if piece)}.checkpoints")


def query_at(checkpoint: str, spark: SparkSession) -> str | None:
    """Returns the id of the streaming query of a checkpoint; None when the query has not run yet."""
    from pyspark.errors import AnalysisException

    file = f"{checkpoint}/metadata"
    try:
        if "://" not in file and Path(file).exists():
            found = Path(file).read_text("utf-8")
        else:
            found = spark.read.text(file).collect()[0].value
    except (OSError, AnalysisException):
        return None
    return str(json.loads(found)["id"])


@contextmanager
def alone(url: str, pipeline: str) -> Iterator[None]:
    """Holds the lock of a pipeline over a journal; raises Locked when another process has the lock."""
    file = Path(checkpoint_root(url)) / f"{pipeline}.lock"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"a pipeline keeps its progress beside the journal, and cannot write there: {file.parent}: {error.strerror}"
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


def remove_checkpoint(checkpoint: Path) -> None:
    """Removes a flow's checkpoint, the id of its query first.

    Otherwise, after a kill half-way, the remains would begin anew under the same id, and the journal, which knows the
    query's batches by their numbers, would treat new batches as repeated batches.
    """
    (checkpoint / "metadata").unlink(missing_ok=True)
    shutil.rmtree(checkpoint)


def forget_checkpoints(url: str, pipeline: str) -> bool:
    """Removes a pipeline's checkpoints beside a journal; returns whether there were any.

    Raises Locked while the pipeline runs.

    Checkpoints in a place of `--checkpoints` belong to the user; the empty lock file stays.
    """
    folder = Path(checkpoint_root(url)) / check_name(pipeline, "pipeline")
    if not folder.parent.exists():
        return False
    with alone(url, pipeline):
        there = folder.exists()
        for checkpoint in folder.glob("*/"):
            remove_checkpoint(checkpoint)
        shutil.rmtree(folder, ignore_errors=True)
    return there
