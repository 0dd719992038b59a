"""The store is late, refuses, falls silent, loses answers: every call ends, says what happened, and work goes on."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from typing import Any

import pytest
from object_homes import Home, insist
from store_proxy import StoreProxy

import penstock
from buffer.emulator import Emulator, free_port
from penstock.engines.slatedb import database as place_module
from penstock.engines.slatedb.database import ObjectLocation, ObjectOptions, check_store
from penstock.errors import ConfigError, Fenced, OutcomeUnknown, StorageError
from waiting import DEADLINE, eventually


def payloads(journal: Any) -> list[Any]:
    return [event.payload for event in journal.topic("t").read()]


def log_put(method: str, path: str) -> bool:
    return method == "PUT" and "/wal/" in path


def lease_put(method: str, path: str) -> bool:
    return method == "PUT" and path.endswith("penstock/lease")


class Once:
    """True for the first so many requests that a condition picks."""

    def __init__(self, condition: Any, times: int = 1) -> None:
        self.condition, self.times = condition, times

    def __call__(self, method: str, path: str) -> bool:
        if self.times and self.condition(method, path):
            self.times -= 1
            return True
        return False


def test_an_append_waits_for_a_store_that_refuses_for_a_while(behind: Home, proxy: StoreProxy) -> None:
    journal = behind.open()
    journal.topic("t").append("k", 1)
    proxy.refuse = refused = Once(log_put, 4)  # more often than a request is made again by itself

    assert journal.topic("t").append("k", 2).seq == 2 and refused.times == 0
    assert payloads(journal) == [1, 2]


def test_lost_answers_make_nothing_happen_twice(behind: Home, proxy: StoreProxy) -> None:
    journal = behind.open()
    for number in range(6):
        proxy.lose = Once(log_put) if number % 2 else Once(lambda method, path: method in ("PUT", "GET"), 2)
        assert journal.topic("t").append("k", number).seq == number + 1
    proxy.heal()
    assert payloads(journal) == list(range(6))
    journal.close()
    assert payloads(behind.open()) == list(range(6))


def test_requests_that_arrive_twice_make_nothing_happen_twice(behind: Home, proxy: StoreProxy) -> None:
    proxy.repeat = lambda method, path: method == "PUT"
    journal = behind.open()
    for number in range(5):
        assert journal.topic("t").append("k", number).seq == number + 1
    proxy.heal()
    journal.close()
    assert payloads(behind.open()) == list(range(5))


def test_a_commit_the_store_does_not_answer_is_said_to_be_unknown_and_settles_later(
    behind: Home, proxy: StoreProxy
) -> None:
    journal = behind.open(lease=30)
    journal.topic("t").append("k", 1)
    journal._engine._timeout = 0.5  # not before: a busy machine may take longer to open it
    proxy.refuse = log_put

    with pytest.raises(OutcomeUnknown, match="dedup"):
        journal.topic("t").append("k", 2, dedup="two")
    with pytest.raises(StorageError, match="Nothing of this one was written") as caught:
        journal.topic("t").append("k", "never")
    assert caught.value.retryable and not isinstance(caught.value, OutcomeUnknown)
    assert payloads(journal) == [1], "what is not known to be stored is not shown"

    proxy.heal()
    journal._engine._timeout = DEADLINE
    again = insist(lambda: journal.topic("t").append("k", 2, dedup="two"))
    assert (again.seq, again.duplicate) == (2, True), "it was kept after all, and dedup finds it"
    assert journal.topic("t").append("k", 3).seq == 3
    assert payloads(journal) == [1, 2, 3]


def test_everybody_in_a_group_learns_that_the_outcome_is_unknown(behind: Home, proxy: StoreProxy) -> None:
    journal = behind.open(lease=30, linger=0.1)
    journal.topic("t").append("k", 0)
    journal._engine._timeout = 0.5  # not before: a busy machine may take longer to open it
    proxy.refuse = log_put
    found: list[object] = []

    def append(number: int) -> None:
        try:
            found.append(journal.topic("t").append("k", number, dedup=str(number)))
        except StorageError as error:
            found.append(error)

    threads = [threading.Thread(target=append, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(found) == 8 and all(isinstance(one, StorageError) for one in found)
    assert any(isinstance(one, OutcomeUnknown) for one in found)
    proxy.heal()
    journal._engine._timeout = DEADLINE
    for number in range(8):
        insist(lambda number=number: journal.topic("t").append("k", number, dedup=str(number)))
    assert sorted(payloads(journal)) == [0, 0, 1, 2, 3, 4, 5, 6, 7]


def test_a_writer_that_cannot_renew_its_lease_acknowledges_nothing(behind: Home, proxy: StoreProxy) -> None:
    journal = behind.open(lease=1.0)
    journal.topic("t").append("k", 1)
    journal._engine._timeout = 0.5  # not before: a busy machine may take longer to open it
    proxy.refuse = lease_put
    eventually(lambda: not journal._engine._lease.holds)  # type: ignore[attr-defined]

    with pytest.raises(OutcomeUnknown):
        journal.topic("t").append("k", 2, dedup="two")
    proxy.heal()
    journal._engine._timeout = DEADLINE
    assert insist(lambda: journal.topic("t").append("k", 2, dedup="two")).seq == 2
    assert journal.topic("t").append("k", 3).seq == 3, "nobody had taken the lease: work goes on"


def test_a_writer_that_was_cut_off_finds_out_that_it_was_replaced(
    behind: Home, proxy: StoreProxy, emulator: Emulator
) -> None:
    first = behind.open(lease=1.0)
    first.topic("t").append("k", 1)
    first._engine._timeout = 0.5  # not before: a busy machine may take longer to open it
    proxy.cut()
    second = penstock.open(behind.url, store_options=emulator.options, lease=1.0, takeover=True)
    try:
        assert second.topic("t").append("k", 2).seq == 2
        with pytest.raises(StorageError):
            first.topic("t").append("k", "lost", dedup="lost")
        proxy.heal()
        first._engine._timeout = DEADLINE
        with pytest.raises(Fenced):
            insist(lambda: first.topic("t").append("k", "lost", dedup="lost"))
        assert second.topic("t").append("k", 3).seq == 3
        assert payloads(second) == [1, 2, 3]
    finally:
        second.close()


def test_reads_go_on_when_the_store_is_back(behind: Home, proxy: StoreProxy) -> None:
    journal = behind.open()
    for number in range(5):
        journal.topic("t").append("k", number)
    reader = behind.open_reader(timeout=0.3)
    assert insist(lambda: payloads(reader)) == list(range(5))
    proxy.cut()
    for _ in range(3):
        try:
            assert payloads(reader) == list(range(5))
        except StorageError as error:
            assert error.retryable
    proxy.heal()
    journal.topic("t").append("k", 5)
    eventually(lambda: insist(lambda: payloads(reader)) == list(range(6)))


def test_a_reader_asks_a_store_that_refuses_again_until_its_timeout(behind: Home, proxy: StoreProxy) -> None:
    """It holds no lease, so a short one is no reason to give up early."""
    journal = behind.open()
    journal.topic("t").append("k", 0)
    reader = behind.open(read_only=True, lease=0.5)
    journal.topic("t").append("k", 1)
    proxy.refuse = refused = Once(lambda method, path: method == "HEAD" and "/wal/" in path, times=6)
    eventually(lambda: payloads(reader) == [0, 1])  # raises nothing
    assert refused.times == 0


def test_closing_without_a_network_ends_and_loses_nothing_acknowledged(behind: Home, proxy: StoreProxy) -> None:
    journal = behind.open(lease=1.0)
    journal.topic("t").append("k", 1)
    journal._engine._timeout = 0.5  # not before: a busy machine may take longer to open it
    proxy.cut()
    journal.close()
    proxy.heal()
    assert payloads(behind.open()) == [1]


def test_opening_ends_at_its_deadline_when_the_store_is_silent(behind: Home, proxy: StoreProxy) -> None:
    behind.open().close()
    proxy.cut()
    for options in ({}, {"read_only": True}):
        with pytest.raises(StorageError):
            behind.open(timeout=0.3, **options)


def test_opening_ends_at_its_deadline_when_the_store_dies_half_way(behind: Home, proxy: StoreProxy) -> None:
    behind.open().close()
    proxy.silence = lambda method, path: "/manifest" in path or "prefix" in path
    with pytest.raises(StorageError, match="could not be opened"):
        behind.open(timeout=2.0)
    proxy.heal()
    behind.open().topic("t").append("k", 1)


def test_opening_waits_for_a_store_that_comes_back(
    behind: Home, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as it was given, however short its lease; a standby, which waits anyway, without end."""
    monkeypatch.setattr(place_module, "AGAIN_SECONDS", 0.01)
    behind.open().close()
    place = ObjectLocation(behind.url, ObjectOptions(lease=0.5, store=behind.options))
    for writing, timeout, patient in ((True, DEADLINE, False), (False, DEADLINE, False), (True, 0.0, True)):
        proxy.refuse = Once(lambda method, path: True, 8)  # a request is made three times by itself
        check_store(place, writing=writing, timeout=timeout, patient=patient)
        assert proxy.refuse.times == 0
    proxy.refuse = Once(lambda method, path: True, 8)
    with pytest.raises(StorageError) as caught:
        check_store(place, writing=True, timeout=0.0)
    assert caught.value.retryable and proxy.refuse.times > 0


def test_what_is_wrong_with_a_place_is_said_at_once(emulator: Emulator) -> None:
    bucket = emulator.bucket()
    with pytest.raises(ConfigError, match="no such bucket"):
        penstock.open("s3://there-is-none/shop", store_options=emulator.options)
    with pytest.raises(ConfigError, match="no such bucket"):
        penstock.open("s3://there-is-none/shop", store_options=emulator.options, read_only=True)
    with pytest.raises(ConfigError, match="path of its own"):
        penstock.open(bucket, store_options=emulator.options)
    with pytest.raises(ConfigError, match="bucket"):
        penstock.open("s3:shop")
    with pytest.raises(ConfigError, match="no store"):
        penstock.open(f"{bucket}/nothing", store_options=emulator.options, read_only=True)
    with pytest.raises(ConfigError, match="regoin"):
        penstock.open(f"{bucket}/x", store_options={**emulator.options, "regoin": "eu"})
    with pytest.raises(StorageError) as caught:
        penstock.open(
            f"{bucket}/x", timeout=1, store_options={**emulator.options, "endpoint": f"http://127.0.0.1:{free_port()}"}
        )
    assert caught.value.retryable


def test_an_address_where_no_server_answers_is_named_soon_and_in_a_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_module, "STORE_CONNECT_SECONDS", 0.8)
    address = f"http://127.0.0.1:{free_port()}"
    options = {"endpoint": address, "access_key_id": "a", "secret_access_key": "b", "region": "eu", "allow_http": True}
    begun = time.monotonic()
    with pytest.raises(StorageError) as caught:
        penstock.open("s3://bucket/shop", timeout=DEADLINE, store_options=options)
    assert time.monotonic() - begun < DEADLINE / 2  # not the time that a store that is late gets
    assert caught.value.retryable
    shown = "".join(traceback.format_exception_only(caught.value))
    assert f"no server answers at {address}" in shown and "is the endpoint right" in shown
    whole = "".join(traceback.format_exception(caught.value))
    assert "Debug source" not in whole
    assert [record.name for record in caplog.records if "cannot be opened yet" in record.getMessage()] != []
    assert len(caplog.records) == 1


def test_credentials_the_store_refuses_are_an_error_at_once(behind: Home, proxy: StoreProxy) -> None:
    proxy.deny = True
    with pytest.raises(ConfigError, match=r"403|Forbidden|denied|permission"):
        behind.open(timeout=5)


def test_ctrl_c_arrives_while_an_append_waits_for_the_store(behind: Home, proxy: StoreProxy) -> None:
    journal = behind.open(lease=60)
    journal.topic("t").append("k", 1)
    main, refused = threading.main_thread().ident, Once(log_put)
    assert main is not None

    def refuse(method: str, path: str) -> bool:
        if refused(method, path):  # now it waits for the store, and for this answer first
            signal.pthread_kill(main, signal.SIGINT)
        return log_put(method, path)

    journal._engine._timeout = 0.7  # for so long its outcome is waited for all the same
    proxy.refuse = refuse
    with pytest.raises(KeyboardInterrupt):
        journal.topic("t").append("k", 2, dedup="two")
    proxy.heal()
    journal._engine._timeout = DEADLINE
    assert insist(lambda: journal.topic("t").append("k", 2, dedup="two")).seq == 2
    assert payloads(journal) == [1, 2]
