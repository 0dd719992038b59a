"""The contract suite `test_subscription`, over HTTP."""

from server.over_http.suite import LAG, SENT, contract_of

WITHOUT = {
    "test_raise_tells_a_slow_subscriber_where_it_was_and_goes_on_telling": LAG,
    "test_lag_does_not_concern_history": LAG,
    "test_drop_skips_to_the_newest_and_counts_exactly": LAG,
    "test_what_is_dropped_and_what_comes_add_up_under_load": LAG,
    "test_drop_counts_what_compaction_took_and_holes_are_no_events": LAG,
    "test_a_subscriber_below_what_was_compacted_is_told": SENT,
}

globals().update(contract_of("test_subscription", WITHOUT))
