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
    import sys

    from penstock.cli.main import run

    sys.exit(run(sys.argv[1:]))


__all__ = ["main"]
