"""The engine of each provider of object storage: the same one, under the scheme of its urls."""

from __future__ import annotations

from typing import ClassVar

from penstock.engine.slatedb.engine import SlatedbEngine


class S3Engine(SlatedbEngine):
    """A store in Amazon S3, or in what speaks its language."""

    scheme: ClassVar[str] = "s3"


class GoogleEngine(SlatedbEngine):
    """A store in Google Cloud Storage."""

    scheme: ClassVar[str] = "gs"


class AzureEngine(SlatedbEngine):
    """A store in Azure Blob Storage."""

    scheme: ClassVar[str] = "az"
