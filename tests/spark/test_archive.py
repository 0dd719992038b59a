"""The cached class archive: made once, used when whole, ignored otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.startup import archive as archives
from penstock.spark.startup import java as javas
from penstock.spark.startup.archive import Archive, cache_folder, mode


class Workshop:
    """A real Java over a folder of no jars: archives of the JDK's own classes, made in a second or two."""

    def __init__(self, folder: Path) -> None:
        self.java = javas.find()
        self.jars = folder / "jars"
        self.jars.mkdir()
        (self.jars / "one.jar").write_bytes(b"")
        self.cache = folder / "cache"
        self.rehearsals = 0

    def archive(self) -> Archive:
        return Archive(self.java, ["-Xlog:disable"], self.jars, self.cache)

    def rehearse(self, flags: list[str]) -> None:
        self.rehearsals += 1
        subprocess.run([self.java.executable, *flags, "-version"], check=True, capture_output=True)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def test_an_archive_is_made_once_and_then_used(workshop: Workshop) -> None:
    archive = workshop.archive()
    assert archive.flags() == []
    assert archive.wanted

    assert archive.make(workshop.rehearse)
    assert not workshop.archive().make(workshop.rehearse)

    assert workshop.rehearsals == 1
    again = workshop.archive()
    assert not again.wanted
    started = subprocess.run(
        [workshop.java.executable, "-Xlog:disable", *again.flags(), "-Xshare:on", "-version"], capture_output=True
    )
    assert started.returncode == 0, started.stderr
    assert sorted(path.suffix for path in workshop.cache.iterdir()) == [".jsa", ".json", ".lock"]


def test_a_truncated_archive_is_not_used_and_is_made_again(workshop: Workshop) -> None:
    archive = workshop.archive()
    archive.make(workshop.rehearse)
    archive.path.chmod(0o600)
    os.truncate(archive.path, 1000)
    assert archive.flags() == []
    assert archive.wanted
    assert archive.make(workshop.rehearse)
    assert archive.usable


def test_other_jars_or_another_java_need_another_archive(workshop: Workshop) -> None:
    before = workshop.archive().name
    os.utime(workshop.jars / "one.jar", ns=(1, 1))
    touched = workshop.archive().name
    workshop.java = javas.Java(workshop.java.home, "99.0.1", "test")
    assert len({before, touched, workshop.archive().name}) == 3


def test_two_processes_do_not_make_the_same_archive(workshop: Workshop) -> None:
    begun, finish = threading.Event(), threading.Event()

    def slowly(flags: list[str]) -> None:
        begun.set()
        assert finish.wait(60)
        workshop.rehearse(flags)

    first = threading.Thread(daemon=True, target=lambda: workshop.archive().make(slowly))
    first.start()
    assert begun.wait(60)
    assert not workshop.archive().make(workshop.rehearse)
    assert workshop.rehearsals == 0
    finish.set()
    first.join()
    assert workshop.archive().usable


def test_a_failed_attempt_waits_a_day_and_leaves_nothing_behind(workshop: Workshop) -> None:
    def fail(flags: list[str]) -> None:
        raise RuntimeError("no")

    archive = workshop.archive()
    with pytest.raises(RuntimeError):
        archive.make(fail)
    assert not archive.wanted
    assert not archive.usable
    assert sorted(path.suffix for path in workshop.cache.iterdir()) == [".failed", ".lock"]
    yesterday = time.time() - 25 * 3600
    os.utime(workshop.cache / f"{archive.name}.failed", (yesterday, yesterday))
    assert archive.wanted


def test_what_a_killed_attempt_left_is_removed_by_the_next(workshop: Workshop) -> None:
    archive = workshop.archive()
    left_over = workshop.cache / f"{archive.name}.abc"
    left_over.mkdir(parents=True)
    (left_over / "archive.jsa").write_bytes(b"half")
    archive.make(workshop.rehearse)
    assert not left_over.exists()


def test_only_the_archives_used_most_recently_are_kept(workshop: Workshop) -> None:
    workshop.cache.mkdir()
    for age in range(6):
        for suffix in ("jsa", "json"):
            path = workshop.cache / f"java17-{age}.{suffix}"
            path.write_bytes(b"{}")
            os.utime(path, (1000 - age, 1000 - age))
    workshop.archive().make(workshop.rehearse)
    kept = {path.stem for path in workshop.cache.glob("*.jsa")}
    assert kept == {workshop.archive().name, "java17-0", "java17-1", "java17-2"}


def test_the_cache_follows_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/penstock/spark")
    monkeypatch.setattr(archives.sys, "platform", "darwin")
    assert cache_folder({}) == Path.home() / "Library/Caches/penstock/spark"
    monkeypatch.setattr(archives.sys, "platform", "linux")
    assert cache_folder({}) == Path.home() / ".cache/penstock/spark"


def test_the_archive_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [mode({}), mode({"PENSTOCK_SPARK_ARCHIVE": "off"})] == ["on", "off"]
    with pytest.raises(ConfigError, match="on, use or off"):
        mode({"PENSTOCK_SPARK_ARCHIVE": "maybe"})
    done = subprocess.run(
        [sys.executable, "-m", "penstock.spark.startup.warm"],
        env={**os.environ, "PENSTOCK_SPARK_ARCHIVE": "off"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "PENSTOCK_SPARK_ARCHIVE=off" in done.stderr
