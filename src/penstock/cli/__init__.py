"""The command line: `penstock COMMAND …`, on Click.

    main.py      the `penstock` group: imports a command when it is called, turns errors into sentences and exit codes
    command.py   what every command is given (the journal, ways to answer), how it is declared, how it ends
    output.py    tables, lines, events and bars on a terminal
    values.py    words as values: numbers, times, sizes, conditions, names of topics and queues (which shells complete)
    topics, queues, journals, …    the commands, a module for what they are about

The module of a command imports what it needs inside its functions, because `penstock --help` and shell completion
import all these modules. Results go to standard output. All other messages go to standard error, so that pipes stay
clean. With `--json`, every line of output is one JSON object.
"""

from __future__ import annotations


def main() -> None:
    """Runs the `penstock` script."""
    import gc
    import sys

    # importing makes thousands of permanent objects: a search for garbage among them is useless
    gc.set_threshold(100_000)
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
        if "duckdb" not in sys.modules:  # the context prints what is left of it at the end on the error stream
            gc.freeze()  # for the same reason at exit, where the interpreter would search them several times


def _import_msgspec() -> None:
    """Imports msgspec without typing_extensions: msgspec tries to import it, but does not need it on this Python."""
    import sys

    if len(sys.argv) < 2 or sys.argv[1].startswith("-") or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


__all__ = ["main"]
