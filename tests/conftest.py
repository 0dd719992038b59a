"""What every test shares: hypothesis without deadlines, because a loaded machine is slow without being wrong."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# --hypothesis-profile=first shows a failure as it was found, without minutes of looking for a smaller one.
settings.register_profile("first", settings.get_profile("penstock"), phases=[Phase.reuse, Phase.generate])
settings.load_profile("penstock")


def pytest_configure() -> None:
    # A run in the background of a shell ignores Ctrl-C, and so would every process it starts: tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Spark's JVMs live for seconds here: compiling for speed costs them a third of their time and never pays.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    # An archive that is there makes their start twice as fast; tests do not leave one in the user's cache.
    os.environ["PENSTOCK_SPARK_ARCHIVE"] = "use"


_APART = ("test_main_job.py", "test_pipeline_process.py")
"""Programs that have nothing in this process, and go with the tests without Spark, so that both halves take as long."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests with the shared Spark session run in one process; those that start a Spark of their own, in another."""
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)
    elif item.path.name in _APART:
        return
    elif "spark" in item.path.parts or "spark" in item.name or "docs/pipelines.md" in item.name:
        item.add_marker(pytest.mark.program)


@pytest.fixture
def in_threads() -> Iterator[Callable[..., threading.Thread]]:
    """Starts threads whose failures fail the test, and waits for them at its end."""
    started: list[threading.Thread] = []
    failures: list[BaseException] = []

    def start(work: Callable[..., object], *args: object) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        started.append(thread)
        thread.start()
        return thread

    yield start
    for thread in started:
        thread.join(60)
        assert not thread.is_alive(), "a thread of this test is stuck"
    if failures:
        raise failures[0]
