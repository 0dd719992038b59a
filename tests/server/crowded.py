"""A journal as full and as hostile as the console must bear: browser tests look at it, the docs' pictures show it."""

from __future__ import annotations

import penstock

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`${alert(3)}<!--"
LONG = "a-name-that-goes-on-and-on." * 9
TOPICS = 1_000
MESSAGES = 100_000
MANY = 130
"""Groups, workers, schedules, consumers, messages in every state: more than two pages of each."""


def fill(journal: penstock.Journal) -> None:
    """A thousand topics, a hundred thousand messages, and names that would like to be markup."""
    with journal.transaction() as together:
        for n in range(TOPICS):
            together.append(f"sensors.{n:04}", "measured", {"sensor": n, "value": n * 7 % 100})
    add_hostile(journal)
    add_many(journal)
    invoices = journal.queue("invoices", dead_letter="invoices.dead")
    for start in range(0, MESSAGES, 5_000):
        invoices.push_many([{"n": n, "text": "x" * 50} for n in range(start, start + 5_000)])
    for delivery in invoices.take_many(3):
        delivery.nack(error="no", dead=True)


def add_many(journal: penstock.Journal) -> None:
    """More groups, workers, schedules, consumers, and messages in every state, than a page shows."""
    news = journal.queue("news", mode="fanout", dead_letter="news.dead")
    for n in range(MANY):
        news.add_group(f"reader-{n:03}")
    news.add_group(NASTY)
    news.push_many([{"n": n} for n in range(5)])
    mails = journal.queue("mails", max_attempts=1, lease=3600, dead_letter="mails.dead")
    mails.push_many([{"n": n, "to": NASTY} for n in range(MANY)])
    for n, delivery in enumerate(mails.take_many(MANY, consumer="postman")):
        delivery.nack(error=f"SMTPError: {n} {NASTY}")
    mails.push_many([{"n": n} for n in range(2 * MANY)])
    for n in range(MANY):
        mails.take(consumer=f"mailer-{n:03} {NASTY}")
        mails.push({"late": n}, delay=3600)
    jobs = journal.queue("tasks", max_attempts=1)
    jobs.push_many([{"n": n} for n in range(MANY)])
    for delivery in jobs.take_many(MANY):
        delivery.nack(error="ValueError: no such thing")
    for n in range(MANY):
        journal.queue("reports").every(3600 + n, {"n": n}, name=f"report-{n:03}")
        journal.topic("nasty").commit(f"follower-{n:03} {NASTY}", 0)
    journal.queue("reports").every(7200, NASTY, name=NASTY)
    journal.topic(LONG[:255]).append(LONG[:255], LONG, key=LONG)


def add_hostile(journal: penstock.Journal) -> penstock.Receipt:
    """An event and messages that have markup wherever a program may put text."""
    topic = journal.topic("nasty")
    first = topic.append(NASTY[:255], {NASTY: NASTY}, key=NASTY, scope=NASTY, headers={NASTY: NASTY}, correlation=NASTY)
    topic.commit(NASTY, 1)
    queue = journal.queue("jobs", max_attempts=1, dead_letter="jobs.dead")
    queue.push(NASTY)
    delivery = queue.take(consumer=NASTY)
    assert delivery is not None
    delivery.nack(error=NASTY)
    queue.push(NASTY)
    queue.take(consumer=NASTY)
    return first
