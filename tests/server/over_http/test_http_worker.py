"""The contract suite `test_worker`, over HTTP."""

from server.over_http.suite import CLOCK, contract_of

WITHOUT = {"test_the_budget_refills_with_time": CLOCK}

globals().update(contract_of("test_worker", WITHOUT))
