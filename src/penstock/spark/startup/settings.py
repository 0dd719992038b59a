"""Spark settings: what the caller asked for, and penstock's defaults around it.

The defaults are for one machine, measured on two cores: first streaming batch in half the time of a stock session,
a steady micro-batch at 80–100 ms. A cluster gets only those that hold anywhere.

One process keeps Spark's temporary files in a folder (`Scratch`): removed at exit, or by the next start after a kill.

Spark writes shuffle files, spilled blocks and sockets under `spark.local.dir` and `java.io.tmpdir`. Both point here.
A process that is killed cannot clean up, so each folder is held by a lock that the kernel lets go of when its
owner is gone; every start removes the folders that no process holds. (A lock, not the pid alone: pids are reused, and
mean nothing to another container that shares the temporary folder.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import ConfigError

_PREFIX = "penstock-"
_LOCK = "owner.lock"
_SHORT_TMP = Path("/tmp")

# sockaddr_un holds 104 bytes on macOS and 108 on Linux; Spark's sockets are named ".<uuid>.sock".
_SOCKET_PATH_LIMIT = 103
_SOCKET_NAME = 1 + 1 + 36 + 5


class Scratch:
    """A private temporary folder, kept until `remove` or the end of the process."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._short: Scratch | None = None

    def sockets(self) -> Path | None:
        """Returns a folder whose path leaves room for a socket's name: this one, or one in /tmp; None when there is
        neither.
        """
        if _fits(self.path):
            return self.path
        if self._short is None and os.access(_SHORT_TMP, os.W_OK | os.X_OK) and self.path.parent != _SHORT_TMP:
            self._short = Scratch(_SHORT_TMP)
        return None if self._short is None else self._short.path

    def remove(self) -> None:
        """Deletes the folder with everything in it; calling it again changes nothing."""
        if self._short is not None:
            self._short.remove()
        if self._lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder)) + _SOCKET_NAME <= _SOCKET_PATH_LIMIT


def sweep(parent: Path) -> list[Path]:
    """Removes the folders whose owner is gone, and returns them."""
    removed = []
    for path in parent.glob(f"{_PREFIX}[0-9]*-*"):
        if path.is_symlink() or not _abandoned(path):
            continue
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path)
    return removed


def _abandoned(path: Path) -> bool:
    try:
        if path.stat().st_uid != os.getuid():
            return False
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return not _alive(path)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return not _alive(path)
    finally:
        os.close(lock)


def _alive(path: Path) -> bool:
    """Returns True if a process has the pid in the folder's name: its owner may be between making folder and lock."""
    try:
        os.kill(int(path.name.removeprefix(_PREFIX).partition("-")[0]), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MASTER_VARIABLE = "PENSTOCK_SPARK_MASTER"
"""The variable by which `session()` tells the processes that Spark starts which master it has."""
PARALLELISM_VARIABLE = "PENSTOCK_SPARK_PARALLELISM"
"""The variable by which `session()` tells these processes how many tasks run at once."""
UNNAMED = {"spark.app.name": "penstock", "spark.master": "local[*]"}
"""The settings of `session()` when the caller says nothing."""


def from_keywords(keywords: Mapping[str, object]) -> dict[str, str | None]:
    """Returns keyword arguments as Spark settings: `spark_sql_shuffle_partitions=4` and `**{"spark.sql.…": 4}` alike.

    None stands for "leave this one to Spark", which also drops penstock's default.
    """
    conf: dict[str, str | None] = {}
    for keyword, value in keywords.items():
        name = keyword if "." in keyword else keyword.replace("_", ".")
        if not name.startswith("spark.") or name.endswith("."):
            raise ConfigError(
                f"session() does not know {keyword!r}; write a Spark setting as spark_sql_shuffle_partitions=4, "
                'or **{"spark.sql.shuffle.partitions": 4}'
            )
        text = None if value is None else _as_text(name, value)
        if name in conf and conf[name] != text:
            raise ConfigError(f"{name} is given twice, as {conf[name]!r} and as {text!r}")
        conf[name] = text
    return conf


def with_identity(conf: Mapping[str, str | None], app: str, master: str) -> dict[str, str | None]:
    """Returns the settings with app and master in them, whichever way they were given."""
    if not isinstance(app, str) or not app.strip():
        raise ConfigError(f"app must be a name for the application, not {app!r}")
    if not isinstance(master, str) or not master.strip():
        raise ConfigError(f"master must be a Spark master such as local[*] or spark://host:7077, not {master!r}")
    named = dict(conf)
    for name, value in (("spark.app.name", app), ("spark.master", master)):
        given = named.get(name)
        if given is None:
            named[name] = value
        elif value not in (UNNAMED[name], given):
            raise ConfigError(f"{name} is given twice, as {given!r} and as {value!r}")
    return named


def defaults(master: str, scratch: Scratch) -> dict[str, str]:
    """Returns penstock's own settings for this master."""
    from penstock.spark.versions import CHECKPOINT_FILES, HAS_FILE_SOCKETS  # where pyspark is not, nothing is started

    anywhere = {
        "spark.ui.showConsoleProgress": "false",
        # A worker that crashes leaves a traceback in the task's error: see `penstock.spark.payload`.
        "spark.python.worker.faulthandler.enabled": "true",
        # State on disk with a cache, not in the driver's heap; a checkpoint that was made otherwise stays as it is.
        "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    if find_spec("pandas") is None:
        # Without pandas, pyspark warns at every plain udf that it cannot be the Arrow kind.
        anywhere["spark.sql.execution.pythonUDF.arrow.enabled"] = "false"
    if not master.startswith("local"):
        return anywhere
    local = {
        **anywhere,
        "spark.ui.enabled": "false",
        "spark.driver.memory": _memory(),
        "spark.local.dir": str(scratch.path),
        # A streaming batch pays for every partition, full or empty: 50 cost 1.6 s where 2 cost 0.1 s.
        "spark.sql.shuffle.partitions": str(min(max(threads(master), 2), 16)),
        # The default manager runs `stat` in a subprocess for every file: 60 ms a batch against 18 ms.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    }
    sockets = scratch.sockets() if HAS_FILE_SOCKETS else None
    if sockets is not None:
        # Workers over Unix sockets: source to sink in 90–105 ms instead of 160–175 ms.
        local["spark.python.unix.domain.socket.enabled"] = "true"
        local["spark.python.unix.domain.socket.dir"] = str(sockets)
    return local


def merged(given: Mapping[str, str | None], default: Mapping[str, str]) -> dict[str, str]:
    """Returns the caller's settings over the defaults."""
    return {name: value for name, value in {**default, **given}.items() if value is not None}


def threads(master: str) -> int:
    """Returns the number of tasks a local master runs at once."""
    match = re.fullmatch(r"local(?:\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\])?", master)
    if match is None:
        raise ConfigError(
            f"master {master!r} is not one that can be started here; "
            "use local, local[4] or local[*], spark://host:7077, yarn, or k8s://…"
        )
    count = match.group(1) or "1"
    return _cores() if count == "*" else int(count)


def parallelism(conf: Mapping[str, str]) -> int | None:
    """Returns the number of tasks settings let run at once; None when only Spark will know."""
    if given := _whole(conf.get("spark.default.parallelism")):
        return given
    if conf["spark.master"].startswith("local"):
        return threads(conf["spark.master"])
    instances, cores = _whole(conf.get("spark.executor.instances")), _whole(conf.get("spark.executor.cores"))
    return instances * cores if instances and cores else _whole(conf.get("spark.cores.max"))


def told_parallelism() -> int | None:
    """Returns the number of tasks Spark runs at once, for a process that it started; None when `session()` could not
    tell."""
    return _whole(os.environ.get(PARALLELISM_VARIABLE))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and int(text) else None


def _as_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float | Path):
        return str(value)
    raise ConfigError(f"{name} must be text, a number, true or false, not {value!r}")


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _memory() -> str:
    """Returns a quarter of the machine's memory, at least Spark's own 1g: in local mode the driver does all the
    work.
    """
    chosen = os.environ.get("SPARK_DRIVER_MEMORY")
    if chosen:
        return chosen
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    with contextlib.suppress(OSError, ValueError):  # no control groups, or no limit
        available = min(available, int(limit.read_text()))
    return f"{min(max(available // 4 >> 20, 1024), 16 * 1024)}m"
