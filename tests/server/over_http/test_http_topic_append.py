"""The contract suite `test_topic_append`, over HTTP."""

from server.over_http.suite import WRITER, contract_of

WITHOUT = {
    "test_headers_count_when_blocks_are_cut": WRITER,
    "test_beyond_the_highest_position_nothing_is_appended": WRITER,
    "test_expired_dedup_keys_are_removed_in_passing": WRITER,
}

globals().update(contract_of("test_topic_append", WITHOUT))
