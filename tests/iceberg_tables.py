"""Iceberg tables as another program reads them, through the catalog beside a lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool


def iceberg_table(lake: Path | str, topic: str = "orders") -> Any:
    """The table of a topic; none of its connections outlives a question."""
    uri = f"sqlite:///{lake}/_iceberg.db"
    catalog = SqlCatalog("penstock", uri=uri, warehouse=f"file://{lake}")
    catalog.close()
    catalog.engine = create_engine(uri, poolclass=NullPool)
    return catalog.load_table(("penstock", topic))
