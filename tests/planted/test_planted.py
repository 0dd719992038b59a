"""Every planted fault has its place in the sources, so that the night can plant it."""

from __future__ import annotations

import ast
import shlex
from collections import Counter
from pathlib import Path

import pytest

from planted.catalogue import AREAS, FAULTS, ROOT, SOURCE, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_one_place_and_leaves_python(fault: Fault) -> None:
    source = fault.place(ROOT).read_text("utf-8")
    planted = fault.planted(source)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(source))


def test_faults_have_names_of_their_own_and_cover_every_area() -> None:
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1
    assert min(Counter(fault.area for fault in FAULTS)[area] for area in AREAS) >= 4
    assert {fault.area for fault in FAULTS} == set(AREAS)


def test_finders_are_files_and_folders_of_tests() -> None:
    named = {shlex.split(finder)[0] for fault in FAULTS for finder in fault.finders}
    named |= {folder for folders in AREAS.values() for folder in folders}
    assert not [one for one in named if not (ROOT / "tests" / one).exists()]


@pytest.mark.parametrize("texts", [[], ["a = 1\n", "a = 1\n"], ["a = 1\na = 1\n"]])
def test_a_fault_without_exactly_one_place_says_so(tmp_path: Path, texts: list[str]) -> None:
    folder = tmp_path / SOURCE
    folder.mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"m{number}.py").write_text(text)
    fault = Fault("moved", "journal", "", "a = 1", "a = 2", ())
    with pytest.raises(LookupError, match=f"'moved' has {sum(text.count('a') for text in texts)} places"):
        fault.place(tmp_path)
