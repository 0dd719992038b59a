"""Makes the development environment: a virtual environment with penstock, every extra, and the tools.

    python3 scripts/setup.py .venv all dev

Uses uv when it is there, else venv and pip. Needs nothing but Python 3.11 or newer.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)


def say(text: str) -> None:
    sys.stdout.write(f"penstock: {text}\n")
    sys.stdout.flush()


def call(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"penstock: this failed: {' '.join(command)}")


def tools(*names: str) -> list[str]:
    """What the dependency groups of these names hold."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        groups: dict[str, list[str]] = tomllib.load(file)["dependency-groups"]
    return [tool for name in names for tool in groups[name]]


def main() -> None:
    folder, extras, groups = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if sys.version_info < OLDEST:
        sys.exit(
            f"penstock needs Python {OLDEST[0]}.{OLDEST[1]} or newer; this is {sys.version.split()[0]}. "
            "Say which one to use: make PYTHON=python3.12 …"
        )
    python = folder / "bin" / "python"
    uv = shutil.which("uv")
    say(f"setting up {folder} with {'uv' if uv else 'pip'} (once; about a minute with a fast network)")
    if uv:
        if not python.exists():
            call(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
        installer = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        if not python.exists():
            call(sys.executable, "-m", "venv", str(folder))
        if subprocess.run([str(python), "-c", "import pip"], capture_output=True, check=False).returncode:
            call(str(python), "-m", "ensurepip")  # an environment that uv made has no pip
        installer = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    call(*installer, "-e", f".[{extras}]", *tools(*groups))
    aside = folder / "declarative"
    if "dev" in groups and not aside.exists():
        # Spark's declarative pipelines want pandas, where Spark behaves otherwise: kept aside for their one test.
        call(*installer, "--no-deps", "--target", str(aside), *tools("declarative"))
    say("ready")


if __name__ == "__main__":
    main()
