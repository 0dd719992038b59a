"""Every command there is: its group, its module, its summary. Only this is read to show the overview."""

from __future__ import annotations

from typing import Final

GROUPS: Final[tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]] = (
    (
        "topics",
        "penstock.cli.commands.topics.events",
        (
            ("topics", "Lists the topics with their ends and sizes"),
            ("append", "Appends events: one from the command line, many from standard input or a file"),
            ("read", "Shows stored events"),
            ("tail", "Shows the newest events, and with -f those that come"),
            ("show", "Shows one event with everything it has"),
        ),
    ),
    (
        "consumers and keeping",
        "penstock.cli.commands.topics.keeping",
        (
            ("cursors", "Shows how far consumers have come"),
            ("lag", "Shows how far consumers are behind"),
            ("seek", "Moves a consumer's cursor to a position, a time, the start or the end"),
            ("forget", "Drops a consumer's cursor, so that nothing waits for it"),
            ("settings", "Shows or changes what a topic keeps and for how long"),
            ("compact", "Removes history that nobody needs"),
            ("verify", "Reads everything and checks that it is whole"),
        ),
    ),
    (
        "queues",
        "penstock.cli.commands.queues.inspecting",
        (
            ("queues", "Lists the queues with what is ready, in flight, delayed and failed"),
            ("peek", "Shows the messages that would be taken next, without taking them"),
            ("pending", "Shows the deliveries in flight: who holds what until when"),
            ("failed", "Shows messages that were given up and have no dead-letter queue to go to"),
            ("dead", "Shows a queue's dead letters with the reason each was given up for"),
            ("redrive", "Sends dead letters and failed messages back to their queue, with a fresh budget"),
            ("purge", "Removes every message of a queue, also those in flight"),
            ("configure", "Shows or changes how a queue delivers; makes it when it is not there"),
        ),
    ),
    (
        "messages and workers",
        "penstock.cli.commands.queues.messages",
        (
            ("push", "Pushes a message to a queue; makes the queue when it is not there"),
            ("take", "Takes messages from a queue and settles them: asks what to do, or does what --settle says"),
            ("settle", "Settles a delivery by the token that `take --settle none` printed"),
            ("work", "Runs a worker: gives a queue's messages to a function of yours"),
            ("schedule", "Shows, adds or removes a queue's periodic messages"),
        ),
    ),
    (
        "whole journals",
        "penstock.cli.commands.journals.copying",
        (
            ("info", "Shows what the journal is: engine, place, size, durability"),
            ("export", "Writes a topic's events to a file: JSON Lines, Arrow or Parquet"),
            ("import", "Appends what `export` wrote"),
            ("backup", "Writes a consistent copy of the journal while it is in use"),
        ),
    ),
    (
        "projections",
        "penstock.cli.commands.topics.rebuilding",
        (("rebuild", "Folds a topic's events anew with a projection of yours, and saves the states"),),
    ),
    (
        "sealed history",
        "penstock.cli.commands.topics.sealing",
        (("seal", "Moves settled history into Parquet files, which reads then cross into unnoticed"),),
    ),
    (
        "causes",
        "penstock.cli.commands.topics.graph",
        (("graph", "Shows the chain of causes and effects that a correlation holds together"),),
    ),
    (
        "pipelines",
        "penstock.cli.commands.spark.pipelines",
        (
            ("run", "Runs a Spark pipeline: a Python file whose functions are flows between topics, queues and more"),
            ("pipelines", "Shows how pipelines do, as they last reported: state, rates, lag, batch times, errors"),
        ),
    ),
    (
        "watching",
        "penstock.cli.commands.operate.watching",
        (
            (
                "top",
                "Shows live how the journal does: rates, backlog, oldest age, in flight, failures, writer pressure",
            ),
            (
                "check",
                "Says whether the journal is well, for monitoring: exit code 0 fine, 1 warning, 2 critical, 3 unknown",
            ),
        ),
    ),
    (
        "serving",
        "penstock.cli.commands.operate.serving",
        (("serve", "Serves the journal over HTTP: the API under /v1, the page, and metrics for Prometheus"),),
    ),
    (
        "this machine",
        "penstock.cli.commands.operate.machine",
        (
            ("bench", "Measures this machine with a quick table: raw disk syncs, then what penstock makes of them"),
            (
                "doctor",
                "Looks whether everything is there and well: versions, engine, disk, Java, Spark, extras; with advice",
            ),
        ),
    ),
    (
        "this shell",
        "penstock.cli.commands.operate.completion",
        (("completion", "Prints a script that teaches your shell to complete penstock's commands"),),
    ),
)
"""(title, module, ((command, summary), …)), in the order the overview shows them."""

MOUNTED: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "buffer",
        "penstock.cli.commands.buffer.commands",
        "Buffers in object storage: look into a manifest, produce, consume, collect garbage",
    ),
)
"""(name, module, summary) of command groups that parse their own words: their module has an `app`."""


def module_of(name: str) -> str | None:
    """The module a command lives in."""
    for _, module, commands in GROUPS:
        if any(command == name for command, _ in commands):
            return module
    return None


def names() -> list[str]:
    """Every command's name."""
    found = [command for _, _, commands in GROUPS for command, _ in commands]
    return [*found, *(name for name, _, _ in MOUNTED)]
