"""Options of the data sources, and the journal that they name.

Spark passes text under names of any case; this module makes checked values of it. A url is made absolute, because tasks
run in other folders than the program.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

import msgspec

from penstock.api import local
from penstock.core.clock import parse_duration, to_ms
from penstock.core.documents.ddl import SchemaText, fields
from penstock.core.engine.url import parse_url
from penstock.core.entity.gate import check_gate_names
from penstock.core.model.conditions import Where, check_events_chosen
from penstock.core.names import (
    check_consumer,
    check_kind,
    check_name,
    check_tags,
    check_topics,
    did_you_mean,
    shown_url,
    split_url,
)
from penstock.core.surface.journal import Journal
from penstock.errors import ConfigError
from penstock.transfer.objects import check_area, folder_url

W = TypeVar("W", bound=str)


def number(given: Mapping[str, str], name: str, least: int = 1) -> int | None:
    """Returns a whole number of resolved options, None when it is missing; the name is spelled as in the docs."""
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, not {text!r}")
    return value


def choice(given: Mapping[str, str], name: str, *words: W) -> W:
    """Returns the word of a resolved option that has a choice of words, in any case; the first when none was given."""
    text = given.get(name.lower(), words[0])
    for word in words:
        if word.lower() == text.strip().lower():
            return word
    *others, last = map('"{}"'.format, words)
    raise ConfigError(f"{name} is {', '.join(others)} or {last}, not {text!r}")


def switch(given: Mapping[str, str], name: str) -> bool:
    """Returns a switch of resolved options, which is on by default."""
    return choice(given, name, "true", "false") == "true"


def named_url(options: Mapping[str, str], what: str) -> tuple[dict[str, str], str | None]:
    """Returns options with lower-case names, and the url, which may be given in two ways; raises ConfigError when
    both ways are used.
    """
    given = {name.lower(): value for name, value in options.items()}
    if given.get("url") and given.get("path"):
        raise ConfigError(f'the {what} is named twice: by option("url", …) and by the path given to load or save')
    return given, given.pop("path", None) or given.get("url") or None


def written_once(given: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Returns the application and the version of a write that is done once."""
    app = given.get("txnappid")
    return None if app is None else check_consumer(app, "txnAppId"), number(given, "txnVersion", least=0)


def check_known(given: Iterable[str], reads: Sequence[str], writes: Sequence[str], what: str) -> None:
    """Raises ConfigError for an unknown option; `what` names the source and the operation.

    A view is read and written with the same options, so options of the other direction are ignored.
    """
    known = SPARK_OPTIONS | {name.lower() for name in (*reads, *writes)}
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        names = writes if what.endswith("write") else reads
        meant = did_you_mean(unknown, (*reads, *writes)) or f"; there are {', '.join(names)}"
        raise ConfigError(f"a {what} has no option {unknown!r}{meant}")


def listed(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Returns several texts, separated by commas, or from a JSON array when the texts contain commas."""
    text = given.get(name, "").strip()
    if not text.startswith("["):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return tuple(msgspec.json.decode(text, type=list[str]))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f'{name} is a list like a,b or ["a", "b"]; {text!r} is not: {error}') from error


class Token:
    """A server's token, which travels with the work and is shown nowhere."""

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Returns the token itself."""
        return self._text

    def __repr__(self) -> str:
        return "Token(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class JournalLocation(msgspec.Struct, frozen=True):
    """The url of a journal, and the way to reach it."""

    url: str
    token: Token | None = None
    """The token for a server; without it, each process uses its own PENSTOCK_TOKEN."""
    compression: Literal["none", "gzip"] = "none"
    """The compression of a server's answers."""
    writer: str | None = None
    """The server that writes the journal, where the journal itself is read from its object store."""

    @property
    def served(self) -> bool:
        """True if the journal is at a server."""
        return is_served(self.url)

    @property
    def server(self) -> JournalLocation | None:
        """The server that makes changes; None when this process makes them itself."""
        if self.writer is not None:
            return JournalLocation(self.writer, self.token, self.compression)
        return self if self.served else None


def is_served(url: str) -> bool:
    """Returns True if a url names a server."""
    return url.lower().startswith(("http://", "https://"))


def location_of_journal(journal: Journal | str, what: str) -> JournalLocation:
    """Returns the location, for tasks, of a journal that a program names or has open.

    `what` names the operation that needs it.
    """
    if isinstance(journal, str):
        return JournalLocation(absolute_url(journal))
    from penstock.remote.backend import RemoteJournal  # takes longer to load than Spark's worker itself

    if isinstance(journal, RemoteJournal):
        token = journal._client.token
        return JournalLocation(journal._client.url, None if token is None else Token(token))
    engine = local(journal, what).backend.engine
    return JournalLocation(absolute_url(f"{engine.scheme}:{engine.location}"))


def location_of(given: Mapping[str, str]) -> JournalLocation:
    """Returns the journal that options name."""
    url, writer = given["url"], given.get("writer")
    if writer is not None:
        writer = _writer_url(writer, url)
    token, compression = given.get("token"), given.get("compression")
    if not is_served(url):
        if token is not None and writer is None:
            raise ConfigError(f"token is for a server (url or writer is http://…, https://…), not for {url}")
        if compression is not None:
            raise ConfigError(f"compression is for a journal at a server (http://…, https://…), not for {url}")
    packed: Literal["none", "gzip"] = choice(given, "compression", "none", "gzip")
    return JournalLocation(url, None if token is None else Token(token), packed, writer)


def _writer_url(writer: str, url: str) -> str:
    if is_served(url) or not parse_url(url).in_object_store:
        raise ConfigError(
            f"writer names the server that writes a journal in object storage (s3://…), and {shown_url(url)} is none: "
            "the url alone says where to write"
        )
    if not is_served(writer):
        raise ConfigError(f"writer is the url of a server (https://…), not {shown_url(writer)!r}")
    return _server_url(writer)


def absolute_url(url: str) -> str:
    """Returns the url with an absolute path, because tasks run in other folders than the program."""
    if is_served(url):
        return _server_url(url)
    scheme, path = parse_url(url)
    if scheme == "memory":
        raise ConfigError(
            "Spark reads and writes a journal from other processes, and memory: lives in one; use sqlite: or file:"
        )
    if scheme == "rocksdb":
        raise ConfigError(
            "Spark reads and writes a journal from several processes, and rocksdb: allows one; use sqlite: or file:"
        )
    if path.startswith("//"):  # a bucket
        return f"{scheme}:{path}"
    return f"{scheme}:{os.path.abspath(path)}"  # noqa: PTH100 - Path.absolute keeps '..'


def _server_url(url: str) -> str:
    """Returns the address of a server in its normal form; raises ConfigError for an invalid address, or an address
    with a secret.
    """
    parts = split_url(url)
    if not parts.hostname:
        raise ConfigError(f"{shown_url(url)!r} is no http url: write http://host:port")
    if parts.username or parts.password or parts.query:
        raise ConfigError('a token does not belong into the url: give option("token", …), or PENSTOCK_TOKEN')
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


_READ = (
    *("url", "writer", "token", "compression", "topic", "topics", "topicPattern", "queue"),
    *("kinds", "keys", "tags", "where"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "failOnDataLoss", "consumer"),
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions"),
    *("payloadSchema", "payloadFormat", "payloadColumns", "payloadPrefix", "mode", "badRecords"),
)
_WRITE = (
    "url",
    "writer",
    "token",
    "topic",
    "queue",
    "kind",
    "txnAppId",
    "txnVersion",
    "staging",
    "gates",
    "failOnOtherRows",
    "lake",
)
EVENT_COLUMNS = {
    **dict.fromkeys(("seq", "topic", "kind", "key", "scope", "payload"), "STRING"),
    "headers": "MAP<STRING, STRING>",
    **dict.fromkeys(("occurred_at", "recorded_at"), "TIMESTAMP"),
    **dict.fromkeys(("id", "correlation_id", "causation_id"), "STRING"),
    "tags": "ARRAY<STRING>",
    "seq": "BIGINT",
}
"""The columns of every event, and their types as Spark writes them."""
HOLD = "penstockhold"
"""The option by which a pipeline tells a stream what it looks for: see `ReadOptions.hold`."""
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "outputmode", HOLD})
"""The options that Spark itself, and a pipeline, leave among a source's options."""
_ALIASES = {"subscribe": "topic", "subscribepattern": "topicpattern"}
"""The Kafka source's names for the same things."""

_MAX_TRIGGER_DELAY = 15 * 60.0
"""Seconds after which a batch smaller than minOffsetsPerTrigger is read after all; as in Kafka's source."""

_BOUNDED_TEXT = re.compile(r"\b(?:VAR)?CHAR(?:ACTER)?\s*\(\s*\d+\s*\)", re.IGNORECASE)
"""The pattern of text types with a length, which Spark refuses for a Python source."""

_BEGINNING = re.compile(r"(?:[\w-]+(?:\\?\.)?)+", re.ASCII)
"""The beginning of a regular expression: it stands for topics that penstock writes for itself when it names them."""

PayloadForm = Literal["string", "binary", "variant"]
Offset = int | Literal["earliest", "latest"]
Mode = Literal["FAILFAST", "PERMISSIVE", "DROPMALFORMED"]
"""The treatment of rows whose payload does not fit the payloadSchema, in Spark's words."""


class ReadOptions(msgspec.Struct, frozen=True):
    """The options of a read."""

    location: JournalLocation
    topics: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """Names and patterns instead of topics, as in `journal.read`."""
    expression: str | None = None
    """The regular expression that the names of topics must match."""
    start: Offset | dict[str, Offset] = "earliest"
    end: Offset | dict[str, Offset] = "latest"
    start_ms: int | None = None
    end_ms: int | None = None
    max_offsets: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    consumer: str | None = None
    payload: PayloadForm = "string"
    payload_schema: str | None = None
    payload_struct: bool = False
    mode: Mode = "FAILFAST"
    bad_records: str | None = None
    kinds: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    """Only events of these keys; an empty set gives no events. None for all."""
    tags: frozenset[str] = frozenset()
    """Only events that have all of these tags."""
    where: Where | None = None
    min_offsets: int | None = None
    max_delay: float = _MAX_TRIGGER_DELAY
    hold: str | None = None
    """The file whose existence keeps a stream from beginning a batch, so that a pipeline ends between two batches."""
    max_bytes: int | None = None
    given: frozenset[str] = frozenset()
    """The names of the options that were given, in lower case."""
    payload_prefix: str = ""
    """The prefix of the names of columns that are fields of the payload."""


class WriteOptions(msgspec.Struct, frozen=True):
    """The options of a write."""

    location: JournalLocation
    topic: str | None = None
    queue: bool = False
    kind: str | None = None
    app: str | None = None
    version: int | None = None
    staging: str | None = None
    gates: tuple[str, ...] = ()
    """The names of gates; once the write is planned, of all gates that see its rows."""
    fail_on_other_rows: bool = True
    """True if a stream's batch that runs again with other rows ends the query."""
    lake: str | None = None
    """The place where tasks leave files that become events; None for the topic's lake, if it has one."""
    journal: str | None = None
    """The journal's id, once it is known."""


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the driver's options for processes with other folders and environments: the url is made absolute."""
    named, url = named_url(options, "journal")
    given = {_ALIASES.get(name, name): value for name, value in named.items()}
    if "provider" in given:
        raise ConfigError(
            "Spark does not give the options of CREATE TABLE … USING back to a source written in Python when the table "
            "is read; use CREATE TEMPORARY VIEW … USING penstock OPTIONS (…) instead"
        )
    url = url or os.environ.get("PENSTOCK_URL")
    if not url:
        raise ConfigError('no journal is named: set option("url", "shop.db"), or PENSTOCK_URL')
    given["url"] = absolute_url(url)
    return given


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Checks the resolved options of a read; a ConfigError names an invalid option and the reason."""
    given = dict(options)
    check_known(given, _READ, _WRITE, "penstock read")
    topics, patterns, expression = _topics(given)
    for pair in (("startingoffsets", "startingtimestamp"), ("endingoffsets", "endingtimestamp")):
        if pair[0] in given and pair[1] in given:
            raise ConfigError(f"give {_spelling(pair[0])} or {_spelling(pair[1])}, not both")
    form: Literal["json", "binary", "variant"] = choice(given, "payloadFormat", "json", "binary", "variant")
    schema = given.get("payloadschema")
    if schema is not None and form != "json":
        raise ConfigError(f"payloadSchema parses JSON payloads; it does not go with payloadFormat={form}")
    columns = choice(given, "payloadColumns", "flat", "struct")
    prefix = given.get("payloadprefix", "")
    if prefix and (schema is None or columns == "struct"):
        raise ConfigError("payloadPrefix is for columns made of a payloadSchema, with payloadColumns=flat")
    if schema is not None:
        _check_columns([prefix + name for name in fields(SchemaText("payloadSchema", schema))], columns)
        schema = _BOUNDED_TEXT.sub("STRING", schema)
    consumer = given.get("consumer")
    return ReadOptions(
        location_of(given),
        topics,
        patterns,
        expression,
        _offsets(given, "startingoffsets", "earliest", topics),
        _offsets(given, "endingoffsets", "latest", topics),
        _time(given, "startingtimestamp"),
        _time(given, "endingtimestamp"),
        number(given, "maxOffsetsPerTrigger"),
        number(given, "minPartitions"),
        switch(given, "failOnDataLoss"),
        None if consumer is None else check_consumer(consumer),
        "string" if form == "json" else form,
        schema,
        columns == "struct",
        *_misfits(given, topics or patterns, expression),
        frozenset(map(check_kind, listed(given, "kinds"))) if "kinds" in given else None,
        frozenset(listed(given, "keys")) if "keys" in given else None,
        frozenset(check_tags(listed(given, "tags") if "tags" in given else ())),
        check_events_chosen(Where(given["where"])) if "where" in given else None,
        *_least(given),
        given.get(HOLD),
        number(given, "maxBytesPerTrigger"),
        frozenset(given),
        prefix,
    )


def _check_columns(names: list[str], columns: str) -> None:
    """Raises ConfigError when a field of the payload would be a second column of the same name; Spark ignores case."""
    taken = {name.lower() for name in EVENT_COLUMNS if name != "payload"} if columns == "flat" else set()
    for name in names:
        if name.lower() in taken:
            raise ConfigError(
                f"column {name!r} would be there twice: every event has one, and payloadSchema names one too; "
                'set option("payloadPrefix", "payload_") for other names, or option("payloadColumns", "struct") to get '
                "the parsed fields as payload.…"
            )


def check_stream(options: ReadOptions) -> None:
    """Raises ConfigError for options that only a batch can have."""
    for name in ("endingOffsets", "endingTimestamp"):
        if name.lower() in options.given:
            raise ConfigError(f"{name} is for batches; a stream has no end (use trigger(availableNow=True))")


def _misfits(given: Mapping[str, str], topics: tuple[str, ...], expression: str | None) -> tuple[Mode, str | None]:
    """Returns the treatment of payloads that do not fit."""
    bad = given.get("badrecords")
    mode: Mode = (
        choice(given, "mode", "FAILFAST", "PERMISSIVE", "DROPMALFORMED")
        if bad is None
        else choice(given, "mode", "DROPMALFORMED", "PERMISSIVE", "FAILFAST")
    )
    for name in ("mode", "badrecords"):
        if name in given and "payloadschema" not in given:
            raise ConfigError(f"{_spelling(name)} is for payloads that a payloadSchema does not fit; there is none")
    if bad is not None:
        check_name(bad, "badRecords")
        read = any(fnmatchcase(bad, topic) for topic in topics)
        if read and (expression is None or re.fullmatch(expression, bad)):
            raise ConfigError(
                f"badRecords: this query reads {bad!r}, where its records would not fit again; name another"
            )
        if mode == "FAILFAST":
            raise ConfigError("badRecords takes the rows that do not fit, and mode=FAILFAST ends the query for them")
    return mode, bad


def _least(given: Mapping[str, str]) -> tuple[int | None, float]:
    """Returns the smallest size of a batch, and the longest wait for it."""
    least, delay = number(given, "minOffsetsPerTrigger"), given.get("maxtriggerdelay")
    if delay is not None and least is None:
        raise ConfigError("maxTriggerDelay goes with minOffsetsPerTrigger: it says how long to wait for so many")
    most = number(given, "maxOffsetsPerTrigger")
    if least is not None and most is not None and most < least:
        raise ConfigError(f"maxOffsetsPerTrigger ({most}) is below minOffsetsPerTrigger ({least})")
    try:
        return least, _MAX_TRIGGER_DELAY if delay is None else parse_duration(delay)
    except ConfigError as error:
        raise ConfigError(f"maxTriggerDelay: {error}") from error


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Checks the resolved options of a write; a ConfigError names an invalid option and the reason."""
    given = dict(options)
    check_known(given, _READ, _WRITE, "penstock write")
    if "topic" in given and "queue" in given:
        raise ConfigError("give topic or queue, not both: a queue's events are the topic of the same name")
    target = given.get("queue", given.get("topic"))
    if target is not None:
        check_name(target, "queue" if "queue" in given else "topic")
    kind = given.get("kind")
    return WriteOptions(
        location_of(given),
        target,
        "queue" in given,
        None if kind is None else check_kind(kind),
        *written_once(given),
        _staging(given),
        check_gate_names(listed(given, "gates")),
        switch(given, "failOnOtherRows"),
        _lake(given),
    )


def _lake(given: Mapping[str, str]) -> str | None:
    """Returns the place of files that become events: a place in an object store, or a folder."""
    lake = given.get("lake")
    if lake is None:
        return None
    if not lake.strip():
        raise ConfigError("lake is empty: name a folder, or a url like s3://bucket/prefix")
    return lake.rstrip("/") if "://" in lake else os.path.abspath(lake)  # noqa: PTH100


def _staging(given: Mapping[str, str]) -> str | None:
    """Returns the place where tasks leave their rows: a place in an object store, or, for a journal of this machine, a
    folder."""
    staging, url = given.get("staging"), given["url"]
    if staging is None:
        return None
    if "://" in staging:
        return check_area(staging)
    if is_served(url) or parse_url(url).in_object_store:
        raise ConfigError(
            f"staging is a place in an object store (s3://bucket/staging) for {shown_url(url)}; a folder is for a "
            "journal of this machine"
        )
    return folder_url(staging)


def _spelling(lower: str) -> str:
    return next(name for name in (*_READ, *_WRITE) if name.lower() == lower)


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    """Returns the topics that are named; or patterns of them, and a regular expression."""
    ways = [name for name in ("topic", "topics", "topicpattern", "queue") if name in given]
    if len(ways) != 1:
        said = "nothing" if not ways else " and ".join(map(_spelling, ways))
        raise ConfigError(
            f'say what to read by one of topic ("orders" or "orders,refunds"), topics ("shop.*"), topicPattern, queue; '
            f"not {said}"
        )
    if ways[0] == "topics":
        return (), check_topics([name.strip() for name in given["topics"].split(",") if name.strip()]), None
    if ways[0] == "topicpattern":
        pattern = given["topicpattern"]
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"topicPattern {pattern!r} is no regular expression: {error}") from error
        beginning = _BEGINNING.match(pattern)
        return (), ("*",) if beginning is None else ("*", beginning[0].replace("\\", "") + "*"), pattern
    names = [name.strip() for name in given[ways[0]].split(",")]
    for name in names:
        check_name(name, ways[0])
    if len(set(names)) != len(names):
        raise ConfigError(f"a topic is named twice in {given[ways[0]]!r}")
    return tuple(sorted(names)), (), None


def _offsets(
    given: Mapping[str, str], name: str, default: Literal["earliest", "latest"], topics: tuple[str, ...]
) -> Offset | dict[str, Offset]:
    text = given.get(name, default).strip()
    if not text.startswith("{"):
        return _offset(text, name)
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{_spelling(name)} is not valid JSON: {error}") from error
    unknown = [topic for topic in parsed if topics and topic not in topics]
    if unknown:
        raise ConfigError(f"{_spelling(name)} speaks of topic {unknown[0]!r}, which is not read")
    missing = [topic for topic in topics if topic not in parsed]
    if missing:
        raise ConfigError(f"{_spelling(name)} says nothing of topic {missing[0]!r}")
    return {topic: _offset(str(_only_partition(topic, offset, name)), name) for topic, offset in parsed.items()}


def _only_partition(topic: str, offset: object, name: str) -> object:
    """Returns the offset in {"0": offset}, as Kafka's source writes it: a topic has one partition here."""
    if not isinstance(offset, dict):
        return offset
    if set(offset) != {"0"}:
        raise ConfigError(f"{_spelling(name)}: topic {topic!r} has one partition, 0; not {', '.join(offset) or 'none'}")
    return offset["0"]


def _offset(text: str, name: str) -> Offset:
    lower = text.lower()
    if lower in ("earliest", "-2"):
        return "earliest"
    if lower in ("latest", "-1"):
        return "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    raise ConfigError(
        f'{_spelling(name)} is "earliest", "latest", a position, or JSON like {{"orders": 42}} for several topics; '
        f"not {text!r}"
    )


def _time(given: Mapping[str, str], name: str) -> int | None:
    """Milliseconds since 1970, as Kafka's source takes them, or an ISO 8601 time (UTC when it names no zone)."""
    text = given.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{_spelling(name)} is a time like 2026-01-31T08:00:00Z or milliseconds since 1970, not {text!r}"
        ) from None
    return to_ms(time if time.tzinfo else time.replace(tzinfo=UTC), _spelling(name))
