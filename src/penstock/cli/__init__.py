"""The command line: `penstock COMMAND …`, on Click.

    main.py      the `penstock` group: imports a command when it is called, turns errors into sentences and exit codes
    command.py   how a command is declared: Click's own decorators, the options every command shares, examples
    context.py   what every command is given: the journal, and ways to answer
    values.py    words as values: numbers, times, sizes, conditions, names of topics and queues (which shells complete)
    commands/    one folder for what the commands are about, one module for a few of them

A command's module imports what it needs inside its functions: `penstock --help` and shell completion import them all.
Results go to standard output, everything said beside them to standard error, so that pipes stay clean. With `--json`
every line of output is one JSON object.
"""

from __future__ import annotations


def main() -> None:
    """What the `penstock` script calls."""
    import gc
    import sys

    gc.set_threshold(100_000)  # importing makes thousands of objects that all stay: looking through them is in vain
    try:
        from penstock.cli.main import run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("penstock: the command line needs the package 'click': pip install \"penstock[cli]\"")
    try:
        sys.exit(run(sys.argv[1:]))
    finally:
        gc.freeze()  # and so it is at the end, where the interpreter would look through them several times


__all__ = ["main"]
