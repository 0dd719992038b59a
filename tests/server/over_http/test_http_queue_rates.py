"""The contract suite `test_queue_rates`, over HTTP."""

from server.over_http.suite import MANY, contract_of

WITHOUT = {
    "test_ten_thousand_messages_of_a_key_without_room_are_passed_at_once": MANY,
}

globals().update(contract_of("test_queue_rates", WITHOUT))
