"""Retention of topics and delivery of queues; verifying, sealing, proving and rebuilding history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from penstock.cli import values
from penstock.cli.command import (
    DONE,
    FAILED,
    CommandContext,
    Nothing,
    Record,
    command,
    given_options,
    topic_command,
)
from penstock.cli.output import ProgressBar, event_line, paint
from penstock.cli.topics import chosen_topics, selecting
from penstock.core.names import TABLE_FORMATS, did_you_mean
from penstock.core.units import show_size
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock import Event, Journal, Topic
    from penstock.acts import Done
    from penstock.core.journal.sealed.segments import LakeSummary
    from penstock.core.model.arguments import FilterArguments


@topic_command(
    "compact", "penstock compact orders --before 30d", "penstock compact orders --through 100000", writes=True
)
@click.option("--through", type=values.position, help="remove everything through this position")
@click.option("--before", type=values.moment, help="remove what was recorded before a time, or longer ago than this")
@click.option("--keys", is_flag=True, help="keep the newest event of every key, remove the older ones")
@click.option("--force", is_flag=True, help="do not stop at the slowest consumer")
@click.option("--yes", is_flag=True, help="do not ask before --force")
def compact(
    context: CommandContext,
    topic: Topic,
    through: int | None,
    before: datetime | None,
    keys: bool,
    force: bool,
    yes: bool,
) -> Done:
    """Removes history that no consumer needs."""
    from penstock import acts

    if sum((through is not None, before is not None, keys)) != 1:
        raise click.UsageError("say what may go: one of --through, --before, --keys")
    if keys:
        return context.perform(acts.CompactKeys(topic))
    end = topic.position_at(before) if before is not None else through or 0
    return context.perform(acts.CompactTopic(topic, end, force), yes or not force)


@topic_command(
    "erase",
    "penstock erase orders --key customer-7 --by ada",
    "penstock erase orders --where 'payload.customer == 7' --mask email --mask address.street",
    writes=True,
)
@click.option("--seq", "seqs", type=values.position, multiple=True, help="only the event at this position; repeatable")
@selecting
@click.option("--mask", "fields", multiple=True, help="only blank this field of the payload; repeatable")
@click.option("--by", help="who asks for it: said in every event that is erased")
@values.with_yes
def erase(
    context: CommandContext,
    topic: Topic,
    seqs: tuple[int, ...],
    fields: tuple[str, ...],
    by: str | None,
    yes: bool,
    **filter: Unpack[FilterArguments],
) -> Done:
    """Erases the contents of events wherever the journal holds them, and purges its files.

    Position, id, time, kind, correlation and cause of each event stay. The last lines name
    what is left to do elsewhere.
    """
    from penstock import acts

    chosen: FilterArguments = {name: value for name, value in filter.items() if value is not None}  # type: ignore[assignment]
    return context.perform(acts.EraseEvents(topic, chosen, list(seqs) or None, list(fields), by), yes)


@command("verify", "penstock verify", "penstock verify orders --json")
@values.any_topic
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
    """Returns the number of events that were read, and the problem of the events, their hashes or their sealed
    files, if there is one.
    """
    count, problem = _read_events(topic)
    return count, problem or _verify_problem(topic)


def _read_events(topic: Topic) -> tuple[int, str | None]:
    """Returns the number of events that were read, and the error that stopped the reading."""
    count = last = expected = 0
    latest: int | None = None
    with suppress(PenstockError):  # the newest block is damaged, and the read will reach it
        expected, latest = len(topic), topic.latest
    try:
        for event in topic.read(through=latest):
            if event.seq <= last:
                return count, f"position {event.seq} comes after {last}"
            if not event.binary:
                event.payload  # noqa: B018 - asks whether it decodes
            last = event.seq
            count += 1
    except PenstockError as error:
        return count, f"{type(error).__name__} after position {last}: {error}{_readable_again(topic, last)}"
    if count < expected:
        return count, f"{expected:,} events should be there"
    return count, None


def _readable_again(topic: Topic, last: int) -> str:
    """Returns a sentence with the position from which a damaged topic can be read to its end."""
    first = 0
    with suppress(PenstockError):
        for event in topic.read(after=last, reverse=True):
            first = event.seq
    return f"; from {first} on it can be read" if first else "; nothing behind it can be read"


def _verify_problem(topic: Topic) -> str | None:
    """Returns the problem of a topic's hashes and sealed files."""
    from penstock.core.local.backend import LocalJournal

    if not isinstance(topic.journal, LocalJournal):  # the process with the store verifies a topic
        return None
    try:
        report = topic.verify()
    except ConfigError:
        raise  # a package is missing, which is not damage
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    return report.broken.reason if report.broken else None


# ── Sealing from the command line ──


@topic_command(
    "seal",
    "penstock seal orders --lake /data/lake",
    "penstock seal orders --lake s3://bucket/lake --older-than 30d",
    "penstock seal orders --lake /data/lake --format delta --columns 'customer STRING, total DOUBLE'",
    "penstock seal orders --lake /data/lake --columns 'region STRING' --partition-by region",
    "penstock seal orders --url https://journal:7367 --lake s3://bucket/lake",
    writes=True,
)
@click.option("--lake", metavar="PLACE", envvar="PENSTOCK_LAKE", help="where the files go: a folder, s3://…")
@click.option("--through", type=values.position, help="seal everything through this position")
@click.option("--older-than", type=values.moment, help="seal what was recorded longer ago than this")
@click.option("--format", type=click.Choice(TABLE_FORMATS), help="register the files in a table as well")
@click.option(
    "--columns", metavar="COLUMNS", help="fields of the payload as typed columns: 'customer STRING, total DOUBLE'"
)
@click.option("--partition-by", metavar="COLUMN", help="files by the values of a typed column, or of kind, and by day")
@click.option("--catalog", metavar="NAME", help="the Iceberg catalog: a name of ~/.pyiceberg.yaml, or a uri")
@click.option("--compact", is_flag=True, help="join small files of a day into one")
@click.option("--master", metavar="MASTER", help="let Spark write the files, with this master")
def seal(
    context: CommandContext,
    topic: Topic,
    through: int | None,
    older_than: datetime | None,
    lake: str | None,
    **how: Any,
) -> Record:
    """Moves history into Parquet files, a table of a lake; reads go on as before.

    PENSTOCK_LAKE stands in for --lake. Without --through and --older-than, everything but the newest block is sealed.
    A file is read back and compared before the journal drops what it holds. Run it again to go on, also after it was
    interrupted; later seals to a lake keep its format, columns and partitioning. `penstock lake` lists what is there.
    A served journal is sealed by its server, to a lake that it was started with (`penstock serve --lake`).
    """
    if lake is None:
        raise click.UsageError("say where the files go: --lake, or PENSTOCK_LAKE")
    if through is not None and older_than is not None:
        raise click.UsageError("say one of --through, --older-than")
    from penstock.spark.sealing import seal as seal_topic

    if older_than is not None:
        through = topic.position_at(older_than)
    with ProgressBar(context, "sealed") as progress:
        report = seal_topic(topic.journal, topic.name, lake=lake, through=through, progress=progress, **how)
    record: Record = {"lake": report.lake, "events": report.events, "files": report.files}
    record |= {"size": report.bytes if context.json else show_size(report.bytes), "through": report.through}
    return record | {"format": report.format} | ({"unfit": report.unfit} if report.unfit or context.json else {})


@command("lake", "penstock lake", "penstock lake orders --json")
@values.any_topic
def lake(context: CommandContext, topic: str | None) -> None:
    """Lists sealed history: its lakes, tables, files, events and bytes, and how DuckDB, Polars and Spark read it."""
    with context.journal(read_only=True) as journal:
        found = _lakes(journal, [handle.name for handle in chosen_topics(context, journal, topic)])
    if context.json:
        for one in found:
            context.document(one, readers=one.readers())
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
        if one.by_reference:
            said = f"{one.by_reference:,} events are in files of bulk writes: Spark reads them with read_topic"
            context.line(f"  {said}")


def _lakes(journal: Journal, topics: list[str]) -> list[LakeSummary]:
    from penstock.api import local
    from penstock.remote.backend import RemoteJournal, lakes_served

    if isinstance(journal, RemoteJournal):
        return lakes_served(journal, topics)
    from penstock.core.journal.sealed.segments import lake_summaries

    with local(journal, "listing sealed history").backend.engine.read() as snap:
        return [one for name in topics for one in lake_summaries(snap, name)]


# ── Roots over topics, and proofs that convince a third party ──


_file = click.Path(path_type=Path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


@topic_command(
    "root", "penstock root orders > root.json", "penstock root orders --key private.pem > root.json", writes=True
)
@click.option("--key", type=_file, help="sign it with this Ed25519 key (PEM)")
def root(context: CommandContext, topic: Topic, key: Path | None) -> int:
    """Verifies a topic and publishes the root of its Merkle tree.

    The root stands for everything in the topic through its newest position. Give it to those who should be able to
    check proofs, or sign it and give them the public key. Exit code 1 when the topic is damaged.
    """
    from penstock.core.entity.proof import sign_root

    report = topic.verify()
    if report.broken is not None:
        context.record({"topic": topic.name, "broken": f"position {report.broken.seq}: {report.broken.reason}"})
        return FAILED
    if report.root is None:
        raise ConfigError(f"topic {topic.name!r} was compacted meanwhile: ask again")
    made = report.root if key is None else sign_root(report.root, key)
    click.echo(made.to_json())
    return DONE


@topic_command("proof", "penstock proof orders 1234 > proof.json", "penstock proof orders 1234 --root root.json")
@click.argument("position", type=values.position, help="the event's position")
@click.option("--root", type=_file, help="under this root (as `penstock root` wrote it); else under the newest")
def proof(context: CommandContext, topic: Topic, position: int, root: Path | None) -> None:
    """Proves that an event is in a topic, under a root that was published.

    The proof is one line of JSON. It holds the event; `penstock check-proof` checks it, without the journal.
    """
    from penstock.core.entity.proof import TreeRoot

    under = None if root is None else TreeRoot.from_json(_read(root))
    click.echo(topic.proof(position, root=under).to_json())


@command("check-proof", "penstock check-proof proof.json --root root.json", "penstock check-proof p.json --key pub.pem")
@click.argument("file", type=_file, help="the proof")
@click.option("--root", type=_file, help="it must be under this root")
@click.option("--key", type=_file, help="its root must be signed with the private half of this Ed25519 key (PEM)")
def check_proof(context: CommandContext, file: Path, root: Path | None, key: Path | None) -> int:
    """Checks a proof; needs no journal. Exit code 1 when it does not hold.

    A proof is worth as much as its root: give a root that you trust, or the key that signed it.
    """
    import msgspec

    from penstock.core.entity import proof as proofs

    made = proofs.InclusionProof.from_json(_read(file))
    under = None if root is None else proofs.TreeRoot.from_json(_read(root))
    report = proofs.check_proof(made, root=under, public_key=key)
    context.record({"topic": made.root.topic, "position": made.seq, **msgspec.structs.asdict(report)})
    return DONE if report else FAILED


# ── Rebuilding projections from the command line ──


@topic_command(
    "rebuild",
    "penstock rebuild orders shop.states:Order",
    "penstock rebuild orders shop.states:Totals --whole",
    "penstock rebuild orders shop.states:Order --check",
    "penstock rebuild orders shop.states:Order --master 'local[4]'",
    writes=lambda given: not given["check"],
)
@click.argument("projection", help="the class: module:Class")
@click.option("--whole", is_flag=True, help="one state over the whole topic instead of one for every entity")
@click.option("--check", is_flag=True, help="change nothing: say which saved states are not what their events give")
@click.option("--master", metavar="MASTER", help="let Spark fold them, with this master")
def rebuild(
    context: CommandContext, topic: Topic, projection: str, whole: bool, check: bool, master: str | None
) -> Record | int:
    """Folds all events of a topic again with your projection, and saves the states.

    `topic.project` begins with these states. The states of other versions of the projection go. The error stream shows
    the progress. After an interruption, run the command again. With --check the exit code is 1 when a saved state is
    wrong.
    """
    from penstock import Projection

    if whole and master is not None:
        raise click.UsageError("one state over the whole topic is one fold, in order: leave --master out")
    if check and (whole or master is not None):
        raise click.UsageError("--check looks at every state that is saved, here: leave --whole and --master out")
    found = values.load_named(projection, "a projection", "shop.states:Order")
    if not (isinstance(found, type) and issubclass(found, Projection)):
        raise click.UsageError(
            f"{projection} is no projection: declare it as a class that derives from penstock.Projection"
        )
    if check:
        wrong = topic.verify_states(found)
        context.record({"topic": topic.name, "wrong": [key or "the whole topic" for key in wrong]})
        return FAILED if wrong else DONE
    with ProgressBar(context, "folded", unit="events" if master is None else "entities") as progress:
        if master is None:
            report = topic.rebuild(found, whole=whole, progress=progress)
        else:
            from penstock.spark.projection.projecting import rebuild as rebuild_on_spark

            report = rebuild_on_spark(topic.journal, topic.name, found, master=master, progress=progress)
    return {"entities": report.entities, "events": report.events, "through": report.through}


# ── What caused what, in a terminal or as Mermaid ──


@command(
    "graph",
    "penstock graph 01890a5d-ac96-774b-bcce-b302099a8057",
    "penstock graph order-17 --format mermaid --out order.mmd",
)
@click.argument("correlation", help="the correlation's id, or the id of any event of it")
@values.choice("--format", "tree mermaid", default="tree", help="a tree for reading, or a flowchart for Markdown")
@click.option("--out", type=click.Path(), help="write it to this file")
def graph(context: CommandContext, correlation: str, format: str, out: str | None) -> None:
    """Shows the chain of causes and effects that a correlation holds together."""
    with context.journal(read_only=True) as journal:
        events = list(journal.correlated(correlation))
        if len(events) <= 1:
            # The id of an event in the middle is enough: its correlation finds the other events.
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
    from penstock.core.entity.causality import mermaid

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
    from penstock.core.entity.causality import tree

    for stems, event in tree(events):
        yield paint(stems, "dim", color) + event_line(event, color=color, topic=True)


# ── How a queue delivers and what a topic keeps: every field of their policy and settings as an option ──


SETTINGS = {
    "max_age": "remove events older than this (none: keep them)",
    "max_events": "keep about this many events (none: all)",
    "max_bytes": "keep about this many bytes (none: all)",
    "by_key": "keep only the newest event of each key in settled history",
    "verified": "keep a hash of every event, for `penstock verify`",
    "indexed": "look events up by key, cause and correlation in an index",
}
"""A topic's settings. `dedup_window` is the topic's own if there is no queue."""


def _options() -> list[click.Parameter]:
    """Returns every field as an option. The type of a field decides how its text is read."""
    from msgspec import inspect

    from penstock.core.journal.catalog import Settings
    from penstock.core.queue.policy import WORDS, QueuePolicy, parse_retry
    from penstock.server import forms

    def retry(text: str) -> object:
        return parse_retry(text)

    readers: dict[type, Callable[[str], Any]] = {
        inspect.FloatType: values.duration,
        inspect.IntType: values.number,
        inspect.BoolType: bool,
        inspect.StrType: str,
        inspect.StructType: retry,
    }
    words = {name: help for name, (_, help) in WORDS.items()} | SETTINGS
    made: list[click.Parameter] = []
    for name, field in {one.name: one for kind in (Settings, QueuePolicy) for one in forms.struct_fields(kind)}.items():
        kind, *others = forms.types_of(field)
        read: Any = values.size if name.endswith("_bytes") else readers.get(type(kind))
        if read is None:
            read = click.Choice(list(forms.choices_of(field)))
        elif others and read is not retry:
            read = values.or_none(read)
        metavar = "yes|no" if read is bool else None
        made.append(click.Option([f"--{name.replace('_', '-')}"], type=read, metavar=metavar, help=words[name]))
    return made


@command(
    "configure",
    "penstock configure orders --max-age 30d --max-bytes 2GiB",
    "penstock configure emails --lease 2m --max-attempts 5 --retry exponential:1s:60s --dead-letter emails.dead",
    also="create takeover",
    derived=_options,
)
@click.argument("name", shell_complete=values.topic_names, help="the topic or queue")
def configure(context: CommandContext, name: str, **_: object) -> None:
    """Shows or changes what a topic keeps and how a queue delivers; makes the one or the other when it is not there.

    A queue is a topic, too: of a queue both are shown, and both can be changed. An option of queues, given for a topic,
    makes it a queue. RETRY is one of immediate, fixed:5s, linear:10s:5m, exponential:1s:60s, schedule:5s,5m,30m, svix,
    and default: what a worker fails with waits about 5 s, 30 s, 3 min, then 10 min, and what is given back by hand is
    ready at once.
    """
    import msgspec

    from penstock.core.queue.policy import FIELDS

    changes = given_options()
    with context.journal(read_only=not changes) as journal:
        is_queue = name in journal.queues()
        policy = {field: value for field, value in changes.items() if field in FIELDS}
        if not is_queue and set(policy) == {"dedup_window"}:
            policy = {}
        if policy and not is_queue:
            journal.queue(name, **policy)
        elif policy:
            journal.queue(name).configure(**policy)
        settings = {field: value for field, value in changes.items() if field not in policy}
        if not changes and not is_queue and name not in journal.topics():
            meant = did_you_mean(name, journal.topics())
            raise Nothing(f"there is no topic or queue {name!r} in {context.shown_journal}{meant}")
        topic = journal.topic(name)
        kept = msgspec.structs.asdict(topic.configure(**settings) if settings else topic.settings)
        if not policy and not is_queue:
            context.record({"topic": name, **kept})
            return
        delivers = journal.queue(name).policy
    context.record(
        {"queue": name, **kept, **msgspec.structs.asdict(delivers), "retry": str(delivers.retry or "default")}
    )
