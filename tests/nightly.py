"""Which tests `make test` leaves to `make nightly`: those that ask the object-store engine again what is asked already.

A commit of SlateDB takes about 1.5 ms of a core and an emulator's as much again, so this engine alone would be a
third of the suite. Every push has it in the whole engine contract, in the parts of the other contracts named here, in
the models, kills, and the engine's own tests on a folder and the S3 emulator; ten tests of the engine contract also in
both emulators. The rest of the contracts stand on the engine contract, with five other engines in every push.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

RANDOM = "random"
"""The profile of hypothesis that tries other examples in every run, and ten times as many."""
_ON_SLATEDB = {
    "test_open",
    "test_topic_append",
    "test_topic_read",
    "test_transactions",
    "test_group_commit",
    "test_cursors",
    "test_queue_delivery",
    "test_queue_transactions",
    "test_queue_crossings",
    "test_entity_streams",
    "test_entity_fences",
}
"""Of the journal's, queues' and entities' contracts, the files that run on slatedb with every push."""
_IN_EMULATORS = {
    "test_a_committed_value_is_read_back",
    "test_a_scan_includes_its_start_and_excludes_its_stop_in_both_directions",
    "test_a_snapshot_does_not_move",
    "test_an_exception_rolls_everything_back",
    "test_a_range_is_deleted_and_may_be_written_again",
    "test_a_relaxed_commit_is_visible_at_once_and_survives_closing",
    "test_a_store_is_found_again_after_closing",
    "test_opening_a_missing_store_for_reading_is_an_error_and_makes_nothing",
    "test_a_store_opened_for_reading_reads_and_refuses_to_write",
    "test_a_backup_is_a_store_of_its_own",
}
"""Of the engine contract, what runs in the emulators of S3 and Azure with every push."""


def examples(count: int) -> int:
    """How many examples a model is tried with, where every push has `count`."""
    return count * 10 if settings.get_current_profile_name() == RANDOM else count


def rooms_of(item: pytest.Item) -> tuple[str, ...]:
    """The folders of a test below `tests`: a checkout's own path says nothing of it, be it named `spark`."""
    return item.path.relative_to(item.config.rootpath / "tests").parts[:-1]


def is_nightly(item: pytest.Item) -> bool:
    """Whether a test is left to the nightly run."""
    call = getattr(item, "callspec", None)
    if call is None:
        return False
    rooms, file = rooms_of(item), item.path.stem
    if "contract" in rooms and rooms[-1] != "engine":
        kind = call.params.get("place")
        return getattr(kind, "scheme", "") == "slatedb" and file not in _ON_SLATEDB
    if file == "test_engine_contract":
        return item.name.partition("[")[0] not in _IN_EMULATORS
    if rooms[-2:] == ("engine", "slatedb"):
        return call.params.get("home") == "azure"
    # "process" means "disk" on this engine: the second kill proves the first again.
    return call.params.get("scheme") == "slatedb" and call.params.get("durability") == "process"
