"""The contract suite `test_topic_read`, over HTTP."""

from __future__ import annotations

from server.over_http.suite import MANY, TRANSACTION, WRITER, contract_of

WITHOUT: dict[str, str] = {
    "test_every_event_is_found_by_position_and_by_id": MANY,
    "test_merged_blocks_read_the_same": WRITER,
    "test_bad_arguments_are_refused_at_once": TRANSACTION,
}

globals().update(contract_of("test_topic_read", WITHOUT))
