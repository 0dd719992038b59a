"""`session()`: a Spark session that starts quietly and leaves nothing behind.

One JVM per process, as in pyspark. `spark.stop()` ends the session and keeps the JVM for the next; `stop()` and the
end of the program end the JVM and remove its temporary files.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.spark.startup import java as javas
from penstock.spark.startup.launch import (
    ForkServer,
    Jvm,
    forget_gateway,
    goes_direct,
    launch,
    launch_by_scripts,
    worker_variables,
)
from penstock.spark.startup.settings import (
    UNNAMED,
    Scratch,
    defaults,
    from_keywords,
    merged,
    parallelism,
    with_identity,
)

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""Variables that make pyspark use Spark Connect."""

_STREAM_STOP = "20s"
"""The time that a query may take to stop before the session ends under it, which it survives, but loudly."""


class _RunningSession:
    """The JVM of this process, as far as penstock started it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.forget()

    def forget(self) -> None:
        self.owner = os.getpid()
        self.jvm: Jvm | None = None
        self.told: tuple[bool, int | None] = True, None
        """True if its master is local, and how many tasks run at once: what its processes were told."""
        self.scratch: Scratch | None = None
        self.forks: ForkServer | None = None


_running = _RunningSession()


def session(app: str = "penstock", *, master: str = "local[*]", **conf: object) -> SparkSession:
    """Returns a Spark session with settings for one machine, quiet, and gone with the program:
    `penstock.spark.session()`.

    `master` is `local[*]` (this machine), `spark://host:7077`, `yarn`, `k8s://…`, or `sc://host` for Spark Connect.
    Settings are keywords: `spark_sql_shuffle_partitions=4`, or `**{"spark.sql.shuffle.partitions": 4}`; None leaves
    one to Spark. Java is found by JAVA_HOME, on PATH, or in the `spark` extra. Where a session is active already, it
    is returned with the settings applied that can still change, as `getOrCreate` does.

        with penstock.spark.session("report") as spark:
            spark.read.format("penstock").option("url", "shop.db").option("topic", "orders").load().show()
    """
    given = with_identity(from_keywords(conf), app, master)
    with _running.lock:
        _forget_a_dead_jvm()
        if _is_connect(given):
            return _connect_session(given)
        if active() is not None or _started_by_others():
            return _session_on_foreign_ground(given)
        return _session_here(given)


def context(app: str, master: str | None) -> SparkContext:
    """Returns the driver of this process, started where there is none.

    A session of Spark Connect has no way to it, also where the driver that it speaks to is here
    (`builder.remote("local[2]")`).
    """
    with _running.lock:
        _forget_a_dead_jvm()
        running = active_context()
        return running or session(app, master=master or UNNAMED["spark.master"]).sparkContext


def active_context() -> SparkContext | None:
    """Returns the driver that runs in this process."""
    if "pyspark.core.context" not in sys.modules:
        return None
    from pyspark.core.context import SparkContext

    return SparkContext._active_spark_context


@atexit.register
def stop() -> None:
    """Ends the active session and Spark's JVM, and removes its temporary files; `session()` then starts afresh."""
    with _running.lock:
        if _running.owner != os.getpid():
            return  # a forked child: the JVM is its parent's
        _stop_session()
        jvm, scratch, forks = _running.jvm, _running.scratch, _running.forks
        _running.jvm = _running.scratch = _running.forks = None
        if jvm is not None:
            forget_gateway()
            jvm.close()
        if forks is not None:
            forks.close()
        if scratch is not None:
            scratch.remove()


def _session_here(given: dict[str, str | None]) -> SparkSession:
    """Returns a session on this process's own JVM, started now unless an earlier session left it running."""
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    chosen = str(given["spark.master"])
    told = chosen.startswith("local"), parallelism(merged(given, {}))
    if _running.jvm is not None and told != _running.told:
        stop()  # what its processes know of the master is true no more
    _running.told = told
    scratch = _running.scratch or Scratch()
    _running.scratch = scratch
    default = defaults(chosen, scratch)
    wanted = merged(given, default)
    if _running.jvm is None:
        _running.forks = ForkServer.start(chosen, scratch)
    with worker_variables(wanted, _running.forks):
        if _running.jvm is None:
            _start(wanted, merged(given, {}), scratch)
        settings = SparkConf()
        for name, value in wanted.items():
            if name in given or not settings.contains(name):
                settings.set(name, value)
        return SparkSession.builder.config(conf=settings).getOrCreate()


def _start(wanted: dict[str, str], given: dict[str, str], scratch: Scratch) -> None:
    """Starts the JVM: directly with everything, or by Spark's scripts with what the caller gave."""
    try:
        java = javas.find()
        _running.owner = os.getpid()
        if goes_direct(wanted["spark.master"], wanted):
            _running.jvm = launch(java, wanted, scratch)
        else:
            _running.jvm = launch_by_scripts(java, given, scratch)
    except BaseException:
        stop()
        raise


def _session_on_foreign_ground(given: dict[str, str | None]) -> SparkSession:
    """Returns a session where one exists, or where spark-submit or a notebook started the JVM: what they set comes
    first.
    """
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()
    present = SparkConf()
    builder = SparkSession.builder
    for name, value in merged(given, {}).items():
        if value != UNNAMED.get(name) or not present.contains(name):
            builder = builder.config(name, value)
    return builder.getOrCreate()


def _connect_session(given: dict[str, str | None]) -> SparkSession:
    """Returns a session at a server of Spark Connect: the one that is open, unless the caller names a server."""
    from pyspark.sql import SparkSession

    master = str(given["spark.master"])
    announce(master)
    opened = None if master.startswith("sc://") else active()
    builder: SparkSession.Builder = SparkSession.builder if opened is None else type(opened).builder
    for name, value in given.items():
        if value is not None and name != "spark.master":
            builder = builder.config(name, value)
    return (builder.remote(master) if master.startswith("sc://") else builder).getOrCreate()


def _is_connect(given: dict[str, str | None]) -> bool:
    return is_connect(str(given["spark.master"])) or given.get("spark.remote") is not None


def is_connect(master: str = "") -> bool:
    """Returns True if a session with this master is one of Spark Connect, whose driver is another program."""
    return master.startswith("sc://") or any(name in os.environ for name in CONNECT_VARIABLES)


def announce(master: str) -> None:
    """Says that the session to come is one of Spark Connect, where it is: functions declared before it ask for that."""
    if not is_connect(master):
        return
    try:
        import pyspark.sql.connect.session  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f'Spark Connect needs packages that are not here; run pip install "penstock[connect]". {error}'
        ) from error
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"


def active() -> SparkSession | None:
    """Returns the session that this program has: of its own JVM, or of Spark Connect."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        return SparkSession._instantiatedSession
    if "pyspark.sql.connect.session" not in sys.modules:
        return None
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    opened: Any = RemoteSession.getActiveSession() or RemoteSession._get_default_session()
    return opened  # type: ignore[no-any-return]  # the same surface, and no class in common


def _started_by_others() -> bool:
    from pyspark.core.context import SparkContext

    foreign_gateway = SparkContext._gateway is not None and _running.jvm is None
    return foreign_gateway or "PYSPARK_GATEWAY_PORT" in os.environ


def _forget_a_dead_jvm() -> None:
    if _running.owner != os.getpid():
        _running.forget()  # a forked child: the JVM is its parent's
    elif _running.jvm is not None and not _running.jvm.alive:
        stop()


def _stop_session() -> None:
    if _running.jvm is None or not _running.jvm.alive:
        return
    from pyspark.sql import SparkSession

    active = SparkSession._instantiatedSession
    if active is None:
        return
    with contextlib.suppress(Exception):
        active.conf.set("spark.sql.streaming.stopTimeout", _STREAM_STOP)
        for query in active.streams.active:
            query.stop()
    with contextlib.suppress(Exception):
        active.stop()
