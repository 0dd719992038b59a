"""The contract suite `test_compaction`, over HTTP."""

from __future__ import annotations

from server.over_http.suite import tests_of

globals().update(tests_of("test_compaction", {}))
