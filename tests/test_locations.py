"""Where something lies is shown in many places; the credentials that a url may carry are shown in none."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.buffer import Consumer, Producer
from penstock.cli.main import run
from penstock.core.engine.url import parse_url
from penstock.core.journal.sealed.files import open_lake
from penstock.core.journal.sealed.segments import Segment
from penstock.core.names import shown_url
from penstock.errors import ConfigError, PenstockError
from penstock.objects.store import open_store
from penstock.spark.buffer import read_options
from penstock.spark.pipeline.flows import buffer_at, external
from server.serving import serving

SECRET = "Tr0ub4dor"
URLS = [
    f"s3://AKIA:{SECRET}@bucket/a/b",
    f"s3://AKIA:half/{SECRET}@bucket/a",
    f"s3://bucket/a?secret_access_key={SECRET}",
    f"gs://user:{SECRET}@bucket/a",
    f"az://account:{SECRET}@container/a",
    f"http://user:{SECRET}@127.0.0.1:1/",
    f"http://127.0.0.1:1/?token={SECRET}",
    f"https://{SECRET}@127.0.0.1:1",
    f"postgres://user:{SECRET}@host/db",
    f"sqlite://user:{SECRET}@host/shop.db",
    f"file://user:{SECRET}@host/folder",
    f"ftp://user:{SECRET}@host",
]


def lake(url: str) -> object:
    segment = Segment(1, 1, 1, url, "t/part.parquet", 1, 0)
    open_lake(url)
    return segment.shown(segment.path)


def produce(url: str) -> object:
    with Producer(url, options={"endpoint": "http://127.0.0.1:1", "timeout": "1s"}) as producer:
        return repr(producer)


def serve(url: str) -> object:
    """What the pages show of a buffer that is named by its url."""
    from penstock.cli.journals import _named_url

    with penstock.open("memory:") as journal, serving(journal, buffers=dict([_named_url(url)])) as served:
        return served.get("/").data + served.get("/buffers").data


def command(*arguments: str) -> Callable[[str], object]:
    return lambda url: run([argument.replace("URL", url) for argument in arguments])


PLACES: dict[str, Callable[[str], Any]] = {
    "opening": lambda url: penstock.open(url),
    "opening to read": lambda url: penstock.open(url, read_only=True),
    "parsing": lambda url: parse_url(url)[0],
    "copying": lambda url: penstock.copy("memory:", url),
    "a store": open_store,
    "a producer": produce,
    "a consumer": lambda url: repr(Consumer(url)),
    "a lake": lake,
    "the options of a Spark query": lambda url: repr(read_options({"url": url})),
    "the graph of a pipeline": lambda url: (buffer_at(url).label, buffer_at(url).names, external("delta", url).label),
    "the pages": serve,
    "penstock topics": command("--url", "URL", "topics"),
    "penstock doctor": command("--url", "URL", "doctor"),
    "penstock copy": command("copy", "URL", "memory:"),
    "penstock seal": command("seal", "t", "--lake", "URL"),
    "a word too many": command("topics", "URL", "URL"),
    "penstock buffer status": command("buffer", "status", "URL"),
    "penstock buffer produce": command("buffer", "produce", "URL"),
    "penstock buffer gc": command("buffer", "gc", "URL"),
}


@pytest.mark.slow
@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("place", PLACES)
def test_no_place_that_names_a_location_shows_its_credentials(
    place: str,
    url: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    caplog.set_level(logging.DEBUG)
    try:
        said = repr(PLACES[place](url))
    except PenstockError as error:
        # The whole trace as a log would have it, without the lines of source, which quote this test.
        chain: list[BaseException] = [error]
        while cause := chain[-1].__cause__ or (None if chain[-1].__suppress_context__ else chain[-1].__context__):
            chain.append(cause)
        said = "".join(text for each in chain for text in traceback.format_exception_only(each))
    printed = capsys.readouterr()
    assert SECRET not in said + caplog.text + printed.out + printed.err


def test_what_is_no_secret_is_shown() -> None:
    assert shown_url("s3://bucket/a@b") == "s3://bucket/a@b"
    assert shown_url("http://host:8080/a@b") == "http://host:8080/a@b"
    assert shown_url("http://[::1]:8080/a@b") == "http://[::1]:8080/a@b"
    assert shown_url("shop.db") == "shop.db"
    assert shown_url("file:///data/user@home/shop") == "file:///data/user@home/shop"


def test_an_object_stores_url_with_credentials_says_where_they_belong() -> None:
    with pytest.raises(ConfigError, match=r"secret_access_key.*environment"):
        open_store(f"s3://AKIA:{SECRET}@bucket/a")
