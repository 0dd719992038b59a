"""kill -9 of the driver that writes to a journal in object storage, and of the server that commits for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_flows import Alone, Served
from killing import order_kill, was_killed

from buffer.emulator import Emulator
from server.process import ServerProcess

PATIENCE = 600


class Program:
    """A Spark program over some flows, started as often as it is killed."""

    def __init__(self, folder: Path, homes: str) -> None:
        self.folder, self.homes = folder, homes
        self.flows: list[Alone] = []
        self.server: ServerProcess | None = None
        (folder / "where").write_text(homes)

    def add_alone(self) -> Alone:
        flow = Alone(self.folder / "alone")
        self.flows.append(flow)
        return flow

    def add_served(self) -> Served:
        """The flow that a server commits for, which runs until the program's `end`."""
        self.server = ServerProcess(f"{self.homes}/served")
        self.server.start()
        flow = Served(self.folder / "served")
        (flow.folder / "url").write_text(self.server.url)
        self.flows.append(flow)
        return flow

    def end(self) -> None:
        if self.server is not None:
            self.server.kill()

    def feed(self) -> None:
        for flow in self.flows:
            flow.feed()

    def run(self) -> int:
        """Until it ends or is killed; a server that was killed meanwhile is started again."""
        words = [sys.executable, str(Path(__file__).with_name("bucket_flows.py")), str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            running = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            for _ in range(PATIENCE * 10):
                if running.poll() is not None:
                    break
                if self.server is not None:
                    self.server.revive()
                    (self.folder / "server").write_text(str(self.server.pid))
                try:
                    running.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            running.kill()
            running.wait(60)
        return running.returncode

    def check_killed(self) -> None:
        for flow in self.flows:
            assert was_killed(flow.folder), (flow, self.said())
            flow.check_whole_batches()

    def finish(self) -> None:
        assert self.run() == 0, self.said()
        for flow in self.flows:
            flow.check_exactly_once()

    def said(self) -> str:
        return (self.folder / "log").read_text()[-3000:]


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.nightly), "s3"])
def program(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    homes = f"slatedb:{tmp_path}/homes"
    if request.param == "s3":
        emulator: Emulator = request.getfixturevalue("emulator")
        homes = f"{emulator.bucket()}/shops"
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
    made = Program(tmp_path, homes)
    yield made
    made.end()


def test_a_driver_killed_within_its_commit_to_a_bucket_leaves_no_half_batch(program: Program) -> None:
    """Several tasks of a real Spark read from the store and leave objects there; the program after it goes on."""
    flow = program.add_alone()
    program.feed()
    order_kill(flow.folder, "publishing", "program")
    assert program.run() != 0
    program.check_killed()
    program.finish()


@pytest.mark.nightly
def test_a_driver_killed_while_it_commits_to_a_bucket_itself_and_through_a_server(program: Program) -> None:
    alone, served = program.add_alone(), program.add_served()
    program.feed()
    order_kill(alone.folder, "publishing", "program")
    order_kill(served.folder, "published", "program")
    assert program.run() != 0
    program.check_killed()
    program.finish()


@pytest.mark.nightly
def test_driver_jvm_and_server_killed_one_after_the_other(program: Program) -> None:
    """Each run begins with the batches that the kill before it has interrupted."""
    program.add_alone()
    served = program.add_served()
    kills = [("planned", "jvm"), ("reading", "program"), ("writing", "jvm"), ("publishing", "jvm-orphan")]
    kills += [("publishing", "program"), ("published", "jvm"), ("published", "program")]
    for stage, target in kills:
        program.feed()
        early = stage in ("planned", "reading", "writing")  # of the second batch; else the first one's commit
        for flow in program.flows:
            order_kill(flow.folder, stage, target, hits=int(early))
        assert program.run() != 0, (stage, target)
        program.check_killed()
    for stage in ("writing", "publishing", "published"):
        program.feed()
        order_kill(served.folder, stage, "server-orphan")
        program.finish()
        assert was_killed(served.folder), program.said()
