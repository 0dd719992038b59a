"""What caused what, in a terminal or as Mermaid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.command import command
from penstock.cli.context import CommandContext
from penstock.cli.failure import Nothing
from penstock.cli.output import paint
from penstock.cli.show import event_line
from penstock.cli.values import choice

if TYPE_CHECKING:
    from penstock.events import Event


@command(
    "graph",
    "penstock graph 01890a5d-ac96-774b-bcce-b302099a8057",
    "penstock graph order-17 --format mermaid --out order.mmd",
)
@click.argument("correlation", help="the correlation's id, or the id of any event of it")
@choice("--format", "tree mermaid", default="tree", help="a tree for reading, or a flowchart for Markdown")
@click.option("--out", type=click.Path(), help="write it to this file")
def graph(context: CommandContext, correlation: str, format: str, out: str | None) -> None:
    """Shows the chain of causes and effects that a correlation holds together."""
    with context.journal(read_only=True) as journal:
        events = list(journal.correlated(correlation))
        if len(events) <= 1:
            # The id of an event in the middle: its correlation has the rest.
            for name in journal.topics():
                found = journal.topic(name).find(correlation)
                if found is not None and found.correlation_id is not None:
                    events = list(journal.correlated(found.correlation_id))
                    break
        if not events:
            raise Nothing(f"no event belongs to {correlation!r}")
    if context.json:
        for event in events:
            context.event(event)
        return
    from penstock.entity.causality import mermaid

    if format == "tree":
        text = "\n".join(_tree_lines(events, color=context.color and out is None))
    else:
        text = mermaid(events)
    if out is None:
        context.line(text)
    else:
        Path(out).write_text(text + "\n", encoding="utf-8")
        context.note(f"written to {out}")


def _tree_lines(events: list[Event], *, color: bool) -> Iterator[str]:
    from penstock.entity.causality import tree

    for stems, event in tree(events):
        yield paint(stems, "dim", color) + event_line(event, color=color, topic=True)
