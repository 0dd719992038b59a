"""A journal as full and as hostile as the console must bear: browser tests look at it, the docs' pictures show it."""

from __future__ import annotations

import penstock

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`${alert(3)}<!--"
TOPICS = 1_000
MESSAGES = 100_000


def fill(journal: penstock.Journal) -> None:
    """A thousand topics, a hundred thousand messages, and names that would like to be markup."""
    with journal.transaction() as together:
        for n in range(TOPICS):
            together.append(f"sensors.{n:04}", "measured", {"sensor": n, "value": n * 7 % 100})
    add_hostile(journal)
    invoices = journal.queue("invoices", dead_letter="invoices.dead")
    for start in range(0, MESSAGES, 5_000):
        invoices.push_many([{"n": n, "text": "x" * 50} for n in range(start, start + 5_000)])
    for delivery in invoices.take_many(3):
        delivery.nack(error="no", dead=True)


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
