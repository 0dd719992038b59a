"""The model of an engine in the emulators of S3 and Azure: the nightly run's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from buffer.azure_emulator import ACCOUNT, KEY, AzureEmulator, azurite
from buffer.emulator import Emulator
from model.test_engine_model import END, EngineMachine
from nightly import examples
from penstock.core.engine.contract import Engine
from penstock.core.engine.url import open_engine
from penstock.engines.slatedb.database import ObjectOptions
from penstock.errors import Fenced

pytestmark = pytest.mark.nightly("emulators")


class Bucket(NamedTuple):
    url: str
    options: dict[str, Any]
    environment: dict[str, str]


@pytest.fixture(params=["s3", *(["azure"] if azurite() else [])])
def bucket(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    if request.param == "s3":
        emulator: Emulator = request.getfixturevalue("emulator")
        yield Bucket(emulator.bucket(), emulator.options, emulator.environment)
        return
    azure: AzureEmulator = request.getfixturevalue("azure")
    environment = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}
    yield Bucket(azure.container(), azure.options, {**environment, "AZURE_STORAGE_ENDPOINT": azure.endpoint})


class EmulatedMachine(EngineMachine):
    """The model over a bucket; a crash is a takeover, after which the first writer has nothing to say."""

    scheme = "slatedb"
    bucket: Bucket

    def open(self, *, takeover: bool = False) -> Engine:
        options = ObjectOptions(store=self.bucket.options, takeover=takeover)
        return open_engine(f"{self.bucket.url}/{self.name}", durability=self.durability, options=options)

    @rule()
    def crash(self) -> None:
        self.forget_snapshots()
        first, self.engine = self.engine, self.open(takeover=True)
        with suppress(Fenced):
            first.close()
        with self.engine.read() as snapshot:
            found = dict(snapshot.scan(b"", END))
        assert found in [*self.unsafe, self.model]
        self.model, self.unsafe = found, []


def test_an_engine_in_an_emulator_behaves_like_a_dict_with_snapshots_and_takeovers(bucket: Bucket) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        type("Machine", (EmulatedMachine,), {"bucket": bucket}),
        settings=settings(
            max_examples=examples(2),
            stateful_step_count=15,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
