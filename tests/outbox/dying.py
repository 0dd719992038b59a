"""Connections of a process that ends on the way."""

from __future__ import annotations

import sqlite3
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql


def connect(url: str) -> Any:
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return sqlite3.connect(parts.path.removeprefix("/") and parts.path)
    if parts.scheme == "postgresql":
        return psycopg.connect(url)
    return pymysql.connect(host=parts.hostname, port=parts.port or 0, user=parts.username, database=parts.path[1:])
