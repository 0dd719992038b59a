"""The integration tests of Celery 5.7.0 (`t/integration` of its source archive), with a journal as broker and backend.

    python tests/strangers/celery_suite.py [test_canvas.py::test_chord] [what to tell pytest]

Celery's tests count what tasks did in Redis, beside the backend under test, so a `redis-server` is needed
(`apt-get install redis-server`). Cases that ask for Redis as the backend run as well, for most ask because of these
counts: the question is taken out of their text. No case is tried again. Left out are the modules about other backends,
about Redis itself, about a broker that is a server (`test_connection_recovery`), about beat, logs, memory and security,
which need no broker; and the cases below.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent.parent
VERSION = "5.7.0"
MODULES = ("test_canvas.py", "test_tasks.py", "test_group_chains.py", "test_inspect.py", "test_serialization.py")
LEFT_OUT = {
    "test_chord_header_id_duplicated_on_rabbitmq_msg_duplication": "wants the chord of a task that came twice to run "
    "twice; its parts count once here, and Celery expects the same failure of a broker on Redis",
    "test_chord_on_error": "looks for a task's id in the words of the Redis backend's error",
    "(test_error_propagates_from_chord and not chord2)": "waits for tasks that a failed chain never sends; "
    "Celery's own file backend fails it, too",
    "test_scheduled": "looks for a task with an eta in the worker's memory; here the task waits in its queue",
    "test_revoked_by_headers_complex_canvas": "needs more than its own limit of 20 s, with Redis too",
    "cancels_subscription": "about the subscriptions of the Redis backend",
    "(test_chord and test_generator)": "about when the Redis backend reads a header that is a generator",
}
ONLY_REDIS = re.compile(r"if not (?:manager\.)?app\.conf\.result_backend\.startswith\(\(?['\"]redis['\"].*\):")
PACKAGES = (f"celery=={VERSION}", "cryptography", "pydantic", "pytest>=8,<9.2", "pytest-order", "pytest-subtests")
MORE_PACKAGES = ("pytest-timeout", "redis", "freezegun")


def environment() -> Path:
    """The Python of an environment with what the tests import, and this tree."""
    folder = Path(sys.prefix) / f"celery-{VERSION}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *PACKAGES, *MORE_PACKAGES, "-e", str(ROOT)], check=True)
        ready.touch()
    return python


def source(python: Path, folder: Path) -> Path:
    """Celery's source archive, unpacked."""
    download = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", str(folder)]
    subprocess.run([*download, f"celery=={VERSION}"], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = folder.glob("celery-*/")
    for module in (unpacked / "t" / "integration").glob("test_*.py"):
        module.write_text(ONLY_REDIS.sub("if False:", module.read_text("utf-8")), "utf-8")
    shutil.rmtree(unpacked / "celery")  # the installed one is tested
    return unpacked


def main() -> int:
    if shutil.which("redis-server") is None:
        sys.exit("Celery's tests count in Redis: apt-get install redis-server")
    with TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as taken:
        folder, port, python = Path(name), taken.getsockname()[1], environment()
        unpacked, place = source(python, folder), f"penstock://{folder}/shop.db"
        taken.close()
        redis = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", name],
            stdout=subprocess.DEVNULL,
        )
        try:
            environ = {**os.environ, "REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(port)}
            environ |= {"TEST_BROKER": place, "TEST_BACKEND": place, "WORKER_LOGLEVEL": "INFO"}
            environ["PATH"] = os.pathsep.join([str(python.parent), environ["PATH"]])  # a case runs `celery` itself
            plugins = ("-p", "celery.contrib.pytest", "-p", "penstock.integrations.celery", "-p", "no:cacheprovider")
            without = " and ".join(f"not {case}" for case in LEFT_OUT)
            options = (*plugins, "-W", "ignore", "--timeout", "300", "-v", "-k", without)
            told = sys.argv[1:]
            chosen = [one for one in told if one.startswith("test_")]
            options += tuple(one for one in told if one not in chosen)
            modules = [f"t/integration/{module}" for module in chosen or MODULES]
            return subprocess.call([str(python), "-m", "pytest", *options, *modules], cwd=unpacked, env=environ)
        finally:
            redis.kill()
            redis.wait()


if __name__ == "__main__":
    sys.exit(main())
