"""Starts the Azure emulator, where there is one, and gives out containers.

Azurite runs on node. `make test` installs it beside the environment where npm is at hand; one on PATH will do too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from email.utils import formatdate
from pathlib import Path
from typing import Any

from .emulator import free_port, wait_for_start

ACCOUNT = "devstoreaccount1"
#: The same in every installation of the emulator, and published with it.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def azurite() -> str | None:
    """The program, or None where it is not installed."""
    beside = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    if beside.exists() and shutil.which("node"):
        return str(beside)
    return shutil.which("azurite-blob")


class AzureEmulator:
    """A running Azure emulator that keeps everything in memory."""

    def __init__(self) -> None:
        program = azurite()
        assert program is not None, "azurite is not installed"
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-azurite-")  # where it leaves a file of its own
        self._process = subprocess.Popen(
            [
                program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent",
                "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck",
            ],
            cwd=self._folder.name,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._containers = 0
        wait_for_start(self._process, self.container, "Azure")

    @property
    def options(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint, "account_name": ACCOUNT, "account_key": KEY}

    def container(self) -> str:
        """The url of a new container."""
        name = f"container-{self._containers}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02", "Content-Length": "0"}
        # Azure's shared key signature: eleven standard headers (all empty here), those of Azure, and what is asked for.
        asked = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        own = f"x-ms-date:{headers['x-ms-date']}\nx-ms-version:{headers['x-ms-version']}"
        text = "PUT" + "\n" * 12 + own + "\n" + asked
        signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
        request = urllib.request.Request(f"{self.endpoint}/{name}?restype=container", method="PUT", headers=headers)
        with urllib.request.urlopen(request, timeout=10):
            self._containers += 1
        return f"az://{name}"

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._folder.cleanup()
