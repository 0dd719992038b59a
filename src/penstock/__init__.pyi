"""What `penstock` offers to a type checker; a test holds it against the table in `__init__.py`."""

from penstock import errors as errors
from penstock.api import Transaction as Transaction
from penstock.api import current as current
from penstock.api import open as open
from penstock.api import use as use
from penstock.clock import Clock as Clock
from penstock.clock import ManualClock as ManualClock
from penstock.entity.chain import CheckReport as CheckReport
from penstock.entity.chain import VerifyReport as VerifyReport
from penstock.entity.copying.exporting import ExportReport as ExportReport
from penstock.entity.copying.importing import ImportReport as ImportReport
from penstock.entity.projection.projection import Projection as Projection
from penstock.entity.projection.projection import on as on
from penstock.entity.projection.rebuild import RebuildReport as RebuildReport
from penstock.entity.projection.watch import Watch as Watch
from penstock.entity.staging.fence import Fence as Fence
from penstock.events import Draft as Draft
from penstock.events import Event as Event
from penstock.events import Receipt as Receipt
from penstock.journal.commit.catalog import Settings as Settings
from penstock.journal.journal import Description as Description
from penstock.journal.journal import Pressure as Pressure
from penstock.journal.upkeep.compaction import CompactReport as CompactReport
from penstock.journal.worker import Worker as Worker
from penstock.observe import metrics as metrics
from penstock.observe import pipelines as pipelines
from penstock.observe import tracing as tracing
from penstock.queue.inspect import PendingDelivery as PendingDelivery
from penstock.queue.inspect import QueueConsumer as QueueConsumer
from penstock.queue.inspect import QueueStats as QueueStats
from penstock.queue.policy import QueuePolicy as QueuePolicy
from penstock.queue.retry import Retry as Retry
from penstock.queue.run.middleware import Middleware as Middleware
from penstock.queue.run.schedule import Schedule as Schedule
from penstock.schema import event as event
from penstock.schema import upcast as upcast
from penstock.surface.delivery import Delivery as Delivery
from penstock.surface.journal import Journal as Journal
from penstock.surface.outbox import Outbox as Outbox
from penstock.surface.queue import Queue as Queue
from penstock.surface.subscription import Subscription as Subscription
from penstock.surface.topic import Topic as Topic
from penstock.ticket import Ticket as Ticket

__version__: str
