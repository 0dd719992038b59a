"""What a topic keeps, and whether it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.command import command, given_options
from penstock.cli.context import CommandContext
from penstock.cli.failure import DONE, FAILED, Nothing
from penstock.cli.output import paint
from penstock.cli.progress import ProgressBar
from penstock.cli.show import event_line
from penstock.cli.topics import chosen_topics
from penstock.cli.values import (
    any_topic,
    choice,
    duration,
    load_named,
    number,
    or_none,
    position,
    size,
    the_topic,
    time,
)
from penstock.errors import ConfigError, PenstockError
from penstock.names import TABLE_FORMATS, TableFormat
from penstock.units import show_size

if TYPE_CHECKING:
    from penstock.events import Event
    from penstock.journal.sealed.report import LakeSummary
    from penstock.surface.journal import Journal
    from penstock.surface.topic import Topic


@command("settings", "penstock settings orders", "penstock settings orders --max-age 30d --max-bytes 2GiB")
@the_topic
@click.option("--max-age", type=or_none(duration), help="remove events older than this (none: keep them)")
@click.option("--max-events", type=or_none(number), help="keep about this many (none: all)")
@click.option("--max-bytes", type=or_none(size), help="keep about this much (none: all)")
@click.option("--dedup-window", type=or_none(duration), help="how long dedup keys are remembered (none: for ever)")
@click.option("--by-key", type=bool, metavar="yes|no", help="keep only the newest event of a key in settled history")
@click.option("--verified", type=bool, metavar="yes|no", help="keep a hash of every event, for `penstock verify`")
def settings(context: CommandContext, topic: str, **_: object) -> None:
    """Shows or changes what a topic keeps and for how long."""
    import msgspec

    changes = given_options()
    with context.journal(read_only=not changes) as journal:
        handle = journal.topic(topic) if changes else context.existing_topic(journal, topic)
        kept = handle.configure(**changes) if changes else handle.settings
    context.record({"topic": topic, **msgspec.structs.asdict(kept)})


@command("compact", "penstock compact orders --before 30d", "penstock compact orders --through 100000")
@the_topic
@click.option("--through", type=position, help="remove everything through this position")
@click.option("--before", type=time, help="remove what was recorded before a time, or longer ago than this")
@click.option("--keys", is_flag=True, help="keep the newest event of every key, remove the older ones")
@click.option("--force", is_flag=True, help="do not stop at the slowest consumer")
@click.option("--yes", is_flag=True, help="do not ask before --force")
def compact(
    context: CommandContext,
    topic: str,
    through: int | None,
    before: datetime | None,
    keys: bool,
    force: bool,
    yes: bool,
) -> None:
    """Removes history that no consumer needs."""
    if sum((through is not None, before is not None, keys)) != 1:
        raise click.UsageError("say what may go: one of --through, --before, --keys")
    with context.journal() as journal:
        handle = context.existing_topic(journal, topic)
        if keys:
            removed = handle.compact_keys()
            context.record({"topic": topic, "removed": removed, "remaining": len(handle)})
            return
        end = handle.position_at(before) if before is not None else through or 0
        if force:
            context.confirm(f"Remove {topic} through {end:,}, whether or not consumers have read it?", yes)
        report = handle.compact(end, force=force)
    done: dict[str, object] = {"topic": topic, "removed": report.removed, "remaining": report.remaining}
    done["latest"] = report.latest
    if report.stopped_at is not None or context.json:
        done["stopped_at"] = report.stopped_at
    context.record(done)


@command("verify", "penstock verify", "penstock verify orders --json")
@any_topic
def verify(context: CommandContext, topic: str | None) -> int:
    """Reads everything and checks that it is whole.

    Every block's checksum is computed again, and that of every sealed file; positions must follow each other,
    payloads must decode, and where a topic is verified every event must be what was appended. Exit code 1 when
    something is damaged.
    """
    rows: list[tuple[str, int, str]] = []
    damaged = False
    with context.journal(read_only=True) as journal:
        for handle in chosen_topics(context, journal, topic):
            count, problem = read_through(handle)
            damaged = damaged or problem is not None
            rows.append((handle.name, count, problem or "whole"))
    context.rows(("Topic", "Events", "State"), rows, otherwise="no topics: nothing to verify")
    return FAILED if damaged else DONE


def read_through(topic: Topic) -> tuple[int, str | None]:
    """How many events were read, and what is wrong with them, their hashes and their sealed files, if anything is."""
    count, problem = _read_events(topic)
    return count, problem or _verify_problem(topic)


def _read_events(topic: Topic) -> tuple[int, str | None]:
    """How many events were read, and what stopped it."""
    count = last = 0
    expected = len(topic)
    latest = topic.latest
    try:
        for event in topic.read(through=latest):
            if event.seq <= last:
                return count, f"position {event.seq} comes after {last}"
            if not event.binary:
                event.payload  # noqa: B018 - asks whether it decodes
            last = event.seq
            count += 1
    except PenstockError as error:
        return count, f"{type(error).__name__} after position {last}: {error}"
    if count < expected:
        return count, f"{expected:,} events should be there"
    return count, None


def _verify_problem(topic: Topic) -> str | None:
    """What is wrong with a topic's hashes and sealed files."""
    from penstock.local.journal import LocalJournal

    if not isinstance(topic.journal, LocalJournal):  # a topic is verified where its store is
        return None
    try:
        report = topic.verify()
    except ConfigError:
        raise  # a package is missing, which is no damage
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    return report.broken.reason if report.broken else None


# ── Sealing from the command line ──


@command(
    "seal",
    "penstock seal orders --lake /data/lake",
    "penstock seal orders --lake s3://bucket/lake --older-than 30d",
    "penstock seal orders --lake /data/lake --format delta --columns 'customer STRING, total DOUBLE'",
    "penstock seal orders --lake /data/lake --columns 'region STRING' --partition-by region",
    "penstock seal orders --url https://journal:7367 --lake s3://bucket/lake",
)
@the_topic
@click.option("--lake", metavar="PLACE", envvar="PENSTOCK_LAKE", help="where the files go: a folder, s3://…")
@click.option("--through", type=position, help="seal everything through this position")
@click.option("--older-than", type=time, help="seal what was recorded longer ago than this")
@click.option("--format", type=click.Choice(TABLE_FORMATS), help="register the files in a table as well")
@click.option(
    "--columns", metavar="COLUMNS", help="fields of the payload as typed columns: 'customer STRING, total DOUBLE'"
)
@click.option(
    "--partition-by", metavar="COLUMN", help="files by the values of a typed column, or of kind, within their day"
)
@click.option("--catalog", metavar="NAME", help="the Iceberg catalog: a name of ~/.pyiceberg.yaml, or a uri")
@click.option("--compact", is_flag=True, help="join small files of a day into one")
@click.option("--master", metavar="MASTER", help="let Spark write the files, with this master")
def seal(
    context: CommandContext,
    topic: str,
    lake: str | None,
    through: int | None,
    older_than: datetime | None,
    format: TableFormat | None,
    columns: str | None,
    partition_by: str | None,
    catalog: str | None,
    compact: bool,
    master: str | None,
) -> None:
    """Moves settled history into Parquet files, which reads then cross into unnoticed.

    PENSTOCK_LAKE stands in for --lake. Without --through and --older-than, everything but the newest block is sealed.
    A file is read back and compared before the journal drops what it holds. Run it again to go on, also after it was
    interrupted; later seals to a lake keep its format, columns and parting. `penstock lake` lists what is there. A
    served journal is sealed by its server, to a lake that it was started with (`penstock serve --lake`).
    """
    if lake is None:
        raise click.UsageError("say where the files go: --lake, or PENSTOCK_LAKE")
    if through is not None and older_than is not None:
        raise click.UsageError("say one of --through, --older-than")
    from penstock.spark.sealing import seal as seal_topic

    with context.journal(read_only=True) as journal:  # a mistyped name makes no journal, and no mess
        context.existing_topic(journal, topic)
    with context.journal() as journal:
        handle = journal.topic(topic)
        if older_than is not None:
            through = handle.position_at(older_than)
        with ProgressBar(context, "sealed") as progress:
            report = seal_topic(
                journal,
                topic,
                lake=lake,
                through=through,
                format=format,
                columns=columns,
                catalog=catalog,
                partition_by=partition_by,
                compact=compact,
                master=master,
                progress=progress,
            )
    record: dict[str, object] = {"topic": report.topic, "lake": report.lake, "events": report.events}
    record |= {"files": report.files, "size": report.bytes if context.json else show_size(report.bytes)}
    record |= {"through": report.through, "format": report.format}
    if report.unfit or context.json:
        record["unfit"] = report.unfit
    context.record(record)


@command("lake", "penstock lake", "penstock lake orders --json")
@any_topic
def lake(context: CommandContext, topic: str | None) -> None:
    """Lists sealed history: its lakes, tables, files, events and bytes, and how DuckDB, Polars and Spark read it."""
    import msgspec

    with context.journal(read_only=True) as journal:
        found = _lakes(journal, [handle.name for handle in chosen_topics(context, journal, topic)])
    if context.json:
        for one in found:
            context.document(msgspec.to_builtins(one) | {"readers": one.readers()})
        return
    rows = [
        (one.topic, one.lake, one.format, one.files, one.events, show_size(one.bytes), one.through) for one in found
    ]
    columns = ("Topic", "Lake", "Format", "Files", "Events", "Size", "Through")
    context.rows(columns, rows, otherwise="nothing is sealed: `penstock seal TOPIC --lake PLACE` begins")
    for one in found:
        context.line("")
        parted = f"; parted by {one.partition_by}" if one.partition_by else ""
        context.line(f"{one.topic}: {one.columns or 'no typed columns'}{parted}")
        for program, text in one.readers().items():
            context.line(f"  {program:<7} {text}")


def _lakes(journal: Journal, topics: list[str]) -> list[LakeSummary]:
    from penstock.api import local
    from penstock.remote.journal import RemoteJournal
    from penstock.remote.sealing import lakes_served

    if isinstance(journal, RemoteJournal):
        return lakes_served(journal, topics)
    from penstock.journal.sealed.report import lake_summaries

    with local(journal, "listing sealed history")._engine.read() as snap:
        return [one for name in topics for one in lake_summaries(snap, name)]


# ── Roots over topics, and proofs that convince a third party ──


_file = click.Path(path_type=Path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


@command("root", "penstock root orders > root.json", "penstock root orders --key private.pem > root.json")
@the_topic
@click.option("--key", type=_file, help="sign it with this Ed25519 key (PEM)")
def root(context: CommandContext, topic: str, key: Path | None) -> int:
    """Verifies a topic and publishes the root of its Merkle tree.

    The root stands for everything in the topic through its newest position. Give it to those who should be able to
    check proofs, or sign it and give them the public key. Exit code 1 when the topic is damaged.
    """
    from penstock.entity.proof import sign_root

    with context.journal() as journal:
        report = context.existing_topic(journal, topic).verify()
    if report.broken is not None:
        context.record({"topic": topic, "broken": f"position {report.broken.seq}: {report.broken.reason}"})
        return FAILED
    if report.root is None:
        raise ConfigError(f"topic {topic!r} was compacted meanwhile: ask again")
    made = report.root if key is None else sign_root(report.root, key)
    click.echo(made.to_json())
    return DONE


@command("proof", "penstock proof orders 1234 > proof.json", "penstock proof orders 1234 --root root.json")
@the_topic
@click.argument("position", type=position, help="the event's position")
@click.option("--root", type=_file, help="under this root (as `penstock root` wrote it); else under the newest")
def proof(context: CommandContext, topic: str, position: int, root: Path | None) -> None:
    """Proves that an event is in a topic, under a root that was published.

    The proof is one line of JSON. It holds the event; `penstock check-proof` checks it, without the journal.
    """
    from penstock.entity.proof import TreeRoot

    under = None if root is None else TreeRoot.from_json(_read(root))
    with context.journal(read_only=True) as journal:
        made = context.existing_topic(journal, topic).proof(position, root=under)
    click.echo(made.to_json())


@command("check-proof", "penstock check-proof proof.json --root root.json", "penstock check-proof p.json --key pub.pem")
@click.argument("file", type=_file, help="the proof")
@click.option("--root", type=_file, help="it must be under this root")
@click.option("--key", type=_file, help="its root must be signed with the private half of this Ed25519 key (PEM)")
def check_proof(context: CommandContext, file: Path, root: Path | None, key: Path | None) -> int:
    """Checks a proof; needs no journal. Exit code 1 when it does not hold.

    What a proof is worth depends on where its root comes from: give the root, or the key that signed it.
    """
    import msgspec

    from penstock.entity import proof as proofs

    made = proofs.InclusionProof.from_json(_read(file))
    under = None if root is None else proofs.TreeRoot.from_json(_read(root))
    report = proofs.check_proof(made, root=under, public_key=key)
    context.record({"topic": made.root.topic, "position": made.seq, **msgspec.structs.asdict(report)})
    return DONE if report else FAILED


# ── Rebuilding projections from the command line ──


@command(
    "rebuild",
    "penstock rebuild orders shop.states:Order",
    "penstock rebuild orders shop.states:Totals --whole",
    "penstock rebuild orders shop.states:Order --check",
    "penstock rebuild orders shop.states:Order --master 'local[4]'",
)
@the_topic
@click.argument("projection", help="the class: module:Class")
@click.option("--whole", is_flag=True, help="one state over the whole topic instead of one for every entity")
@click.option("--check", is_flag=True, help="change nothing: say which saved states are not what their events give")
@click.option("--master", metavar="MASTER", help="let Spark fold them, with this master")
def rebuild(context: CommandContext, topic: str, projection: str, whole: bool, check: bool, master: str | None) -> int:
    """Folds a topic's events anew with a projection of yours, and saves the states.

    The states are what `topic.project` starts from afterwards; those of other versions of the projection go. How far
    it is appears on the error stream. Interrupted, nothing but time is lost: run it again. With --check the exit code
    is 1 when a saved state is wrong.
    """
    from penstock import Projection

    if whole and master is not None:
        raise click.UsageError("one state over the whole topic is one fold, in order: leave --master out")
    if check and (whole or master is not None):
        raise click.UsageError("--check looks at every state that is saved, here: leave --whole and --master out")
    found = load_named(projection, "a projection", "shop.states:Order")
    if not (isinstance(found, type) and issubclass(found, Projection)):
        raise click.UsageError(
            f"{projection} is no projection: declare it as a class that derives from penstock.Projection"
        )
    with context.journal(read_only=True) as journal:  # a mistyped name makes no journal, and no mess
        existing = context.existing_topic(journal, topic)
        if check:
            wrong = existing.verify_states(found)
            context.record({"topic": topic, "wrong": [key or "the whole topic" for key in wrong]})
            return FAILED if wrong else DONE
    unit = "events" if master is None else "entities"
    with context.journal() as journal, ProgressBar(context, "folded", unit=unit) as progress:
        if master is None:
            report = journal.topic(topic).rebuild(found, whole=whole, progress=progress)
        else:
            from penstock.spark.projection.projecting import rebuild as rebuild_on_spark

            report = rebuild_on_spark(journal, topic, found, master=master, progress=progress)
    context.record({"topic": topic, "entities": report.entities, "events": report.events, "through": report.through})
    return DONE


# ── What caused what, in a terminal or as Mermaid ──


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
