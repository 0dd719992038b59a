"""The command line: `penstock COMMAND …`, on Click.

    main.py      the `penstock` group: imports a command when it is called, turns errors into sentences and exit codes
    command.py   what every command is given (the journal, ways to answer), how it is declared, how it ends
    output.py    tables, lines, events and bars on a terminal
    values.py    words as values: numbers, times, sizes, conditions, names of topics and queues (which shells complete)
    topics, queues, journals, …    the commands, a module for what they are about

A command's module imports what it needs inside its functions: `penstock --help` and shell completion import them all.
Results go to standard output, everything said beside them to standard error, so that pipes stay clean. With `--json`
every line of output is one JSON object.
"""

from __future__ import annotations


def main() -> None:
    """Runs the `penstock` script."""
    import gc
    import sys

    gc.set_threshold(100_000)  # importing makes thousands of objects that all stay: looking through them is in vain
    _import_msgspec()
    try:
        from penstock.cli.main import run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("penstock: the command line needs the package 'click': pip install \"penstock[cli]\"")
    from penstock.cli.output import prepare_streams

    prepare_streams()
    try:
        sys.exit(run(sys.argv[1:]))
    finally:
        if "duckdb" not in sys.modules:  # which lists, on the error stream, what of it is left at the end
            gc.freeze()  # and so it is at the end, where the interpreter would look through them several times


def _import_msgspec() -> None:
    """Imports msgspec without typing_extensions, which it would like to have and on this Python does not need."""
    import sys

    if len(sys.argv) < 2 or sys.argv[1].startswith("-") or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


__all__ = ["main"]
