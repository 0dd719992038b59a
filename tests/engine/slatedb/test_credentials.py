"""Who asks the store: a machine's role, keys that are given; and what each provider's client is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from object_homes import Home
from store_proxy import StoreProxy

import penstock
from buffer.emulator import Emulator
from penstock.errors import ConfigError

ROLE = {
    "AccessKeyId": "ASIAROLE",
    "SecretAccessKey": "role-secret",
    "Token": "role-token",
    "Expiration": "2099-01-01T00:00:00Z",
}


class Answering(ThreadingHTTPServer):
    """Answers a path with a text, and every other one with 403; notes what it was asked."""

    daemon_threads = True

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: Answering

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        self.rfile.read(int(self.headers.get("content-length") or 0))
        said = self.server.answers.get(path)
        self.send_response(403 if said is None else 200)
        self.send_header("content-length", str(len(said or "")))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write((said or "").encode())

    do_GET = do_PUT = do_POST = do_HEAD = _answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[Answering]:
    """What a machine in the cloud asks for the keys of its role."""
    roles = "/latest/meta-data/iam/security-credentials/"
    server = Answering({"/latest/api/token": "session", roles: "writer", f"{roles}writer": json.dumps(ROLE)})
    yield server
    server.shutdown()
    server.server_close()


def test_a_journal_is_opened_with_the_role_of_the_machine(
    emulator: Emulator, proxy: StoreProxy, metadata: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clients ask for it: SlateDB's for the tables and the log, the buffer's for the lease."""
    for name in emulator.environment:
        monkeypatch.delenv(name, raising=False)
    options = {"endpoint": proxy.endpoint, "region": "us-east-1", "metadata_endpoint": metadata.url, "allow_http": True}
    home = Home(f"{emulator.bucket()}/shop", options)
    with home.open() as journal:
        journal.topic("t").append("k", 1)
    with home.open(read_only=True) as reader:
        assert [event.payload for event in reader.topic("t").read()] == [1]
    assert "/latest/meta-data/iam/security-credentials/writer" in metadata.asked
    assert proxy.signers == {("ASIAROLE", "role-token")}


def test_keys_in_the_options_come_before_those_of_the_environment(
    emulator: Emulator, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    given = {**emulator.options, "endpoint": proxy.endpoint, "access_key_id": "given", "session_token": "for-an-hour"}
    home = Home(f"{emulator.bucket()}/shop", given)
    with home.open() as journal:
        journal.topic("t").append("k", 1)
    assert proxy.signers == {("given", "for-an-hour")}


def test_a_journal_in_google_cloud_storage_is_asked_for_there() -> None:
    """There is no emulator of it here: what is shown is that the url leads to its client, and the answer back."""
    server = Answering({})
    account = {"gcs_base_url": server.url, "disable_oauth": True}
    account |= {"client_email": "", "private_key": "", "private_key_id": ""}
    options = {"service_account_key": json.dumps(account), "allow_http": True}
    try:
        with pytest.raises(ConfigError, match="no journal can be opened at gs://bucket/shop"):
            penstock.open("gs://bucket/shop", timeout=10, store_options=options)
    finally:
        server.shutdown()
        server.server_close()
    assert server.asked and all("bucket" in path for path in server.asked)
