"""The contract suite `test_queue_rates`, over HTTP."""

from server.over_http.suite import MANY, STORE, contract_of

WITHOUT = {
    "test_windows_of_keys_are_forgotten_when_nothing_counts_any_more": STORE,
    "test_ten_thousand_messages_of_a_key_without_room_are_passed_at_once": MANY,
}

globals().update(contract_of("test_queue_rates", WITHOUT))
