"""Writes docs/errors.md from src/penstock/errors.py and what the server makes of each error.

    python scripts/errors_page.py

A test compares the page with the module, so that neither can drift.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "errors.md"
sys.path.insert(0, str(ROOT / "src"))

INTRODUCTION = """\
# Errors

Everything penstock raises on purpose is a `PenstockError`. Errors carry what a program needs as attributes, and what a
person needs in their text: what was wrong, where, and what to do. Over [HTTP](http.md) the same names come back as
problem+json, and `penstock.open("http://…")` raises them again as the same classes.

Made from `src/penstock/errors.py` by `python scripts/errors_page.py`.
"""

OUTCOME = """\

## When the outcome is not known

`OutcomeUnknown` says that a change may have been kept or not: the answer of a server was lost, a disk failed amid a
sync, another writer took a bucket over amid a commit. It is never `retryable`: a loop that tries again whatever is
retryable does nothing twice. A request that certainly did not reach its server, and a read that was cut, are retryable.

| what was asked | what to do |
|---|---|
| an append or a push | repeat it with the same `dedup` key: it is kept once (`duplicate=True`: it was there) |
| an append with `expect=` | repeat it: on `Conflict` read whether the key's newest event is this one |
| a batch or an outbox | repeat it when every draft has a `dedup` key or an `expect=` |
| an `ack`, a `nack` | repeat it: `StaleDelivery` says that the delivery is settled, or that its lease ended |
| a `take`, a `claim` | take again: what was taken comes back when its lease ends |
| a cursor's `commit`, `configure`, `seal`, `compact` | repeat it |
| anything else | read first |

```python
import penstock

journal = penstock.open("memory:")  # or the url of a server


def append_once(topic: str, kind: str, payload: object, key: str, tries: int = 5) -> penstock.Receipt:
    for _ in range(tries - 1):
        try:
            return journal.topic(topic).append(kind, payload, dedup=key)
        except penstock.errors.StorageError as error:
            if not (error.retryable or isinstance(error, penstock.errors.OutcomeUnknown)):
                raise
    return journal.topic(topic).append(kind, payload, dedup=key)


assert append_once("payments", "paid", {"total": 40}, "payment-7").seq == 1
```
"""


def page() -> str:
    """The page as it should be."""
    from penstock import errors
    from penstock.core.protocol.problems import status_of

    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    lines = [INTRODUCTION, "```text", *inspect.cleandoc(tree).splitlines(), "```"]
    lines += ["", "| error | HTTP | what it says | it carries |", "|---|---|---|---|"]
    for name, kind in vars(errors).items():
        if not (inspect.isclass(kind) and issubclass(kind, errors.PenstockError)):
            continue
        says = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split()).replace("|", "\\|")
        carries = ", ".join(f"`{one}`" for one in _details(kind)) or "–"
        lines.append(f"| `{name}` | {status_of(kind)} | {says} | {carries} |")
    return "\n".join(lines) + "\n" + OUTCOME


def _details(kind: type) -> list[str]:
    """The attributes that are given by name when the error is raised."""
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    return [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
