"""Sources and sinks that kill a process, once, at a stage of a batch.

The order to kill lies in a folder, as a file: `stage target hits`. Whoever reaches the stage counts down and, at zero,
takes the file away and kills the target with SIGKILL: itself (`worker`), Spark's JVM (`jvm`), the driver program
(`program`), whose numbers lie in the folder above, or the server that works for it, whose number lies in its folder. It
dies with its victim, unless the target is called `jvm-orphan` or `server-orphan`: then it goes on. A JVM and a program
are shared by queries with orders of their own, in folders beside each other: each waits at its stage, so that one kill
meets all of them there.

    planned    the offsets are in the checkpoint's log, nothing has been read
    reading    a task has read some of its rows
    writing    a task has staged its rows
    publishing inside the sink's commit: in the middle of the journal's transaction, after a server has taken in a share
               of what it is to commit, or before the manifest's put
    published  the target has the batch, the sink's commit has not returned: nothing in the commit log yet
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from penstock.buffer.manifest import ManifestObject
from penstock.spark.buffer import BufferSource
from penstock.spark.buffer import BufferStreamReader as BufferReader
from penstock.spark.sink import BatchWriter, StreamWriter, TopicTarget
from penstock.spark.source import PenstockSource, StreamReader
from penstock.transfer import publishing

STAGES = ("planned", "reading", "writing", "publishing", "published")
_PATIENCE_SECONDS = 600
_COMMITTING = (
    *((publishing, "append_wires"), (publishing, "publish"), (TopicTarget, "_send_share")),
    (publishing.RowsInCommit, "append"),
)
"""What is called within a small commit, in one that was staged in steps, in one that a server makes of objects, and for
a block whose rows have options."""


def order_kill(folder: Path, stage: str, target: str, hits: int = 0) -> None:
    (folder / "done").unlink(missing_ok=True)
    (folder / "order").write_text(f"{stage} {target} {hits}")


KILLED: set[str] = set()
"""The processes that were killed, in tests of this process, by their ids."""


def was_killed(folder: Path) -> bool:
    """Whether the order was carried out; the process is counted then."""
    if not (folder / "done").exists():
        return False
    KILLED.add((folder / "done").read_text())
    return True


def reach(folder: str, stage: str) -> None:
    """Kills whom the order names, if it is for this stage and its time has come."""
    target = _due(Path(folder), stage)
    if target is None:
        return
    done = Path(folder) / "done"
    if target == "worker":
        done.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    together = Path(folder).parent
    who = target.partition("-")[0]
    victim = int(((Path(folder) if who == "server" else together) / f"{who}.pid").read_text())
    done.write_text(str(victim))
    _wait(lambda: not list(together.glob("*/order")))
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    _wait(lambda: not _alive(victim))
    if not target.endswith("-orphan"):
        os._exit(1)


def _due(folder: Path, stage: str) -> str | None:
    """The target of the order, when it is due; tasks of a batch reach a stage at the same time, one is chosen."""
    order = folder / "order"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            wanted, target, hits = order.read_text().split()
        except FileNotFoundError:
            return None
        if wanted != stage:
            return None
        if int(hits) > 0:
            order.write_text(f"{wanted} {target} {int(hits) - 1}")
            return None
        order.rename(folder / "done")
        return target


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not until():
        assert time.monotonic() < deadline, "the others have not reached their stage"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _replaced(owner: Any, name: str, new: Callable[..., Any]) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


class KillsReading:
    """What a stream's reader does besides."""

    kill: str

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Any:
        reach(self.kill, "planned")
        return super().partitions(start, end)  # type: ignore[misc]

    def read(self, partition: Any) -> Iterator[Any]:
        for batch in super().read(partition):  # type: ignore[misc]
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            reach(self.kill, "reading")
            yield batch.slice(half)


class KillsWriting:
    """What a writer does besides, of a batch or of a stream, whose commit is told the batch's number."""

    kill: str

    def write(self, iterator: Any) -> Any:
        message = super().write(iterator)  # type: ignore[misc]
        reach(self.kill, "writing")
        return message

    def commit(self, messages: Sequence[Any], *number: int) -> None:
        with self.publishing():
            super().commit(messages, *number)  # type: ignore[misc]
        reach(self.kill, "published")

    def publishing(self) -> contextlib.AbstractContextManager[None]:
        stack = contextlib.ExitStack()
        for owner, name in _COMMITTING:
            stack.enter_context(_replaced(owner, name, self._then_killing(getattr(owner, name))))
        append = ManifestObject.append

        def killing(manifest: Any, *args: Any) -> int:
            reach(self.kill, "publishing")
            return append(manifest, *args)

        stack.enter_context(_replaced(ManifestObject, "append", killing))
        return stack

    def _then_killing(self, old: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(*args: Any, **options: Any) -> Any:
            done = old(*args, **options)
            reach(self.kill, "publishing")
            return done

        return replaced


class KillingReader(KillsReading, StreamReader):
    pass


class KillingStreamWriter(KillsWriting, StreamWriter):
    pass


class KillingBatchWriter(KillsWriting, BatchWriter):
    pass


class KillingBufferReader(KillsReading, BufferReader):
    pass


class Kills:
    """What a source does besides: option kill, the folder of the order, goes to its readers and writers."""

    kinds: tuple[type, ...]

    def __init__(self, options: Any) -> None:
        options = dict(options)
        self.kill = options.pop("kill")
        super().__init__(options)  # type: ignore[call-arg]

    def streamReader(self, schema: StructType) -> Any:
        return self._armed(super().streamReader(schema))  # type: ignore[misc]

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return self._armed(super().streamWriter(schema, overwrite))  # type: ignore[misc]

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return self._armed(super().writer(schema, overwrite))  # type: ignore[misc]

    def _armed(self, made: Any) -> Any:
        kind = next(kind for kind in self.kinds if issubclass(kind, type(made)))
        armed = object.__new__(kind)
        vars(armed).update(vars(made), kill=self.kill)
        return armed


class KillingSource(Kills, PenstockSource):
    kinds = (KillingReader, KillingStreamWriter, KillingBatchWriter)

    @classmethod
    def name(cls) -> str:
        return "penstock-killing"


class KillingBufferSource(Kills, BufferSource):
    kinds = (KillingBufferReader, KillingStreamWriter)

    @classmethod
    def name(cls) -> str:
        return "penstock-buffer-killing"
