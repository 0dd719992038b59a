"""The contract suite `test_queue_failures`, over HTTP."""

from server.over_http.suite import STORE, TRANSACTION, contract_of

WITHOUT = {
    "test_a_failed_message_keeps_its_traceback_until_it_is_settled": STORE,
    "test_an_attempt_without_an_exception_forgets_the_traceback_of_the_one_before": STORE,
    "test_only_messages_that_failed_have_a_row_and_it_goes_with_them": STORE,
    "test_a_transaction_gives_back_with_an_exception": TRANSACTION,
}

globals().update(contract_of("test_queue_failures", WITHOUT))
