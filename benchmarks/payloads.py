"""What judging payloads row by row costs where all of them fit: parsing a block, beside Arrow's JSON reader alone.

    python -m benchmarks payloads               # some seconds

Blocks of 65,536 payloads of about 100 bytes with three fields; CPU time, the median of alternating rounds. Arrow's reader
alone is the clean path of a source that judges nothing: it refuses the whole block for one payload that does not fit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.json

from benchmarks.harness import Table
from penstock.core.documents.payloads import PayloadParser

ROWS = 65_536
ROUNDS = 41
SCHEMA = pa.schema([("customer", pa.string()), ("amount", pa.int64()), ("sku", pa.string())])


def payload(number: int) -> bytes:
    return b'{"customer":"c%05d","amount":%04d,"sku":"%052x"}' % (number % 20_000, number % 8999 + 1000, number)


def alone(column: Any) -> Any:
    """The reader by itself, its chunks made the columns of a record batch."""
    text = column.buffers()[2]
    table = pa.json.read_json(
        pa.BufferReader(text),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=SCHEMA, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
    return table.combine_chunks()


def cpu(work: Callable[[], Any]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    table = Table("payloads", "Payloads", (__doc__ or "").strip())
    parser = PayloadParser(SCHEMA)
    clean = pa.array([payload(number) for number in range(ROWS)], pa.binary())
    texts = clean.to_pylist()
    texts[ROWS // 3] = b'{"customer":"c","amount":"a lot","sku":""}'
    one_bad = pa.array(texts, pa.binary())
    assert parser.parse(clean).columns[1].equals(alone(clean).column("amount").chunk(0))
    assert len(parser.parse(one_bad).misfits) == 1
    for column in (clean, one_bad):
        parser.parse(column)
    found = statistics.median(cpu(lambda: parser.parse(clean)) / cpu(lambda: alone(clean)) for _ in range(ROUNDS))
    table.row("parse a block in which all payloads fit", f"{found:.2f} × Arrow's reader", "≤ 1.1 ×", found <= 1.1)
    found = statistics.median(
        cpu(lambda: parser.parse(one_bad)) / cpu(lambda: parser.parse(clean)) for _ in range(ROUNDS // 4)
    )
    table.row("parse a block with one that does not", f"{found:.2f} × a block in which all fit")
    table.save()


if __name__ == "__main__":
    main()
