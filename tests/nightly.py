"""What `make test` leaves to the night, in parts that are named by what they prove and can be run alone.

    make nightly               every part, one after the other
    make nightly PART=matrix   one of them
    make nightly PART=list     their names and what they prove; PART=json for machines

A part is either the tests that carry its name (`@pytest.mark.nightly("over-http")`, or the rules of `part_of` here), or
a program. Each is a process of its own and uses nothing of the others, so that several can run at once. A search looks
for faults with new seeds; `make torture` runs the searches alone, for as long as it is told.

The rule of the day: all above an engine is written once, against `engine/contract.py`. So every engine passes the
engine's contract, model, kills, failing calls and power cuts with every push; the journal's, queues' and entities'
contracts run on memory, and on SQLite where a test names its engines because it meets a lock, another process, a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
RANDOM = "random"
"""The profile of hypothesis that tries other examples in every run, and ten times as many."""
BY_DAY = ("memory", "sqlite")
"""The engines of the contracts above the engine's, in `make test`."""
_IN_EMULATORS = {
    "test_a_committed_value_is_read_back",
    "test_a_scan_includes_its_start_and_excludes_its_stop_in_both_directions",
    "test_a_snapshot_does_not_move",
    "test_an_exception_rolls_everything_back",
    "test_a_range_is_deleted_and_may_be_written_again",
    "test_a_relaxed_commit_is_visible_at_once_and_survives_closing",
    "test_a_store_is_found_again_after_closing",
    "test_opening_a_missing_store_for_reading_is_an_error_and_makes_nothing",
    "test_a_store_opened_for_reading_reads_and_refuses_to_write",
    "test_a_backup_is_a_store_of_its_own",
}
"""Of the engine contract, what runs in the emulator of S3 with every push."""
_ON_MARIADB = {
    "test_what_commits_is_in_the_journal_once_and_what_rolls_back_never",
    "test_rows_that_commit_out_of_the_order_of_their_ids_all_come",
    "test_a_relay_does_not_wait_for_transactions_that_are_open",
}
"""Of the outbox, what runs on MariaDB with every push."""


@dataclass(frozen=True)
class Part:
    """A part of the night: what it proves, and its program where it is not the tests of its name."""

    proves: str
    program: tuple[str, ...] = ()
    folder: str = "."
    search: str = ""
    """The module of a search: it takes seeds until its time is up (`searching.py`)."""
    minutes: float = 0
    takes: tuple[str, ...] = ()
    """What a search can be told beside its time and its seed: an engine, a count of its tries."""


def _random(*folders: str) -> tuple[str, ...]:
    return ("-m", "pytest", "--hypothesis-profile=random", *(f"tests/{name}" for name in folders))


def _seeded(option: str, *folders: str) -> tuple[str, ...]:
    return ("-m", "pytest", option, str(int(time.time())), *(f"tests/{name}" for name in folders))


_FOLDERS = ("contract", "journal", "model", "engine", "crash", "buffer", "cli", "observe")
_MUTATION = ("-m", "torture.mutation", "--mutants", "400", "--minutes", "90")


PARTS = {
    "matrix": Part("the journal, queues and entities keep their contracts on every engine"),
    "emulators": Part("the object-store engine and buffers keep their contracts in the emulators of S3 and Azure"),
    "over-http": Part("a journal behind a server keeps the contracts of one that is here"),
    "kills": Part(
        "nothing acknowledged is lost to a kill, on every engine and road",
        search="torture.kills",
        minutes=30,
        takes=("engine", "count"),
    ),
    "cuts": Part("nothing acknowledged is lost to a power cut", search="torture.cuts", minutes=20, takes=("engine",)),
    "failing": Part(
        "every N-th failing call is an error and no damage", search="torture.failing", minutes=30, takes=("engine",)
    ),
    "damage": Part("a changed byte is named, or harmless", search="torture.damage", minutes=20, takes=("count",)),
    "histories": Part(
        "what several processes were told has an order",
        search="torture.histories",
        minutes=10,
        takes=("engine", "count"),
    ),
    "simulation": Part(
        "buffers and queues hold under seeded schedules", search="torture.simulation", minutes=10, takes=("count",)
    ),
    "crafted": Part("a client's wrong block is refused, or read by everything", search="torture.crafted", minutes=10),
    "fuzzing": Part("decoders raise errors of the tree and nothing else", search="torture.fuzzing", minutes=20),
    "junk": Part(
        "junk arguments are refused by errors of the tree, here and over HTTP",
        search="torture.junk",
        minutes=20,
        takes=("count",),
    ),
    "overload": Part(
        "memory, descriptors and threads do not grow", search="torture.overload", minutes=30, takes=("engine",)
    ),
    "serving": Part("a server under mixed load does not grow in two hours", search="torture.serving", minutes=120),
    "crashes": Part("more kills, signals and damage than the short forms by day have"),
    "random": Part("the models and formats hold for new programs and values", _random("model", "journal", "buffer")),
    "programs": Part(
        "whatever is done to a store, every way to ask has the same answer",
        search="model.search",
        minutes=120,
        takes=("engine", "count"),
    ),
    "shuffled": Part("no test needs another one before it", _seeded("--shuffle", *_FOLDERS)),
    "mutation": Part("a changed line of the writer or of a queue's state fails a test", _MUTATION, "tests"),
    "planted": Part(
        "every planted fault is found by a test; prints the first that found each", ("-m", "planted"), "tests"
    ),
    "late": Part("no contract test depends on when a thread begins", _seeded("--late", "contract", "journal")),
    "late-servers": Part(
        "nor does one of servers, engines or buffers", _seeded("--late", "server", "engine", "buffer")
    ),
    "wheel": Part("what is published installs into a new environment, without extras, and runs the quickstart"),
    "spark-kills": Part("a killed driver, executor or server neither loses nor doubles a batch"),
    "spark-cluster": Part("executors of a cluster read and write what a local session does"),
    "spark-emulator": Part("Spark reads and writes a bucket through an emulator"),
    "spark-random": Part("any schema and payload comes back as it was"),
    "spark-programs": Part("whole programs with a Spark of their own"),
    "spark-versions": Part("all that holds on the newest Spark holds on the others", ("scripts/spark_versions.py",)),
    "spark-version-kills": Part(
        "a killed process neither loses nor doubles a batch on any Spark; prints how many were killed on each",
        (
            "scripts/spark_versions.py",
            "--",
            *("tests/spark/test_kill.py", "--nightly", "spark-kills", "-k", "every_stage"),
        ),
    ),
    "nexmark": Part(
        "NEXMark's queries have DuckDB's answers, five stateful ones while drivers, executors and workers are killed",
        (
            *("scripts/spark_versions.py", "4.0", "4.3", "--", "-s"),
            *("tests/spark/test_nexmark.py", "tests/spark/test_nexmark_kills.py", "--nightly", "nexmark"),
        ),
    ),
    "outbox": Part("an outbox keeps on MariaDB what it promises"),
    "strangers-eventsourcing": Part("the rest of the suite of eventsourcing passes on our persistence module"),
    "strangers-celery": Part(
        "Celery runs in every pool and over HTTP, and killed workers lose and copy no message; prints its seed"
    ),
    "strangers-celery-canvas": Part(
        "Celery's own integration tests pass with a journal as broker and backend",
        ("strangers/celery_suite.py",),
        "tests",
    ),
    "strangers-kombu": Part(
        "kombu's own integration tests pass on our transport", ("strangers/kombu_suite.py",), "tests"
    ),
    "strangers-django": Part("what a backend for Django's tasks does, on a served journal, too"),
    "strangers-django-6": Part(
        "Django's own tests of tasks pass on our backend, and ours on Django 6", ("strangers/django_suite.py",), "tests"
    ),
    "strangers-due-work": Part("workers of tasks and relays that die anywhere end where they would have ended"),
    "strangers-huey": Part("the suite of huey passes on a storage over a queue and tables of tx.sql"),
    "strangers-litestream": Part("Litestream replicates a busy writer that is killed now and then; prints its seed"),
    "pages": Part("every page holds at every width, with crowded journals"),
    "lighthouse": Part(
        "Lighthouse gives every page 100 points for accessibility", ("-m", "server.lighthouse"), "tests"
    ),
}


def examples(count: int) -> int:
    """How many examples a model is tried with, where every push has `count`."""
    return count * 10 if settings.get_current_profile_name() == RANDOM else count


def rooms_of(item: pytest.Item) -> tuple[str, ...]:
    """The folders of a test below `tests`: a checkout's own path says nothing of it, be it named `spark`."""
    return item.path.relative_to(item.config.rootpath / "tests").parts[:-1]


def part_of(item: pytest.Item) -> str | None:
    """The part of the night that a test belongs to; None runs with every push."""
    if (marker := item.get_closest_marker("nightly")) is not None:
        return str(marker.args[0])
    call = getattr(item, "callspec", None)
    if call is None:
        return None
    rooms = rooms_of(item)
    if rooms[:1] == ("contract",) and rooms[-1] != "engine" and "place" in call.params:
        return None if call.params["place"].scheme in _by_day(item) else "matrix"
    if item.path.stem == "test_engine_contract":
        by_day = call.params["store"] == "s3" and item.name.partition("[")[0] in _IN_EMULATORS
        return None if by_day else "emulators"
    if rooms == ("engine", "slatedb") and call.params.get("home") in ("s3", "azure"):
        return "emulators"
    # The stores' own contract meets every store; what is above it is written once, against that contract.
    if rooms == ("buffer",) and call.params.get("store") in ("s3", "azure") and item.path.stem != "test_stores":
        return "emulators"
    if rooms == ("outbox",) and call.params.get("database") == "mariadb":
        return None if item.name.partition("[")[0] in _ON_MARIADB else "outbox"
    # By day a kill meets the weakest durability that an engine has; "process" means "disk" on this one.
    weakest = "disk" if call.params.get("scheme") == "slatedb" else "process"
    return "crashes" if rooms[:1] == ("crash",) and call.params.get("durability", weakest) != weakest else None


def _by_day(item: pytest.Item) -> Sequence[str]:
    """The engines that a contract test meets with every push: memory, or those of the day's that it names."""
    for marker in item.iter_markers("parametrize"):
        if marker.args[0] == "place":
            named = [kind.scheme for kind in marker.args[1]]
            return [scheme for scheme in named if scheme in BY_DAY] or named[:1]
    return ("memory",)


def run(name: str, options: Sequence[str] = (), minutes: float | None = None) -> int:
    """Runs a part and returns its code; a search takes the options, and another time than the night's."""
    part = PARTS[name]
    program, folder = part.program or ("-m", "pytest", "--nightly", name), part.folder
    if part.search:
        ends = () if "--count" in options else ("--minutes", str(minutes or part.minutes))
        program, folder = ("-m", part.search, *ends, *options), "tests"
    print(f"── {name}: {part.proves}", flush=True)
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    code = subprocess.call([sys.executable, *program], cwd=ROOT / folder, env=environment)
    print(f"── {name}: {'passed' if code == 0 else 'FAILED'} after {time.monotonic() - began:.0f} s", flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="all, where none is named; `list` names them")
    parser.add_argument("--minutes", type=float, help="only searches, for so long together")
    parser.add_argument("--seed", help="only searches: the first seed")
    parser.add_argument("--engine", help="only searches that take an engine: on this one")
    parser.add_argument("--count", help="only searches that count: so many tries each, however long they take")
    options = parser.parse_args()
    if options.parts == ["list"]:
        print("\n".join(f"{name:<20}{part.proves}" for name, part in PARTS.items()))
        return 0
    if options.parts == ["json"]:
        print(json.dumps(list(PARTS)))
        return 0
    told = {name: value for name in ("seed", "engine", "count") if (value := getattr(options, name)) is not None}
    searching = bool(told) or options.minutes is not None
    there = [
        name for name, part in PARTS.items() if not searching or (part.search and {*told} <= {"seed", *part.takes})
    ]
    wanted = options.parts or there
    if unknown := [name for name in wanted if name not in there]:
        what = "search that can be told this" if searching else "part of the night"
        parser.error(f"no {what} is named {unknown[0]!r}; there are: {', '.join(there)}")
    share = None if options.minutes is None else options.minutes / len(wanted)
    given = [word for name, value in told.items() for word in (f"--{name}", value)]
    failed = [name for name in wanted if run(name, given, share)]
    if failed:
        print("failed: " + ", ".join(failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
