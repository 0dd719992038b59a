"""The contract suite `test_entity_outbox`, over HTTP."""

from __future__ import annotations

from server.over_http.suite import contract_of

WITHOUT: dict[str, str] = {}

globals().update(contract_of("test_entity_outbox", WITHOUT))
