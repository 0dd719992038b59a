"""The contract suite `test_queue_fairness`, over HTTP."""

from server.over_http.suite import STORE, TRANSACTION, WRITER, contract_of

WITHOUT = {
    "test_two_processes_share_the_turns": STORE,
    "test_lanes_without_messages_leave_nothing_behind": STORE,
    "test_a_rolled_back_push_has_no_turn": TRANSACTION,
    "test_what_shares_a_commit_with_a_take_is_delivered_by_the_next_one": WRITER,
}

globals().update(contract_of("test_queue_fairness", WITHOUT))
