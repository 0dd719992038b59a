"""The contract suite `test_queue_worker`, over HTTP."""

from server.over_http.suite import CLOCK, TRANSACTION, contract_of

AHEAD = "a worker over http takes nothing ahead"
MIDDLEWARE = "a worker over http has no middleware"
COUNTED = "outcomes are counted where the store is"

WITHOUT = {
    "test_a_handler_may_settle_its_delivery_itself": TRANSACTION,
    "test_leases_are_renewed_while_a_handler_runs_also_for_messages_taken_ahead": CLOCK,
    "test_middleware_surrounds_the_handler": MIDDLEWARE,
    "test_middleware_may_decide_what_becomes_of_a_failure": MIDDLEWARE,
    "test_middleware_that_fails_does_not_lose_the_message": MIDDLEWARE,
    "test_stopping_finishes_what_has_begun_and_gives_back_the_rest": AHEAD,
    "test_stopping_an_asynchronous_worker": AHEAD,
    "test_outcomes_are_counted": COUNTED,
}

globals().update(contract_of("test_queue_worker", WITHOUT))
