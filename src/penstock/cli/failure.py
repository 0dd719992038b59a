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
    NOTHING: "nothing there: no message to take, no such event, topic or queue",
    INTERRUPTED: "interrupted from the keyboard",
    CUT_OFF: "whoever read the output stopped reading",
}
"""What a shell sees, and what it means. `check` has its own: 0 fine, 1 warning, 2 critical, 3 unknown."""


class UsageError(Exception):
    """The command line is wrong; the text says how."""

    def __init__(self, message: str, *, command: str | None = None) -> None:
        super().__init__(message)
        self.command = command


class Nothing(Exception):
    """What was asked for is not there."""
