"""The integration tests of kombu 5.7.0 (`t/integration/common.py` of its source archive), run on our transport.

    python tests/strangers/kombu_suite.py

One case is left out: `test_failover_switches_to_alternate_url` tells two brokers apart by their ports, and the url of a
journal has no port.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

VERSION = "5.7.0"
CLASSES = {
    "BasicFunctionality": 13,
    "BaseExchangeTypes": 5,
    "BaseTimeToLive": 3,
    "BasePriority": 4,
    "BaseMessage": 4,
    "BaseEventLoop": 1,
    "BaseFailover": 17,
}
"""By class, how many cases it has, so that none is lost on the way."""
LEFT_OUT = {"BaseFailover": {"test_failover_switches_to_alternate_url": None}}
PLACE = "KOMBU_TESTS"


def main() -> int:
    with TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*download, "-d", folder, f"kombu=={VERSION}"], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (tests,) = Path(folder).glob("*/t/integration")
        apart = ("--noconftest", "-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider")
        quiet = ("-p", "no:langsmith_plugin", "-v", __file__)
        environ = {**os.environ, PLACE: str(tests)}
        return subprocess.call([sys.executable, "-m", "pytest", *apart, *quiet], env=environ)


if PLACE in os.environ:
    import kombu
    import pytest

    import penstock.integrations.celery  # noqa: F401
    from penstock.integrations.opening import close_all

    sys.path.insert(0, os.environ[PLACE])
    theirs = importlib.import_module("common")
    for name in CLASSES:
        globals()[f"Test{name.removeprefix('Base')}"] = type(
            f"Test{name}", (getattr(theirs, name),), LEFT_OUT.get(name, {})
        )

    @pytest.fixture
    def connection(tmp_path: Path) -> Iterator[kombu.Connection]:
        yield kombu.Connection(f"penstock://{tmp_path}/shop.db")
        close_all()

    @pytest.fixture
    def invalid_connection() -> kombu.Connection:
        return kombu.Connection("penstock:///proc/no/shop.db")

    @pytest.fixture
    def failover_connection(tmp_path: Path) -> Iterator[kombu.Connection]:
        yield kombu.Connection(["penstock+http://127.0.0.1:1", f"penstock://{tmp_path}/shop.db"])
        close_all()

    def test_all_cases_are_there() -> None:
        counts = {name: sum(case.startswith("test_") for case in dir(getattr(theirs, name))) for name in CLASSES}
        assert kombu.__version__ == VERSION
        assert counts == CLASSES


if __name__ == "__main__":
    sys.exit(main())
