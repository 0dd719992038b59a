"""The contract suite `test_queue_worker`, over HTTP."""

from server.over_http.suite import CLOCK, TRANSACTION, contract_of

COUNTED = "outcomes are counted where the store is"

WITHOUT = {
    "test_a_handler_may_settle_its_delivery_itself": TRANSACTION,
    "test_leases_are_renewed_while_a_handler_runs_also_for_messages_taken_ahead": CLOCK,
    "test_outcomes_are_counted": COUNTED,
}

globals().update(contract_of("test_queue_worker", WITHOUT))
