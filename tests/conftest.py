"""What every test shares: hypothesis without deadlines, because a loaded machine is slow without being wrong."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# --hypothesis-profile=first shows a failure as it was found, without minutes of looking for a smaller one.
settings.register_profile("first", settings.get_profile("penstock"), phases=[Phase.reuse, Phase.generate])
settings.load_profile("penstock")


def pytest_configure() -> None:
    """A run in the background of a shell ignores Ctrl-C, and so would every process it starts: tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of Spark share one session, so they go to one worker, and first, since they take longest."""
    on_spark = [item for item in items if "spark" in item.path.parts or "spark" in item.name]
    for item in on_spark:
        item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item not in on_spark)
