"""Spark settings: what the caller asked for, and penstock's defaults around it.

The defaults are for one machine, measured on two cores: first streaming batch in half the time of a stock session,
a steady micro-batch at 80–100 ms. A cluster gets only those that hold anywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import ConfigError
from penstock.spark.startup.scratch import Scratch

_CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
MASTER_VARIABLE = "PENSTOCK_SPARK_MASTER"
"""Where `session()` tells the processes that Spark starts which master it has."""
UNNAMED = {"spark.app.name": "penstock", "spark.master": "local[*]"}
"""What `session()` is called with when the caller says nothing."""


def from_keywords(keywords: Mapping[str, object]) -> dict[str, str | None]:
    """Keyword arguments as Spark settings: `spark_sql_shuffle_partitions=4` and `**{"spark.sql.…": 4}` alike.

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
    """The settings with app and master in them, whichever way they were given."""
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
    """penstock's own settings for this master."""
    anywhere = {
        "spark.ui.showConsoleProgress": "false",
        # A worker that crashes leaves a traceback in the task's error: see `penstock.spark.payload.crashes`.
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
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
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
    }
    sockets = scratch.sockets()
    if sockets is not None:
        # Workers over Unix sockets: source to sink in 90–105 ms instead of 160–175 ms.
        local["spark.python.unix.domain.socket.enabled"] = "true"
        local["spark.python.unix.domain.socket.dir"] = str(sockets)
    return local


def merged(given: Mapping[str, str | None], default: Mapping[str, str]) -> dict[str, str]:
    """The caller's settings over the defaults."""
    return {name: value for name, value in {**default, **given}.items() if value is not None}


def threads(master: str) -> int:
    """How many tasks a local master runs at once."""
    match = re.fullmatch(r"local(?:\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\])?", master)
    if match is None:
        raise ConfigError(
            f"master {master!r} is not one that can be started here; "
            "use local, local[4] or local[*], spark://host:7077, yarn, or k8s://…"
        )
    count = match.group(1) or "1"
    return _cores() if count == "*" else int(count)


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
    """A quarter of the machine's memory, at least Spark's own 1g: in local mode the driver does all the work."""
    chosen = os.environ.get("SPARK_DRIVER_MEMORY")
    if chosen:
        return chosen
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    with contextlib.suppress(OSError, ValueError):  # no control groups, or no limit
        available = min(available, int(limit.read_text()))
    return f"{min(max(available // 4 >> 20, 1024), 16 * 1024)}m"
