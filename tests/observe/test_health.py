"""What is wrong with a journal, in words: dead letters, failures, growing lags, full disks, pipelines that fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

import penstock
from penstock.core.clock import ManualClock
from penstock.core.observe.pipelines import FlowStatus, report
from penstock.core.observe.sample import QueueSample, Sample
from penstock.core.observe.workers import forget, say_gave_up
from penstock.core.sampling.collect import Sampler, examine, gauges, growing, take_sample


@pytest.fixture
def journal() -> Iterator[penstock.Journal]:
    with penstock.open("memory:") as opened:
        yield opened


def give_up(journal: penstock.Journal, name: str, count: int, **policy: object) -> None:
    queue = journal.queue(name, max_attempts=1, **policy)
    queue.push_many(range(count))
    for delivery in queue.take_many(count):
        delivery.nack(error="no")


def says(sample: Sample) -> list[str]:
    return [one.says for one in sample.findings]


def test_nothing_is_wrong_with_a_journal_that_does_its_work(journal: penstock.Journal) -> None:
    journal.topic("orders").append("k")
    journal.queue("jobs", ttl=3600).push("x")
    assert take_sample(journal).findings == []


def test_dead_letters_are_dead_and_not_ready(journal: penstock.Journal) -> None:
    give_up(journal, "emails", 3, dead_letter="emails.dead")
    journal.queue("emails").push("fresh")
    sample = take_sample(journal)
    (emails,), (dead,) = sample.queues["emails"], sample.queues["emails.dead"]
    assert (emails.ready, emails.dead, emails.letters) == (1, 3, None)
    assert (dead.ready, dead.dead, dead.letters, dead.oldest_age) == (0, 0, 3, None)
    assert says(sample) == ["3 dead letters from emails"]
    journal.queue("emails").redrive()
    assert take_sample(journal).findings == []


def test_dead_letters_in_one_queue_are_told_apart_by_where_they_came_from(journal: penstock.Journal) -> None:
    give_up(journal, "emails", 3, dead_letter="dead")
    give_up(journal, "images", 1, dead_letter="dead")
    sample = take_sample(journal)
    assert (sample.queues["emails"][0].dead, sample.queues["images"][0].dead) == (3, 1)
    assert says(sample) == ["3 dead letters from emails", "1 dead letter from images"]
    give_up(journal, "images", 1)
    journal.queue("emails").redrive()
    assert says(take_sample(journal)) == ["2 dead letters from images"]


def test_dead_letters_of_groups_count_for_the_group(journal: penstock.Journal) -> None:
    queue = journal.queue("news", mode="fanout", max_attempts=1, dead_letter="news.dead")
    queue.add_group("mail")
    queue.add_group("sms")
    queue.push("x")
    delivery = queue.take(group="sms")
    assert delivery is not None
    delivery.nack(error="no")
    sample = take_sample(journal)
    assert {one.group: one.dead for one in sample.queues["news"]} == {"mail": 0, "sms": 1}
    assert says(sample) == ["1 dead letter from news/sms"]


def test_failed_messages_and_messages_that_wait_too_long_are_named() -> None:
    def queue(failed: int, age: float | None, ttl: float | None) -> Sample:
        group = QueueSample("q", "default", 5, 0, 0, failed, age, ttl=ttl, workers=1)
        return Sample(0.0, {}, {"q": [group]}, 0.0, 0, 0, 0)

    assert [one.says for one in examine(queue(1, None, None))] == ["1 message of q failed"]
    assert examine(queue(0, 40.0, 100.0)) == []
    assert examine(queue(0, 590.0, None)) == []
    assert [one.says for one in examine(queue(0, 2880.0, None))] == [
        "q is behind: 5 messages wait, the oldest for 48 min"
    ]
    (found,) = examine(queue(0, 60.0, 100.0))
    assert found.says == "the oldest message of q waits for 1 min; messages expire after 1.7 min"


def test_a_disk_is_nearly_full_when_share_and_bytes_are_small() -> None:
    def disk(free: int, total: int) -> list[str]:
        sample = Sample(0.0, {}, {}, 0.0, 0, 0, 0, disk_free=free, disk_total=total)
        return [one.says for one in examine(sample)]

    gib = 1 << 30
    assert disk(1 * gib, 100 * gib) == ["the disk is nearly full: 1.0 GiB of 100.0 GiB are free"]
    assert disk(10 * gib, 1000 * gib) == []
    assert disk(1 * gib, 2 * gib) == []


def test_pipelines_that_fail_restart_or_fall_silent_are_named(journal: penstock.Journal) -> None:
    flow = FlowStatus(pipeline="shop", flow="revenue", state="running", started_at=datetime.now(UTC))
    report(journal, [flow])
    assert take_sample(journal).findings == []
    flow.state, flow.restarts = "waiting", 2
    report(journal, [flow])
    assert says(take_sample(journal)) == ["pipeline shop/revenue is restarting, for the 3rd time"]
    flow.state = "failed"
    report(journal, [flow])
    assert says(take_sample(journal)) == ["pipeline shop/revenue failed"]
    flow.state, flow.reported_at = "running", datetime.now(UTC) - timedelta(minutes=5)
    later = Sample(datetime.now(UTC).timestamp(), {}, {}, 0.0, 0, 0, 0, flows=[flow])
    assert [one.says for one in examine(later)] == ["pipeline shop/revenue has not reported for a minute"]


def test_a_lag_that_grows_at_every_look_is_named() -> None:
    def looks(*lags: int) -> list[dict[tuple[str, str], int]]:
        return [{("orders", "billing"): lag} for lag in lags]

    (found,) = growing(looks(0, 500, 900, 1500, 2000))
    assert found.says == "billing falls behind in orders: 2,000 events, 500 a few minutes ago"
    assert growing(looks(500, 900, 1500)) == []  # not long enough
    assert growing(looks(500, 1900, 1500, 2000)) == []  # it caught up in between
    assert growing(looks(1, 2, 3, 4)) == []  # small


def test_the_sampler_finds_a_lag_that_grows(journal: penstock.Journal) -> None:
    orders = journal.topic("orders")
    orders.append("k")
    orders.commit("billing", 0)

    at = [1000.0]

    def take(journal: penstock.Journal) -> Sample:
        sample = take_sample(journal)
        sample.at = at[0]
        return sample

    sampler = Sampler(journal, take=take)
    for minute in range(5):
        at[0] = 1000.0 + 60 * minute
        orders.append_many([penstock.Draft("k")] * 600)
        sample = sampler.sample()
    assert [one.kind for one in sample.findings] == ["lag"]
    orders.commit("billing", orders.latest)
    at[0] += 60
    assert sampler.sample().findings == []


def exposed(sample: Sample) -> dict[str, int]:
    """How many things `/metrics` says want attention, by kind, without the kinds that have none."""
    lines = gauges(sample).prometheus_text().splitlines()
    said = [line.split() for line in lines if line.startswith("penstock_findings{")]
    assert all(float(number) == 1 for _, number in said)
    return dict(Counter(name.split('"')[1] for name, _ in said))


def test_what_is_wrong_is_counted_by_kind_until_it_is_mended(journal: penstock.Journal) -> None:
    assert exposed(take_sample(journal)) == {}
    give_up(journal, "emails", 3, dead_letter="emails.dead")
    assert exposed(take_sample(journal)) == {"dead": 1}
    give_up(journal, "images", 2)
    assert exposed(take_sample(journal)) == {"dead": 1, "failed": 1}
    say_gave_up(journal, "orders:billing", ValueError("no"))
    assert exposed(take_sample(journal)) == {"dead": 1, "failed": 1, "worker": 1}
    flow = FlowStatus(pipeline="shop", flow="revenue", state="waiting", started_at=datetime.now(UTC))
    report(journal, [flow])
    journal.queue("images").pause()
    assert exposed(take_sample(journal)) == {"dead": 1, "failed": 1, "worker": 1, "pipeline": 1, "paused": 1}
    flow.state = "running"
    report(journal, [flow])
    journal.queue("images").resume()
    journal.queue("images").redrive()
    journal.queue("emails").redrive()
    forget(journal, "orders:billing")
    assert exposed(take_sample(journal)) == {}


def test_a_message_that_waits_too_long_is_named_until_it_is_taken() -> None:
    clock = ManualClock()
    with penstock.open("memory:", clock=clock) as journal:
        queue = journal.queue("jobs", ttl=100)
        queue.push("x")
        assert exposed(take_sample(journal)) == {}
        clock.advance(60)
        assert exposed(take_sample(journal)) == {"oldest": 1}
        queue.take()
        assert exposed(take_sample(journal)) == {}


def alone(journal: penstock.Journal) -> bool:
    """Returns True where somebody should look because nobody processes messages."""
    return any(one.kind == "unattended" for one in take_sample(journal).findings)


def test_ready_messages_that_nobody_processes_are_named_until_somebody_takes_them() -> None:
    clock = ManualClock()
    with penstock.open("memory:", clock=clock) as journal:
        jobs = journal.queue("jobs", lease=30)
        jobs.push_many(range(49))
        jobs.take(consumer="mailer")  # and then its process is killed
        clock.advance(59)
        assert not alone(journal)  # the lease has ended, and the message waits again; the consumer was there just now
        clock.advance(2)
        (found,) = take_sample(journal).findings
        assert (found.kind, found.subject, found.count) == ("unattended", "jobs", 49)
        assert found.says == "no consumer processes jobs: 49 messages wait, the oldest for 1 min"
        assert exposed(take_sample(journal)) == {"unattended": 1}
        unnamed = jobs.take()
        assert unnamed is not None and not alone(journal)
        unnamed.ack()
        clock.advance(50)
        assert not alone(journal)  # a message was settled less than a minute ago
        clock.advance(15)
        assert alone(journal)
        jobs.take(lease=3600)
        clock.advance(120)
        assert not alone(journal)  # whoever holds a message may work for an hour
        clock.advance(600)
        assert says(take_sample(journal)) == ["jobs is behind: 47 messages wait, the oldest for 14 min"]


def test_a_handler_that_fails_on_every_message_is_named_before_a_message_is_given_up(journal: penstock.Journal) -> None:
    mails = journal.queue("mails")
    mails.push_many(range(12))
    held = mails.take_many(12)
    for delivery in held[:9]:
        delivery.nack(delay=60, error="KeyError: 'customer'\nsecond line")
    assert exposed(take_sample(journal)) == {}
    held[9].nack(dead=True)  # the handler's verdict on the message
    assert exposed(take_sample(journal)) == {"failed": 1}
    held[10].nack(delay=60, error="KeyError: 'customer'")
    mails.discard([10])
    assert says(take_sample(journal)) == [
        "mails is failing: 10 attempts failed in a row, the newest with KeyError: 'customer'"
    ]
    held[11].ack()
    assert exposed(take_sample(journal)) == {}


def test_a_queue_that_fails_and_is_emptied_is_not_named(journal: penstock.Journal) -> None:
    mails = journal.queue("mails")
    mails.push_many(range(10))
    for delivery in mails.take_many(10):
        delivery.nack(delay=60, error="down")
    assert exposed(take_sample(journal)) == {"failing": 1}
    mails.purge()
    assert exposed(take_sample(journal)) == {}


def test_an_open_circuit_breaker_is_named(journal: penstock.Journal) -> None:
    mails = journal.queue("mails", breaker="2/m", breaker_pause=60)
    mails.push_many(range(3))
    for delivery in mails.take_many(2):
        delivery.nack(delay=60, error="down")
    assert says(take_sample(journal)) == [
        "the circuit breaker of mails is open: 2 attempts failed in a row, the newest with down"
    ]


def test_a_queue_says_itself_how_long_its_messages_may_wait() -> None:
    clock = ManualClock()
    with penstock.open("memory:", clock=clock) as journal:
        journal.queue("nightly", warn_after=timedelta(days=1)).push("x")
        hasty = journal.queue("hasty", warn_after=5)
        hasty.push("x")
        clock.advance(6)
        hasty.take(consumer="busy", lease=3600)
        hasty.push("y")
        clock.advance(6)
        assert says(take_sample(journal)) == ["hasty is behind: 1 message waits, the oldest for 6 s"]
        clock.advance(23 * 3600)
        assert [one.subject for one in take_sample(journal).findings] == ["hasty"]
        clock.advance(2 * 3600)
        assert {one.subject for one in take_sample(journal).findings} == {"hasty", "nightly"}


def test_a_paused_queue_and_a_group_with_its_own_consumer_are_not_left_alone() -> None:
    clock = ManualClock()
    with penstock.open("memory:", clock=clock) as journal:
        news = journal.queue("news", mode="fanout")
        news.add_group("mail")
        news.add_group("sms")
        paused = journal.queue("paused")
        paused.push("x")
        paused.pause()
        news.push_many(["a", "b"])
        clock.advance(90)
        taken = news.take(group="mail", consumer="mailer")
        assert taken is not None
        taken.ack()
        found = [(one.kind, one.subject, one.detail) for one in take_sample(journal).findings]
        assert found == [("unattended", "news", "sms"), ("paused", "paused", "default")]


def test_a_sampler_says_how_fast_messages_come_and_go_and_how_a_backlog_changes(journal: penstock.Journal) -> None:
    queue, at = journal.queue("jobs"), [1000.0]

    def take(journal: penstock.Journal) -> Sample:
        sample = take_sample(journal)
        sample.at = at[0]
        return sample

    sampler = Sampler(journal, take=take)
    (jobs,) = sampler.sample().queues["jobs"]
    assert (jobs.rate, jobs.settle_rate, jobs.growth) == (0, 0, None)
    for _ in range(12):
        at[0] += 5
        queue.push_many(range(20))
        queue.ack_many(queue.take_many(10))
        (jobs,) = sampler.sample().queues["jobs"]
    assert (jobs.rate, jobs.settle_rate, jobs.growth) == (4, 2, 120)
    at[0] += 60
    queue.ack_many(queue.take_many(60))
    (jobs,) = sampler.sample().queues["jobs"]
    assert (jobs.settle_rate, jobs.growth) == (1, -60)
