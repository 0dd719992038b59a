"""One contract for every store, and what is special about each."""

from __future__ import annotations

import pickle
import threading

import pytest

from penstock.buffer import Consumer, Producer
from penstock.errors import ConfigError, StorageError
from penstock.objects import store as probing
from penstock.objects.store import ObjectStore, VersionConflict, check_path, open_store, probe_conditional_puts

from .emulator import Emulator
from .faults import FaultyStore


def test_a_missing_object_is_none(store: ObjectStore):
    assert store.get("a/none") is None
    assert store.read("a/none") is None
    assert list(store.list("a")) == []


def test_what_was_put_is_got(store: ObjectStore):
    store.put("a/x", b"one")
    store.put("a/x", b"two")
    assert bytes(store.get("a/x")) == b"two"
    store.put("a/empty", b"")
    assert bytes(store.get("a/empty")) == b""


def test_create_happens_once(store: ObjectStore):
    store.put_if("a/m", b"one", None)
    with pytest.raises(VersionConflict):
        store.put_if("a/m", b"two", None)
    assert bytes(store.get("a/m")) == b"one"


def test_replace_needs_the_current_version(store: ObjectStore):
    first = store.put_if("a/m", b"one", None)
    second = store.put_if("a/m", b"two", first)
    with pytest.raises(VersionConflict):
        store.put_if("a/m", b"three", first)
    found = store.read("a/m")
    assert (bytes(found.data), found.version) == (b"two", second)
    store.put_if("a/m", b"three", found.version)


def test_replacing_what_was_deleted_is_a_conflict(store: ObjectStore):
    version = store.put_if("a/m", b"one", None)
    store.delete(["a/m"])
    with pytest.raises(VersionConflict):
        store.put_if("a/m", b"two", version)


def test_what_is_known_already_is_not_read_again(store: ObjectStore):
    store.put_if("a/m", b"one", None)
    known = store.read("a/m")
    assert store.read("a/m", known) is known
    store.put_if("a/m", b"two", known.version)
    assert bytes(store.read("a/m", known).data) == b"two"
    store.delete(["a/m"])
    assert store.read("a/m", known) is None


def test_lists_hold_direct_children_only(store: ObjectStore):
    for path in ("a/x", "a/y", "a/deep/z", "ab/w", "a.txt"):
        store.put(path, b"1")
    assert sorted(store.list("a")) == ["a/x", "a/y"]


def test_deleting_twice_is_no_failure(store: ObjectStore):
    paths = [f"a/{n}" for n in range(5)]
    for path in paths:
        store.put(path, b"1")
    assert store.delete([*paths, "a/none"]) == 0
    assert store.delete(paths) == 0
    assert list(store.list("a")) == []


def test_exactly_one_of_many_racing_writers_wins(store: ObjectStore):
    version = store.put_if("a/m", b"start", None)
    won: list[int] = []
    lost: list[int] = []
    ready = threading.Barrier(4)

    def race(n: int):
        ready.wait(30)
        try:
            store.put_if("a/m", f"writer {n}".encode(), version)
            won.append(n)
        except VersionConflict:
            lost.append(n)

    threads = [threading.Thread(daemon=True, target=race, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(won), len(lost)) == (1, 3)
    assert bytes(store.get("a/m")) == f"writer {won[0]}".encode()


def test_a_store_travels_by_pickle(store: ObjectStore):
    store.put("a/x", b"one")
    there = pickle.loads(pickle.dumps(store))
    assert bytes(there.get("a/x")) == b"one"
    assert (there.url, there.identity) == (store.url, store.identity)


# ── conditional puts that are accepted and ignored ──


class Deaf:
    """An S3 look-alike that ignores the conditions of a put."""

    def __init__(self, inner: ObjectStore, *, create: bool, replace: bool) -> None:
        self._inner = inner
        self.url = self.identity = f"s3://deaf-{create}-{replace}"
        self._ignores = {True: create, False: replace}

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def put_if(self, path, data, version):
        try:
            return self._inner.put_if(path, data, version)
        except VersionConflict:
            if not self._ignores[version is None]:
                raise
            self._inner.put(path, data)
            return self._inner.read(path).version


@pytest.mark.parametrize("create, replace, says", [(True, True, "If-None-Match"), (False, True, "If-Match")])
@pytest.mark.parametrize("open_one", [Producer, Consumer])
def test_a_store_that_ignores_conditional_puts_is_refused(memory: ObjectStore, create, replace, says, open_one):
    with pytest.raises(StorageError, match=f"does not honour conditional puts.*{says}"):
        open_one(Deaf(memory, create=create, replace=replace))
    with pytest.raises(StorageError):  # the refusal is not forgotten, nor is a probe left by another believed
        open_one(Deaf(memory, create=create, replace=replace))


def test_a_store_that_honours_them_is_probed_once_per_process(emulator: Emulator):
    store = FaultyStore(open_store(emulator.bucket(), emulator.options))
    store.url = store.url.removeprefix("faulty+")
    probe_conditional_puts(store, "ingest/manifest")
    asked = store.calls["put_if"]
    assert asked == 4
    probe_conditional_puts(store, "ingest/manifest")
    assert store.calls["put_if"] == asked


def test_a_probe_left_by_another_process_is_enough_for_the_next(emulator: Emulator, monkeypatch):
    store = open_store(emulator.bucket(), emulator.options)
    probe_conditional_puts(store, "ingest/manifest")
    monkeypatch.setattr(probing, "_proven", set())
    probe_conditional_puts(store, "ingest/manifest")


# ── urls and options ──


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "no-scheme", "", "s3://", "file://host/path", "file:relative", "http://example.com/x"],
)
def test_a_url_that_names_no_store_is_refused(url: str):
    with pytest.raises(ConfigError):
        open_store(url)


def test_unknown_options_are_named():
    with pytest.raises(ConfigError, match="no_such_option"):
        open_store("s3://bucket", {"no_such_option": "1"})
    with pytest.raises(ConfigError, match="region"):
        open_store("memory://x", {"region": "1"})
    with pytest.raises(ConfigError, match="already open"):
        open_store(open_store("memory://x"), {"region": "1"})


def test_every_cloud_opens_without_the_network(monkeypatch: pytest.MonkeyPatch):
    assert open_store("s3://bucket/prefix", {"region": "eu-central-1", "timeout": "10s"}).url == "s3://bucket/prefix"
    assert open_store("gs://bucket/prefix", {"skip_signature": "true"}).url == "gs://bucket/prefix"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    assert open_store("az://container/prefix").url == "az://container/prefix"


def test_credentials_region_and_endpoint_come_from_the_environment(emulator: Emulator, monkeypatch):
    url = emulator.bucket()
    monkeypatch.setenv("AWS_ENDPOINT_URL", emulator.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with Producer(f"{url}/some/prefix", flush_interval=0.001) as producer:
        producer.produce([b"x"]).result(30)
    under = open_store(url, emulator.options)
    assert len([path for path in under.list("some/prefix/ingest") if path.endswith(".batch")]) == 1


def test_a_missing_bucket_is_said_plainly(emulator: Emulator):
    store = open_store("s3://no-such-bucket", emulator.options)
    with pytest.raises(StorageError, match="no such bucket") as refused:
        store.put("a/x", b"1")
    assert not refused.value.retryable


def test_a_store_nobody_listens_at_is_worth_trying_again():
    options = {"endpoint": "http://127.0.0.1:9", "region": "x", "access_key_id": "x", "secret_access_key": "x"}
    store = open_store("s3://bucket", {**options, "connect_timeout": "1s"})
    with pytest.raises(StorageError) as refused:
        store.get("a/x")
    assert refused.value.retryable


def test_memory_stores_are_shared_by_name_in_the_process():
    open_store("memory://shared").put("a/x", b"1")
    assert bytes(open_store("memory://shared/").get("a/x")) == b"1"
    assert open_store("memory://other").get("a/x") is None


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\\b", "a\nb", "a\x7f"])
def test_paths_that_are_none_are_refused(path: str):
    with pytest.raises(ConfigError):
        check_path(path, "a path")
