"""A journal as the broker and the result backend of Celery.

    import penstock.integrations.celery

    app = Celery("shop", broker="penstock:///var/lib/app/shop.db", backend="penstock:///var/lib/app/shop.db")
    app.conf.task_acks_late = True

    transport   a transport of kombu: queues, leases, prefetch, bindings of exchanges
    waiting     one wait for several queues, and the renewal of leases
    results     the results of tasks, and the counts of chords

The import of this package registers the scheme `penstock`. A queue of Celery is a queue of the journal; it has the same
name if a journal allows that name. A message is an event that SQL and Spark can read: its kind is the task's name.
"""

from penstock.integrations import needed_for

with needed_for("celery"):
    from celery.app.backends import BACKEND_ALIASES
    from kombu.transport import TRANSPORT_ALIASES

SCHEME = "penstock"

for scheme in (SCHEME, f"{SCHEME}+http", f"{SCHEME}+https"):  # kombu requests the last two when it changes brokers
    TRANSPORT_ALIASES[scheme] = "penstock.integrations.celery.transport:PenstockTransport"
BACKEND_ALIASES[SCHEME] = "penstock.integrations.celery.results:PenstockBackend"


def place_of(url: str) -> str:
    """Returns the place for `penstock.open`: the path in penstock:///var/shop.db, or the url in penstock+http://…."""
    return url.removeprefix(f"{SCHEME}+").removeprefix(f"{SCHEME}://")
