"""Gates that see what was made elsewhere: the rows of blocks become drafts again, for the topics that have gates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import from_ms
from penstock.errors import Denied
from penstock.events import Draft
from penstock.journal.storage.block import Block
from penstock.journal.storage.pending import options_of
from penstock.journal.storage.wire import Wire
from penstock.transfer.rows import row_words

if TYPE_CHECKING:
    from penstock.entity.staging.gate import Gates


def ask_gates(gates: Gates, pieces: Iterable[tuple[str, Wire]]) -> None:
    """Shows every row of topics with gates to them; Denied names the first gate that refuses, and the row."""
    for topic, wire in pieces:
        if not gates.of(topic):
            continue
        block = Block(wire, topic)
        for row in range(block.count):
            asked = gates.of(topic, block.kind(row))
            if not asked:
                continue
            encoded = bytes(block.raw_payload(row))
            draft = _draft(block, row, encoded)
            for gate in asked:
                try:
                    gates.ask(gate, draft, encoded)
                except Denied as denied:
                    raise Denied(
                        f"gate {gate.name} of topic {topic!r} refused: {denied.reason} ({row_words(block, row)})"
                    ) from denied


def _draft(block: Block, row: int, encoded: bytes) -> Draft:
    """A row as a caller that appends one by one would have given it."""
    options = options_of(block.wire)
    dedup, expect = (None, None) if options is None else (options.dedup, options.expect)
    return Draft(
        block.kind(row),
        encoded if block.is_binary(row) else msgspec.json.decode(encoded),
        topic=block.topic,
        key=block.key(row),
        scope=block.scope(row),
        headers=dict(block.headers(row)) or None,
        occurred_at=None if block.wire.occurred is None else from_ms(block.occurred_ms(row)),
        dedup=None if dedup is None else dedup[row],
        cause=block.causation(row),
        correlation=block.correlation(row),
        expect=None if expect is None else expect[row],
    )
