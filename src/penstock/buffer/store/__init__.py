"""Where a buffer's objects live: one small contract over S3, Google Cloud Storage, Azure, a directory, and memory.

    s3://bucket/prefix   gs://bucket/prefix   az://container/prefix   file:///dir   memory://name

`contract` says what a store must do, `cloud` does it with obstore, `file` with a directory (durable and safe between
processes), and `probe` finds out whether a store honours conditional puts, on which everything above depends.
"""

from penstock.buffer.store.contract import CLOUD_SCHEMES, ObjectStore, Stored, VersionConflict, check_path
from penstock.buffer.store.opening import open_store
from penstock.buffer.store.probe import probe_conditional_puts

__all__ = [
    "CLOUD_SCHEMES",
    "ObjectStore",
    "Stored",
    "VersionConflict",
    "check_path",
    "open_store",
    "probe_conditional_puts",
]
