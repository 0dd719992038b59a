"""The contract suite `test_compaction`, over HTTP."""

from server.over_http.suite import STORE, contract_of

WITHOUT = {
    "test_compaction_gives_the_space_back": STORE,
    "test_space_freed_by_compaction_is_used_again": STORE,
}

globals().update(contract_of("test_compaction", WITHOUT))
