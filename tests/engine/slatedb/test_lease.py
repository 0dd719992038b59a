"""The lease: one holder, found out without comparing clocks; a holder that cannot renew stops first."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest

from buffer.faults import FaultyStore
from penstock.engines.slatedb import lease as module
from penstock.engines.slatedb.lease import LEASE_PATH, SAFETY, LeaseRecord, WriterLease, read_lease
from penstock.errors import Corrupt, Fenced, Locked
from penstock.limits import LEASE_SECONDS
from penstock.objects.store import Stored, Version, open_store

_names = itertools.count()
TERM = 10.0


class World:
    """A store, and one clock that moves when somebody sleeps; `then` happens at times."""

    def __init__(self) -> None:
        self.store = FaultyStore(open_store(f"memory://lease-{next(_names)}"))
        self.now = 1000.0
        self.plan: list[tuple[float, Callable[[], object]]] = []

    def lease(self, seconds: float = TERM) -> WriterLease:
        made = WriterLease(self.store, "s3://b/shop", seconds, clock=lambda: self.now, sleep=self.sleep)
        # A process of another machine: what it does is known through the store only.
        made._record = msgspec.structs.replace(made._record, system="", host=f"host{next(_names)}")
        return made

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at, act in [step for step in self.plan if step[0] <= self.now]:
            self.plan.remove((at, act))
            act()

    def at(self, when: float, act: Callable[[], object]) -> None:
        self.plan.append((1000.0 + when, act))

    def record(self) -> LeaseRecord:
        found = read_lease(self.store, "s3://b/shop")
        assert found is not None
        return found


@pytest.fixture
def world() -> World:
    return World()


def take(lease: WriterLease, *, takeover: bool = False, standby: bool = False) -> WriterLease:
    lease.acquire(takeover=takeover, standby=standby, timeout=30)
    return lease


def test_the_first_takes_it_and_the_object_says_who(world: World) -> None:
    lease = take(world.lease())

    assert lease.holds and lease.epoch == 1
    record = world.record()
    assert record.seconds == TERM and record.pid and record.host and not record.released
    assert f"process {record.pid} on {record.host} since 20" in record.who()


def test_a_released_lease_is_taken_at_once(world: World) -> None:
    take(world.lease()).release()
    second = take(world.lease())

    assert second.holds and second.epoch == 2 and world.now == 1000.0


def test_a_lease_is_given_back_after_a_renewal_whose_answer_was_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    lease = take(world.lease())
    world.store.on("put_if", "lose")
    lease.beat()
    caplog.clear()
    lease.release()
    assert world.record().released and not caplog.records


def test_closing_a_writer_that_was_replaced_complains_of_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = take(world.lease()), world.lease()
    take(second, takeover=True)
    first.release()  # before it has noticed
    assert not caplog.records
    assert not world.record().released and world.record().owner == second._record.owner


def test_a_holder_that_renews_is_found_alive_and_named(world: World) -> None:
    first = take(world.lease())
    world.at(6.0, first.beat)

    with pytest.raises(Locked, match=f"by process .* on {world.record().host} since .* standby=True"):
        take(world.lease())
    assert world.now <= 1007.0 and first.holds


def test_a_lease_nobody_renews_is_taken_after_a_whole_term_by_the_takers_clock(world: World) -> None:
    first = take(world.lease())
    second = take(world.lease())

    assert world.now >= 1000.0 + TERM and second.holds
    assert not first.holds, "the first stopped before the second could take over"


def test_the_holder_stops_acknowledging_before_its_term_ends(world: World) -> None:
    lease = take(world.lease())
    world.now += TERM * SAFETY - 0.01
    assert lease.confirm(0)
    world.now += 0.02
    assert not lease.confirm(0)
    assert lease.beat() == TERM * module.RENEW_AT
    assert lease.confirm(0)


def test_the_term_is_counted_from_before_a_slow_put(world: World) -> None:
    lease = take(world.lease())

    def slow(act: Callable[[], object]) -> object:
        world.now += 8.0
        return act()

    real = world.store.put_if
    world.store.put_if = lambda *call: slow(lambda: real(*call))  # type: ignore[method-assign,assignment]
    lease.beat()
    assert lease.holds
    world.now += 1.1
    assert not lease.holds, "nine seconds after the put began"


def test_a_takeover_ends_a_holder_that_lives(world: World) -> None:
    first = take(world.lease())
    second = take(world.lease(), takeover=True)

    assert second.epoch == 2 and world.now == 1000.0
    assert first.beat() is None
    with pytest.raises(Fenced, match=world.record().host) as caught:
        first.confirm(0)
    assert caught.value.epoch == 2
    first.release()
    assert not world.record().released, "the old holder does not give back what is another's"


def test_a_standby_waits_through_renewals_and_takes_over_when_they_end(world: World) -> None:
    first = take(world.lease())
    for when in (6.0, 12.0, 18.0):
        world.at(when, first.beat)

    second = take(world.lease(), standby=True)
    assert second.holds and not first.holds
    assert 1018.0 + TERM <= world.now <= 1018.0 + TERM * 1.3


@pytest.mark.parametrize("tick", range(20))
def test_by_default_a_standby_elsewhere_has_the_lease_six_seconds_after_a_kill(world: World, tick: int) -> None:
    """The rest of the ten seconds that are promised is for opening."""
    first = take(world.lease(LEASE_SECONDS))
    killed = 1.0 + tick * LEASE_SECONDS * module.RENEW_AT / 20
    for beat in range(1, 4):
        if (when := beat * LEASE_SECONDS * module.RENEW_AT) <= killed + 6:
            world.at(when, lambda when=when: first.beat() if when <= killed else None)  # type: ignore[misc]
    real, reads = world.store.read, 0

    def late(path: str, known: Stored | None = None) -> Stored | None:
        nonlocal reads
        reads += 1
        world.sleep(0.025)
        return real(path, known)

    world.store.read = late  # type: ignore[method-assign]
    second = take(world.lease(LEASE_SECONDS), standby=True)

    assert second.holds and not first.holds
    assert world.now - (1000.0 + killed) <= 6.0
    assert reads <= 4 * module.RETRIES, "it does not ask without end"


def test_a_standby_takes_over_as_soon_as_the_holder_lets_go(world: World) -> None:
    first = take(world.lease())
    world.at(3.0, first.release)

    assert take(world.lease(), standby=True).holds
    assert world.now < 1005.0


def test_of_two_who_take_an_expired_lease_one_gets_it(world: World) -> None:
    take(world.lease())
    third = world.lease()
    # The third replaces it in the very moment the second is about to.
    world.at(TERM, lambda: third._put(world.store.read(LEASE_PATH).version, 2))  # type: ignore[union-attr]

    with pytest.raises(Locked):
        take(world.lease())
    assert third.holds and world.record().owner == third._record.owner


def test_a_put_whose_answer_was_lost_is_found_again(world: World) -> None:
    lease = take(world.lease())
    world.store.on("put_if", "lose", "ok")

    assert lease.beat() == TERM / module.RETRIES, "not known yet"
    # The same writer's own object is no other writer, but says nothing about the time since.
    assert lease.beat() == TERM / module.RETRIES
    assert lease.beat() == TERM * module.RENEW_AT and lease.holds


def test_taking_with_a_lost_answer_leaves_one_holder(world: World) -> None:
    world.store.on("put_if", "lose")
    lease = take(world.lease())

    assert lease.holds and lease.epoch == 1 and world.record().owner == lease._record.owner
    world.store.on("put_if", "lose", "fail", "lose")
    second = take(world.lease(), takeover=True)
    assert second.holds and second.epoch == 2 and world.record().owner == second._record.owner


def test_a_clock_that_jumps_forward_only_stops_acknowledgements(world: World) -> None:
    lease = take(world.lease())
    world.now += 3600.0
    assert not lease.confirm(0)
    lease.beat()
    assert lease.confirm(0)


def test_a_damaged_lease_is_named_and_not_overwritten(world: World) -> None:
    world.store.put(LEASE_PATH, b"{torn")
    with pytest.raises(Corrupt, match=LEASE_PATH):
        take(world.lease())
    assert bytes(world.store.get(LEASE_PATH) or b"") == b"{torn"


def test_a_lease_object_that_was_removed_ends_the_holder(world: World) -> None:
    lease = take(world.lease())
    world.store.delete([LEASE_PATH])
    assert lease.beat() is None
    with pytest.raises(Fenced, match="gone"):
        lease.check()


def test_a_standby_prepares_when_it_begins_to_wait_and_when_the_holder_is_late(world: World) -> None:
    holder = take(world.lease())
    for number in range(1, 4):  # it renews three times, is killed
        world.at(number * TERM * module.RENEW_AT, holder.beat)
    prepared: list[float] = []
    waiting = world.lease()
    waiting.acquire(standby=True, timeout=30, meanwhile=lambda: prepared.append(world.now - 1000.0))
    killed = 3 * TERM * module.RENEW_AT
    assert prepared[0] == 0.0 and len(prepared) == 2
    assert killed + TERM * module.LATE_AT <= prepared[1] < world.now - 1000.0
    assert world.now - 1000.0 >= killed + TERM, "however prepared it is, it waits a whole term"


def test_another_thread_of_the_process_does_not_take_a_lease_that_is_just_being_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known as this process's own before the store has it: else it looks like one that was left behind."""
    first, second = (WriterLease(world.store, "s3://b/shop", TERM, sleep=world.sleep) for _ in range(2))
    put = world.store.put_if

    def put_and_look(path: str, data: bytes, version: Version | None) -> Version:
        done = put(path, data, version)
        monkeypatch.undo()
        with pytest.raises(Locked):
            take(second)
        return done

    monkeypatch.setattr(world.store, "put_if", put_and_look)
    take(first)
    assert world.record().owner == first._record.owner
    first.release()
    assert take(second).epoch == 2
    second.release()
