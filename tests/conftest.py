"""What every test shares: hypothesis without deadlines, because a loaded machine is slow without being wrong."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from nightly import is_nightly

settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# --hypothesis-profile=first shows a failure as it was found, without minutes of looking for a smaller one.
settings.register_profile("first", settings.get_profile("penstock"), phases=[Phase.reuse, Phase.generate])
settings.register_profile("fast", settings.get_profile("penstock"), max_examples=10)
settings.load_profile("penstock")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast"):
        settings.load_profile("fast")
    # A run in the background of a shell ignores Ctrl-C, and so would every process it starts: tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Spark's JVMs live for seconds here: compiling for speed costs them a third of their time and never pays.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    # An archive that is there makes their start twice as fast; tests do not leave one in the user's cache.
    os.environ["PENSTOCK_SPARK_ARCHIVE"] = "use"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="under a minute: SQLite only; no Spark, browser, emulator, kill or model"
    )
    parser.addoption("--nightly", action="store_true", help="also what is left to the nightly run: see nightly.py")


_SLOW_ROOMS = ("crash", "model", "spark", "docs", "torture", "over_http", "slatedb")
_SLOW_FILES = ("test_page", "test_examples", "test_stores", "test_safety", "test_azure", "test_dist")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = items
    if config.getoption("--fast"):
        wanted = [item for item in items if _is_fast(item)]
    elif not config.getoption("--nightly"):
        wanted = [item for item in items if not item.get_closest_marker("nightly")]
    kept = set(wanted)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = wanted


def _is_fast(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) for name in ("spark", "program", "slow")):
        return False
    rooms = item.path.relative_to(item.config.rootpath / "tests").parts[:-1]
    if any(room in _SLOW_ROOMS for room in rooms) or item.path.stem.startswith(_SLOW_FILES):
        return False
    call = getattr(item, "callspec", None)
    values = list(call.params.values()) if call is not None else []
    schemes = {getattr(value, "scheme", "sqlite") for value in values}
    return schemes <= {"sqlite"} and "s3" not in values and "azure" not in values


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests left to the nightly run are marked.

    Tests with the shared Spark session run in one process; those that start a Spark of their own, in another, together
    with the torture, which starts programs as well: the halves take about as long then.
    """
    if is_nightly(item):
        item.add_marker(pytest.mark.nightly)
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)
    elif {"spark", "torture"} & set(item.path.parts) or "spark" in item.name or "docs/pipelines.md" in item.name:
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
