"""The contract suite `test_topic_read`, over HTTP."""

from server.over_http.suite import MANY, PAGES, STORE, TRANSACTION, contract_of

WITHOUT = {
    "test_a_million_events_are_streamed_in_constant_memory": STORE,
    "test_an_unfinished_read_lets_go_when_it_is_dropped": PAGES,
    "test_a_topic_of_a_hundred_thousand_small_kinds_and_keys": MANY,
    "test_every_event_is_found_by_position_and_by_id": MANY,
    "test_a_transaction_refuses_the_same_arguments": TRANSACTION,
}

globals().update(contract_of("test_topic_read", WITHOUT))
