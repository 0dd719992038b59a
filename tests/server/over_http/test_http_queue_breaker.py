"""The contract suite `test_queue_breaker`, over HTTP."""

from server.over_http.suite import WRITER, contract_of

WITHOUT = {
    "test_a_waiting_take_wakes_when_the_pause_is_over": WRITER,
}

globals().update(contract_of("test_queue_breaker", WITHOUT))
