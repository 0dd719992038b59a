"""A real standalone cluster on this machine: a master and two workers, each a process of its own.

Workers may be put into mount namespaces of their own, in which the driver's folders are empty: then nothing that only
the driver's disk has can reach a task by accident.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.spark.startup import java as javas
from penstock.spark.versions import SPARK


def why_not_hidden() -> str | None:
    """Why a folder cannot be hidden from a process here; None when it can."""
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"], capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else f"no mount namespaces here: {tried.stderr.strip()}"


class Cluster:
    """A running cluster; `stop` ends all of it, executors included. Workers see nothing in `hidden` folders."""

    def __init__(self, folder: Path, workers: int = 2, hidden: Sequence[Path] = ()) -> None:
        self._folder = folder
        self._hidden = hidden
        self._home = javas.home_for_scripts(javas.find(), folder)
        self._processes: list[subprocess.Popen[bytes]] = []
        port = _free_port()
        self.url = f"spark://127.0.0.1:{port}"
        try:
            self._start("master.Master", "--port", str(port), "--webui-port", "0")
            for _ in range(workers):
                self._start("worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0", self.url)
            self._wait_for("Registering worker", workers)
        except BaseException:
            self.stop()
            raise

    def _start(self, what: str, *arguments: str) -> None:
        number = len(self._processes)
        environ = {
            **os.environ,
            "JAVA_HOME": str(self._home),
            "SPARK_HOME": str(SPARK),
            "SPARK_WORKER_DIR": str(self._folder / f"worker-{number}"),
            "SPARK_LOCAL_DIRS": str(self._folder / f"local-{number}"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
        }
        with (self._folder / f"{what.partition('.')[0]}-{number}.log").open("wb") as log:
            command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
            command += ["--host", "127.0.0.1", *arguments]
            self._processes.append(
                subprocess.Popen(
                    self._apart(command) if what == "worker.Worker" else command,
                    stdout=log,
                    stderr=log,
                    env=environ,
                    start_new_session=True,  # a worker's executors are then in its process group
                )
            )

    def _apart(self, command: list[str]) -> list[str]:
        """The same command, in a mount namespace of its own with nothing in the hidden folders."""
        if not self._hidden:
            return command
        mounts = [f"mount -t tmpfs tmpfs {shlex.quote(str(folder))}" for folder in self._hidden]
        return ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, f"exec {shlex.join(command)}"])]

    def _wait_for(self, line: str, times: int) -> None:
        deadline = time.monotonic() + 300
        while (self._folder / "master-0.log").read_text().count(line) < times:
            ended = [process.args for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"the cluster did not start: {ended} {self.logs()}")
            time.sleep(0.1)

    def pids(self) -> list[int]:
        """Returns the processes of the master and the workers."""
        return [process.pid for process in self._processes]

    def logs(self) -> str:
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(self._folder.glob("*.log")))

    def close(self) -> None:
        self.stop()

    def stop(self) -> None:
        for process in self._processes:
            with_group = os.getpgid(process.pid) == process.pid if process.poll() is None else False
            if with_group:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
