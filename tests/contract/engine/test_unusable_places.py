"""A place that the system refuses is an error of penstock's tree, which another try does not mend."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock import Journal
from penstock.errors import StorageError

TOO_LONG = "a" * 300
"""A name that no file can have: asking whether it is there is an error already, as in a folder of somebody else."""


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb", "file"])
@pytest.mark.parametrize("read_only", [False, True])
def test_opening_a_place_that_the_system_refuses_is_a_storage_error(
    tmp_path: Path, scheme: str, read_only: bool
) -> None:
    with pytest.raises(StorageError, match="File name too long") as caught:
        penstock.open(f"{scheme}:{tmp_path / TOO_LONG}", read_only=read_only)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "act",
    [
        lambda journal, path: journal.backup(path),
        lambda journal, path: journal.copy_to(f"file:{path}"),
        lambda journal, path: journal.export(path),
        lambda journal, path: journal.import_(path),
        lambda journal, path: penstock.copy(f"sqlite:{path}", "memory:"),
    ],
    ids=["backup", "copy_to", "export", "import", "copy"],
)
def test_so_is_what_is_copied_from_there_or_to_there(tmp_path: Path, act: Callable[[Journal, Path], object]) -> None:
    with penstock.open(f"sqlite:{tmp_path / 'shop.db'}") as journal:
        journal.topic("orders").append("placed")
        with pytest.raises(StorageError, match="File name too long") as caught:
            act(journal, tmp_path / TOO_LONG)
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.ENAMETOOLONG
    assert not caught.value.retryable
