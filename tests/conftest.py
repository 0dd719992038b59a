"""What every test shares: hypothesis without deadlines, because a loaded machine is slow without being wrong."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

from buffer.azure_emulator import AzureEmulator
from buffer.emulator import Emulator
from late import be_late
from nightly import PARTS, RANDOM, part_of, rooms_of

# The same examples in every run: what passed before a change and fails after it fails because of it. New ones are tried
# by `make nightly`, with the profile "random".
settings.register_profile(
    "penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=40
)
settings.register_profile(RANDOM, settings.get_profile("penstock"), derandomize=False, max_examples=400)
# --hypothesis-profile=first shows a failure as it was found, without minutes of looking for a smaller one.
settings.register_profile("first", settings.get_profile("penstock"), phases=[Phase.reuse, Phase.generate])
settings.register_profile("fast", settings.get_profile("penstock"), max_examples=10)
settings.load_profile("penstock")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast"):
        settings.load_profile("fast")
    if config.getoption("--hypothesis-profile") != RANDOM:
        # It draws from the constants of all modules that are loaded: another file, or another test beside this one,
        # would change every example.
        providers.is_local_module_file = lambda path: False
    if (seed := config.getoption("--late")) is not None:
        be_late(seed)
    # A run in the background of a shell ignores Ctrl-C, and so would every process it starts: tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Spark's JVMs live for seconds here: compiling for speed, collecting in parallel and verifying classes never pays.
    unverified = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    os.environ.setdefault("JDK_JAVA_OPTIONS", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {unverified}")


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [f"{option} {seed}" for option in ("--late", "--shuffle") if (seed := config.getoption(option)) is not None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="under 45 s: memory and SQLite; no Spark, browser, emulator, kill or model"
    )
    parser.addoption("--nightly", choices=[*PARTS, "all"], help="a part of the nightly run, or all: see nightly.py")
    parser.addoption("--shuffle", type=int, metavar="SEED", help="tests in an order drawn from the seed")
    parser.addoption("--late", type=int, metavar="SEED", help="threads begin late, drawn from the seed: see late.py")


_SLOW_ROOMS = ("crash", "model", "spark", "docs", "torture", "over_http", "slatedb", "strangers", "outbox")
_SLOW_FILES = (
    "test_page",
    "test_examples",
    "test_stores",
    "test_safety",
    "test_azure",
    "test_dist",
    "test_interrupts_everywhere",
    "test_lake_",
    "test_seal_api",
    "test_demo",
    "test_object_storage",
    "test_arguments",
    "test_openapi",
    "test_serving",
    "test_completion",
    "test_buffer_cli",
    "test_file_store",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Rooms of which no test is wanted are not even read: that takes as long as running a room."""
    return True if config.getoption("--fast") and _is_slow(collection_path) else None


def _is_slow(path: Path) -> bool:
    """Whether a folder or a file of tests is one that `--fast` leaves out."""
    return path.name in _SLOW_ROOMS or path.stem.startswith(_SLOW_FILES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--nightly")
    wanted = [item for item in items if (found := part_of(item)) == part or (part == "all" and found)]
    if config.getoption("--fast"):
        wanted = [item for item in wanted if _is_fast(item)]
    kept = set(wanted)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = wanted
    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)


def _is_fast(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) for name in ("spark", "slow")):
        return False
    if _is_slow(item.path) or any(_is_slow(Path(room)) for room in rooms_of(item)):
        return False  # asked for by name, else not even read
    call = getattr(item, "callspec", None)
    values = list(call.params.values()) if call is not None else []
    schemes = {getattr(value, "scheme", "sqlite") for value in values}
    return schemes <= {"memory", "sqlite"} and "s3" not in values and "azure" not in values


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests with the shared Spark session are marked: they run in one process."""
    if "spark" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.spark)


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


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    """One emulator of S3 for all: each test asks it for a bucket of its own."""
    running = Emulator()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureEmulator]:
    running = AzureEmulator()
    yield running
    running.stop()
