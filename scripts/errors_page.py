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

Every error of penstock is a subclass of `PenstockError`. The text of an error says what was wrong, where, and what to
do. Its attributes have the values that a program needs. [Troubleshooting](troubleshooting.md) has the causes and the
remedies. Over [HTTP](http.md), errors are problem+json with the same names, and `penstock.open("http://…")` raises the
same classes.

This page is made from `src/penstock/errors.py` by `python scripts/errors_page.py`.
"""

OUTCOME = """\

## When the outcome is not known

`OutcomeUnknown` says that it is not known whether a change was kept: the answer of a server was lost, a disk failed
during a sync, or another writer took a bucket over during a commit. The error is never `retryable`, so a loop that
repeats retryable errors does nothing twice. If a request certainly did not reach its server, or if a read was cut off,
the error is retryable.

| call | what to do |
|---|---|
| an append or a push | repeat it with the same `dedup` key; `duplicate=True` says that the first call was kept |
| an append with `expect=` | repeat it; on `Conflict`, read whether the key's newest event is yours |
| a batch or an outbox | repeat it if every draft has a `dedup` key or an `expect=` |
| an `ack`, a `nack` | repeat it; `StaleDelivery` says that the delivery is settled, or that its lease has ended |
| a `take`, a `claim` | take again; a message that was taken comes back when its lease ends |
| a cursor's `commit`, `configure`, `seal`, `compact` | repeat it |
| any other call | read first |

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
