"""Starts the S3 emulator and gives out buckets."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_start(process: subprocess.Popen[bytes], ready: Callable[[], object], what: str) -> None:
    """Asks until the program answers; ends it when it does not."""
    deadline = time.monotonic() + 60
    while True:
        try:
            ready()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if process.poll() is not None or time.monotonic() > deadline:
                process.terminate()
                process.wait(10)
                raise RuntimeError(f"the {what} emulator did not start") from None
            time.sleep(0.05)


class Emulator:
    """A running S3 emulator."""

    def __init__(self) -> None:
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("s3_emulator.py")), str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._buckets = 0
        wait_for_start(self._process, lambda: self._put("/ready"), "S3")

    @property
    def options(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": "test",
            "virtual_hosted_style_request": "false",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same options, as variables that every process of a test may find."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def bucket(self) -> str:
        """The url of a new bucket."""
        self._buckets += 1
        self._put(f"/bucket-{self._buckets}")
        return f"s3://bucket-{self._buckets}"

    def forget(self) -> None:
        """Drops every bucket, and the memory they hold."""
        self._request("/moto-api/reset", "POST")

    def _put(self, path: str) -> None:
        self._request(path, "PUT")

    def _request(self, path: str, method: str) -> None:
        request = urllib.request.Request(self.endpoint + path, method=method)
        with urllib.request.urlopen(request, timeout=10):
            pass

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)
