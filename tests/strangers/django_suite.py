"""The tests of Django's own tasks (6.0.10, `tests/tasks` of its source archive), run on our backend; then ours there.

    python tests/strangers/django_suite.py

Django 6 needs Python 3.12: this program looks for one (PENSTOCK_PYTHON312 names another), makes an environment with it
beside this one, and runs itself there. Where Django's tests say DummyBackend or ImmediateBackend, they get ours: one
that only enqueues, and one that runs what it enqueued at once, as a worker does. `test_django.py` meets django-tasks in
the ordinary environment, and Django 6 here.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tarfile
import types
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
VERSION = "6.0.10"
MODULES = ("tasks.test_tasks", "tasks.test_dummy_backend", "tasks.test_immediate_backend", "tasks.test_custom_backend")
CASES = 76
"""How many there are in this version, so that none is lost on the way."""
LEFT_OUT = {
    "DummyBackendTestCase.test_refresh_result": "changes a result in the memory of the dummy backend",
    "DummyBackendTestCase.test_refresh_result_async": "changes a result in the memory of the dummy backend",
    "ImmediateBackendTestCase.test_cannot_get_result": "results can be found here",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "results can be refreshed here",
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "tasks can be run later here",
}
PYTHONS = ("python3.12", "python3.13", "python3.14")
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")


# ── in an environment with Django 6 ──────────────────────────────────────────────────────────────────────────────────
def our_backends(folder: Path) -> None:
    """Puts our backends where the tests import Django's two from."""
    from penstock.integrations.django.backend import TasksBackend
    from penstock.integrations.django.running import TaskAttempt

    class EnqueueingBackend(TasksBackend):
        """Ours, with what the dummy backend has for tests."""

        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            given = {"url": str(folder / f"{type(self).__name__}.db"), "enqueue": "at_once"}
            super().__init__(alias, {**params, "OPTIONS": given})
            self.options = params.get("OPTIONS", {})

        @property
        def results(self) -> list[Any]:
            return [self.get_result(event.key) for event in self.states.read(kind="enqueued")]

        def clear(self) -> None:
            for name in self.journal.topics():
                self.journal.drop_topic(name, force=True)

    class RunningBackend(EnqueueingBackend):
        """Ours, with a worker that runs each task when it is enqueued."""

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            self.queue(task.queue_name).purge()  # a test that was interrupted has left its task
            id = super().enqueue(task, args, kwargs).id
            with self.queue(task.queue_name).receive() as delivery:
                TaskAttempt(self, "worker", delivery).run()
            return self.get_result(id)

    for module, name, backend in (
        ("dummy", "DummyBackend", EnqueueingBackend),
        ("immediate", "ImmediateBackend", RunningBackend),
    ):
        stand_in = types.ModuleType(f"django.tasks.backends.{module}")
        setattr(stand_in, name, backend)
        sys.modules[stand_in.__name__] = stand_in


def run_suite(tests: Path) -> int:
    """Runs Django's tests in this process; they lie in a folder of a source archive."""
    import django
    from django.conf import settings
    from django.test.runner import DiscoverRunner

    assert django.__version__ == VERSION
    sys.path.insert(0, str(tests))
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["penstock.integrations.django"],
        SECRET_KEY="for tests",
        USE_TZ=True,
    )
    django.setup()
    with TemporaryDirectory() as folder:
        our_backends(Path(folder))
        found = [importlib.import_module(name) for name in MODULES]
        for case, reason in LEFT_OUT.items():
            owner, method = case.split(".")
            (theirs,) = (vars(module)[owner] for module in found if owner in vars(module))
            setattr(theirs, method, unittest.skip(reason)(getattr(theirs, method)))
        runner = DiscoverRunner(verbosity=2, interactive=False)
        suite = runner.build_suite(list(MODULES))
        assert suite.countTestCases() == CASES, f"{suite.countTestCases()} cases, not {CASES}"
        return runner.run_tests(list(MODULES))


# ── getting there ────────────────────────────────────────────────────────────────────────────────────────────────────
def environment() -> Path:
    """The Python of an environment with Django 6 and this tree."""
    folder = Path(sys.prefix) / f"django-{VERSION}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([newer_python(), "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, f"django=={VERSION}", "pytest>=8", "-e", f"{ROOT}[server,cli]"], check=True)
        ready.touch()
    return python


def newer_python() -> str:
    """A Python that Django 6 runs on."""
    named = os.environ.get("PENSTOCK_PYTHON312")
    found = [sys.executable, *map(shutil.which, PYTHONS), *sorted(map(str, PYENV.glob("*/bin/python3")))]
    for command in filter(None, [named] if named else found):
        asked = "import sys; sys.exit(sys.version_info < (3, 12))"
        if subprocess.run([command, "-c", asked], capture_output=True, check=False).returncode == 0:
            return command
    sys.exit(f"Django {VERSION} needs Python 3.12 or newer, and there is none: name one with PENSTOCK_PYTHON312")


def source(python: Path, folder: str) -> Path:
    """The folder of Django's tests, from its source archive."""
    download = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", folder]
    subprocess.run([*download, f"django=={VERSION}"], check=True)
    (archive,) = Path(folder).glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return next(Path(folder).glob("*/tests"))


def main() -> int:
    if sys.argv[1:]:
        return run_suite(Path(sys.argv[1]))
    python = environment()
    with TemporaryDirectory() as folder:
        theirs = subprocess.call([str(python), str(Path(__file__).resolve()), str(source(python, folder))])
        # Without the configuration of pytest that is here: what it names is not in that environment.
        apart = ("--noconftest", "-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider", "-q")
        ours = [str(python), "-m", "pytest", *apart, "strangers/test_django.py"]
        return theirs or subprocess.call(ours, cwd=ROOT / "tests", env={**os.environ, "PYTHONPATH": "."})


if __name__ == "__main__":
    sys.exit(main())
