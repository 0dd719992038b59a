"""The contract suite `test_dropping`, over HTTP."""

from server.over_http.suite import STORE, TRANSACTION, contract_of

WITHOUT = {
    "test_nothing_of_a_dropped_topic_is_left_in_the_store": STORE,
    "test_a_topic_made_again_knows_nothing_of_the_dropped_one": STORE,
    "test_the_positions_of_a_name_never_restart": STORE,
    "test_numbers_are_not_given_out_again_when_the_newest_topic_goes": STORE,
    "test_what_is_computed_of_a_topic_is_not_kept_after_a_drop": STORE,
    "test_a_fence_keeps_topics_from_being_dropped": TRANSACTION,
    "test_a_transaction_is_let_finish_first": TRANSACTION,
    "test_a_read_only_reader_sees_it_go": STORE,
    "test_a_subscriber_that_has_read_everything_goes_on_with_the_topic_made_anew": (
        "see test_dropping_api: a client that has not connected yet follows what it finds"
    ),
    "test_another_journal_object_does_not_write_into_the_old_number": STORE,
    "test_housekeeping_clears_it_without_being_asked": STORE,
}

globals().update(contract_of("test_dropping", WITHOUT))
