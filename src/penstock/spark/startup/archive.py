"""Spark's classes, parsed and verified once and kept in the user's cache: the JVM then starts in half the time.

The archive is the JVM's own (class data sharing): about 200 MB, mapped into memory instead of reading 18,000 classes
from 260 jars. It is bound to one Java, one set of jars and one set of flags, which together make its name. Making it
takes about a minute of one core, so it happens after the first session has ended, in the background and at the lowest
priority (or by `python -m penstock.spark.startup.warm`, for an image). Whatever is wrong with an archive, the JVM or
`launch` goes on without it.

    <cache>/penstock/spark/<name>.jsa      the archive
                           <name>.json     its size and time, written last: an archive without it does not count
                           <name>.lock     held while it is made
                           <name>.failed   the last attempt failed; the next is a day later

$PENSTOCK_SPARK_ARCHIVE: `on` (default), `use` (never make one), `off`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from penstock.errors import ConfigError
from penstock.spark.startup.java import Java

_KEPT = 4
_PAUSE_AFTER_FAILURE_SECONDS = 24 * 3600.0
_DUMP_SECONDS = 15 * 60.0


def mode(environ: Mapping[str, str] | None = None) -> str:
    """What $PENSTOCK_SPARK_ARCHIVE allows: "on", "use" or "off"."""
    value = (os.environ if environ is None else environ).get("PENSTOCK_SPARK_ARCHIVE", "on")
    if value not in ("on", "use", "off"):
        raise ConfigError(f"PENSTOCK_SPARK_ARCHIVE must be on, use or off, not {value!r}")
    return value


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where archives are kept: $XDG_CACHE_HOME, ~/Library/Caches on macOS, ~/.cache elsewhere."""
    env = os.environ if environ is None else environ
    if env.get("XDG_CACHE_HOME"):
        base = Path(env["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "penstock" / "spark"


class Archive:
    """The archive for one Java, one set of jars and one set of flags; it may not exist yet."""

    def __init__(self, java: Java, flags: Sequence[str], jars: Path, folder: Path) -> None:
        self._java = java
        self._vm_flags = list(flags)
        self._folder = folder
        self.name = _name(java, flags, jars)
        self.path = folder / f"{self.name}.jsa"
        self._seal = folder / f"{self.name}.json"
        self._failure = folder / f"{self.name}.failed"

    @property
    def usable(self) -> bool:
        """Whether the archive was finished and has not been touched since."""
        try:
            return bool(json.loads(self._seal.read_bytes()) == _identity(self.path))
        except (OSError, ValueError):
            return False

    @property
    def wanted(self) -> bool:
        """Whether it is worth trying to make it now."""
        if self.usable:
            return False
        try:
            return time.time() - self._failure.stat().st_mtime > _PAUSE_AFTER_FAILURE_SECONDS
        except OSError:
            return True

    def flags(self) -> list[str]:
        """The JVM flags that use the archive; none when it cannot be used."""
        if not self.usable:
            return []
        with contextlib.suppress(OSError):
            os.utime(self._seal)  # the least recently used are dropped first
        return ["-Xshare:auto", f"-XX:SharedArchiveFile={self.path}"]

    def discard(self) -> None:
        """Removes the archive, so that the next attempt makes a new one."""
        for path in (self._seal, self.path):
            with contextlib.suppress(OSError):
                path.unlink()

    def make(self, rehearse: Callable[[list[str]], None]) -> bool:
        """Makes the archive from the classes that `rehearse`, run with the flags it is given, makes Spark load.

        False when it exists already or another process is making it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with _exclusive(self._folder / f"{self.name}.lock") as owned:
            if not owned or self.usable:
                return False
            self._failure.touch()
            for left_over in self._folder.glob(f"{self.name}.*/"):  # by a killed attempt
                shutil.rmtree(left_over, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f"{self.name}.", dir=self._folder) as work:
                classes = Path(work, "classes")
                rehearse([f"-XX:DumpLoadedClassList={classes}"])
                made = Path(work, "archive.jsa")
                self._dump(classes, made)
                self._publish(made)
            self._failure.unlink(missing_ok=True)
            _prune(self._folder)
            return True

    def make_in_background(self) -> None:
        """Starts a process that makes the archive and holds on to nothing of this one."""
        with contextlib.suppress(OSError):
            subprocess.Popen(
                [sys.executable, "-m", "penstock.spark.startup.warm", "--background"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )

    def _dump(self, classes: Path, made: Path) -> None:
        self._run("-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={made}")
        # -Xshare:on refuses to start where the archive does not fit, which -Xshare:auto would hide.
        self._run("-Xshare:on", f"-XX:SharedArchiveFile={made}", "-version")

    def _run(self, *arguments: str) -> None:
        subprocess.run(
            [str(self._java.executable), *self._vm_flags, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_DUMP_SECONDS,
            check=True,
        )

    def _publish(self, made: Path) -> None:
        with made.open("rb") as file:
            os.fsync(file.fileno())
        self.discard()
        made.replace(self.path)
        seal = made.with_name("seal")
        seal.write_text(json.dumps(_identity(self.path)))
        seal.replace(self._seal)


def _identity(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _name(java: Java, flags: Sequence[str], jars: Path) -> str:
    """A name that changes whenever the JVM would refuse the archive: it compares each jar's time and size."""
    digest = hashlib.sha256()
    for part in (str(java.home), java.version, platform.machine(), *flags):
        digest.update(part.encode() + b"\0")
    for jar in sorted(os.scandir(jars), key=lambda entry: entry.name):
        status = jar.stat()
        digest.update(f"{jar.name} {status.st_size} {status.st_mtime_ns}\0".encode())
    return f"java{java.major}-{digest.hexdigest()[:16]}"


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[bool]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


def _prune(folder: Path) -> None:
    """Keeps the archives used most recently: each virtual environment has its own, and they are large."""
    seals = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for seal in seals[_KEPT:]:
        for path in (seal, seal.with_suffix(".jsa")):
            path.unlink(missing_ok=True)
