"""The command line: `penstock COMMAND …`.

    main.py       finds the command, parses, runs it, turns errors into a sentence and an exit code
    index.py      every command's name, module and summary: all that `--help` needs, so that nothing else is imported
    command.py    how commands are declared and parsed; help.py, output.py, values.py, run.py: what they use
    topics.py …   one module per group of commands, imported when one of its commands is called

A command is a function with a declaration beside it; it gets a `Run` (the journal, ways to answer) and its values.
Results go to standard output, everything said beside them to standard error, so that pipes stay clean. With `--json`
every line of output is one JSON object.
"""

from __future__ import annotations


def main() -> None:
    """What the `penstock` script calls."""
    import gc
    import sys

    gc.set_threshold(100_000)  # importing makes thousands of objects that all stay: looking through them is in vain
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        _import_msgspec()
    from penstock.cli.main import run

    try:
        sys.exit(run(sys.argv[1:]))
    finally:
        gc.freeze()  # and so it is at the end, where the interpreter would look through them several times


def _import_msgspec() -> None:
    """Imports msgspec without typing_extensions, which it would like to have and on this Python does not need.

    With it come inspect, tokenize and more: a fifth of the time a command takes to start.
    """
    import sys

    if "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


__all__ = ["main"]
