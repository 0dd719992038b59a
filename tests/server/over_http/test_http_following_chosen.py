"""The contract suite `test_following_chosen`, over HTTP."""

from server.over_http.suite import STORE, TRANSACTION, contract_of

WITHOUT = {
    "test_what_cannot_be_chosen_is_not_decoded_and_nothing_is_read_twice": STORE,
    "test_a_transaction_reads_by_the_beginning_of_keys": TRANSACTION,
}

globals().update(contract_of("test_following_chosen", WITHOUT))
