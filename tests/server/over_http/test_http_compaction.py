"""The contract suite `test_compaction`, over HTTP."""

from server.over_http.suite import STORE, WRITER, contract_of

WITHOUT = {
    "test_compaction_gives_the_space_back": STORE,
    "test_space_freed_by_compaction_is_used_again": STORE,
    "test_retention_by_bytes": WRITER,
    "test_merging_changes_nothing_anybody_can_see": WRITER,
    "test_small_blocks_are_merged_in_passing": WRITER,
    "test_large_blocks_are_left_alone": WRITER,
}

globals().update(contract_of("test_compaction", WITHOUT))
