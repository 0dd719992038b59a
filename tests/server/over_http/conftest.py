"""The contract suites' fixtures, for journals at the other end of a url."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.server.limits import Limits
from server.over_http import suite  # noqa: F401 - makes the contract suites' helpers importable
from server.over_http.shared_server import SharedServer

from engines import KINDS, Kind  # isort: skip
from journals import Place  # isort: skip

LIMITS = Limits(max_body=512 << 20)

WITH_EVERY_PUSH = {
    # streams
    "test_history_comes_first_and_then_what_is_appended",
    "test_no_gap_and_no_duplicate_while_others_append",
    "test_a_slow_subscriber_falls_back_to_reading_the_log",
    "test_a_subscription_can_be_iterated_asynchronously",
    "test_a_topic_that_does_not_exist_yet_can_be_followed",
    "test_threads_that_share_a_subscription_share_its_events",
    "test_closing_from_another_thread_ends_the_iteration",
    "test_closing_the_journal_wakes_its_subscribers",
    "test_the_position_moves_past_what_was_left_out",
    "test_a_worker_gets_what_it_chose_and_its_cursor_passes_the_rest",
    "test_a_read_is_a_snapshot_whatever_happens_meanwhile",
    "test_arrow_has_the_same_columns_as_the_events",
    # long polls, and those who wait in them
    "test_in_an_event_loop",
    "test_a_cancelled_block_gives_the_message_back_uncounted",
    "test_a_receiver_without_an_end_waits_until_the_journal_is_closed",
    "test_a_worker_handles_everything_in_order_and_moves_its_cursor_afterwards",
    "test_closing_the_journal_stops_its_workers_wherever_they_run",
    "test_a_failure_beyond_the_budget_surfaces_at_stop",
    "test_every_message_is_handled_and_acknowledged",
    "test_an_interrupt_in_a_handler_ends_the_worker_and_keeps_the_message",
    "test_a_cancelled_worker_finishes_what_it_has",
    "test_those_who_wait_are_woken_and_read_the_results_once",
    "test_waiting_ends_in_time_with_the_journal_and_with_its_task",
    "test_a_pushed_call_is_made_by_a_worker",
    "test_values_come_through_schedules_workers_and_dead_letters",
    # errors
    "test_bad_positions_ids_and_times_are_refused",
    "test_a_conflict_in_a_batch_refuses_the_whole_batch",
    "test_a_refused_push_leaves_nothing_behind",
    "test_a_read_only_journal_looks_but_does_not_touch",
    "test_reading_trimmed_history_raises_and_says_where_to_go_on",
    "test_a_dead_letter_keeps_type_message_and_traceback",
    "test_what_cannot_be_stored_gives_the_message_up_and_loses_nothing",
    # sizes and spellings
    "test_a_batch_of_a_hundred_thousand",
    "test_a_large_take_spans_blocks_and_lease_records",
    "test_the_longest_names_and_keys_are_stored",
    "test_sizes_out_of_range_are_refused",
    "test_any_other_topic_name_is_good",
    "test_bytes_stay_bytes",
}
"""What is special over HTTP. That everything else answers as in this process, `tests/model` says with every push."""


class ServedPlace(Place):
    """A place whose journals are served: what a test opens is a client."""

    def __init__(self, kind: Kind, folder: Path, shared_server: SharedServer) -> None:
        super().__init__(kind, folder)
        self._server = shared_server
        self._served: dict[int, tuple[penstock.Journal, str]] = {}

    def open(self, **options: Any) -> penstock.Journal:
        local = penstock.open(self.url, **options)
        url = self._server.move_in(local, limits=LIMITS)
        remote = penstock.open(url, read_only=bool(options.get("read_only")))
        self._served[id(remote)] = (local, url)
        self._open.append(remote)
        return remote

    def _end(self, local: penstock.Journal, url: str) -> None:
        self._server.move_out(url)
        local.close()

    def reopen(self, journal: penstock.Journal, **options: Any) -> penstock.Journal:
        journal.close()
        self._end(*self._served.pop(id(journal)))
        return self.open(**options)

    def close(self) -> None:
        super().close()
        for local, url in self._served.values():
            self._end(local, url)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.name.partition("[")[0] not in WITH_EVERY_PUSH:
        item.add_marker(pytest.mark.nightly("over-http"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs on every engine elsewhere runs on one here: a server is the same above each of them."""
    here = Path(__file__).parent
    seen: dict[tuple[str, str], Kind] = {}
    kept, left = [], []
    for item in items:
        kind = item.callspec.params.get("place") if hasattr(item, "callspec") else None
        if kind is not None and here in item.path.parents:
            first = seen.setdefault((item.path.name, item.originalname), kind)  # type: ignore[attr-defined]
            if kind is not first:
                left.append(item)
                continue
        kept.append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(scope="session")
def shared_server() -> Iterator[SharedServer]:
    shared_server = SharedServer()
    yield shared_server
    shared_server.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, shared_server: SharedServer) -> Iterator[Place]:
    place = ServedPlace(getattr(request, "param", KINDS[0]), tmp_path, shared_server)
    yield place
    place.close()


@pytest.fixture
def url(place: Place) -> str:
    return place.url


@pytest.fixture
def clock() -> penstock.ManualClock:
    return penstock.ManualClock()


@pytest.fixture
def journal(place: Place, clock: penstock.ManualClock) -> penstock.Journal:
    return place.open(clock=clock, durability="process")


@pytest.fixture
def topic(journal: penstock.Journal) -> penstock.Topic:
    return journal.topic("orders")


@pytest.fixture
def reopen(place: Place, clock: penstock.ManualClock) -> Callable[[penstock.Journal], penstock.Journal]:
    return lambda journal: place.reopen(journal, clock=clock, durability="process")
