"""Changes bytes of everything penstock stores, one at a time, and reads it.

    python -m torture.damage [--subject sqlite] [--seed 1] [--count 200] [--minutes 10]

Every byte, unless `--count` says how many of each subject. A change is named by an error of penstock's, harmless, or
(where the subject says so) on the list of what cannot be found; anything else is a finding: something else is read
without an error, an error of another kind, a signal, a read without end.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

from penstock.errors import PenstockError
from searching import Search
from torture.children import forked, import_ahead
from torture.damage.subjects import SUBJECTS, State, Subject

LONGEST = 30.0
"""Seconds after which a read is without end."""
MEMORY = Path("/dev/shm")
Place = tuple[str, int, int]
"""A file, a byte in it, and what it is changed by."""


def places(folder: Path, subject: Subject, rng: random.Random, most: int) -> list[Place]:
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(subject.skip or ("\0",)):
            name = str(path.relative_to(folder))
            found += [(name, at) for at in range(path.stat().st_size)]
    if len(found) > most:
        by_file: dict[str, list[tuple[str, int]]] = {}
        for name, at in found:
            by_file.setdefault(name, []).append((name, at))
        share = max(1, most // len(by_file))  # a small file is no less important than a large one
        found = [place for each in by_file.values() for place in rng.sample(each, min(share, len(each)))]
    rng.shuffle(found)
    return [(name, at, rng.choice([1 << rng.randrange(8), 0xFF])) for name, at in found]


def outcome(subject: Subject, folder: Path, states: list[State]) -> str:
    """What reading a damaged one came to."""
    try:
        found = subject.read(folder)
    except PenstockError as error:
        return f"named: {type(error).__name__}"
    except BaseException as error:
        return f"FOUND: {type(error).__name__}: {error}"
    if found == states[-1]:
        return "harmless"
    if subject.tail and found in states[:-1]:
        return "cut off"
    changed = [name for name in states[-1] if found.get(name) != states[-1][name]]
    if changed == ["verified"] and found["verified"] is False:
        return "named: verify"
    if set(changed) <= set(subject.silent):
        return "on the list"
    if subject.hidden and all(name in subject.silent or _fewer(found[name], states[-1][name]) for name in changed):
        return "events hidden, on the list"
    return f"FOUND: read without an error: {', '.join(changed)}"


def _fewer(found: object, whole: object) -> bool:
    """Whether what was read is some of what was written, and nothing else."""
    return isinstance(found, list) and isinstance(whole, list) and all(each in whole for each in found)


def _work(subject: Subject, target: Path, todo: list[Place], answers: Path, wait: float) -> None:
    """Damages one place after the other, and says of each what came of it before it goes on to the next.

    In the folder where it was made: sealed history is found by the place it was written to.
    """
    states = pickle.loads((target.parent / "states").read_bytes())
    with answers.open("a") as out:
        for number, (name, at, change) in enumerate(todo):
            shutil.rmtree(target)
            shutil.copytree(target.parent / "whole", target)
            data = bytearray((target / name).read_bytes())
            data[at] ^= change
            (target / name).write_bytes(data)
            signal.alarm(int(wait))  # its usual end is that of the process: a read without end is a signal too
            said = outcome(subject, target, states)
            signal.alarm(0)
            out.write(json.dumps([number, said]) + "\n")
            out.flush()


def damage(name: str, seed: int, most: int, ends: float) -> tuple[Counter[str], list[str]]:
    """Damages one subject; how often what came of it, and the findings."""
    subject = SUBJECTS[name]
    rng = random.Random(f"{seed} {name}")
    base = Path(tempfile.mkdtemp(prefix="penstock-damage-", dir=MEMORY if MEMORY.is_dir() else None))
    counts: Counter[str] = Counter()
    found: list[str] = []
    try:
        import_ahead(lambda folder: _unharmed(subject, folder))
        target, answers = base / "target", base / "answers"
        target.mkdir()
        # Made by a child that reads the states too: the same code, and no store is opened here.
        pid = forked(lambda: _make(subject, target, base / "done"))
        os.waitpid(pid, 0)
        assert (base / "done").exists(), "the subject could not be made"
        todo = places(base / "whole", subject, rng, most)
        while todo and time.monotonic() < ends:
            batch = todo[:500]
            answers.unlink(missing_ok=True)
            pid = forked(partial(_work, subject, target, batch, answers, LONGEST))
            _, status = os.waitpid(pid, 0)
            said = [json.loads(line) for line in answers.read_text().splitlines()] if answers.exists() else []
            for number, text in said:
                counts[text.partition(":")[0]] += 1
                if text.startswith("FOUND"):
                    found.append(f"{batch[number]}: {text}")
            done = len(said)
            code = os.waitstatus_to_exitcode(status)
            if code and done < len(batch):  # the next place took it down
                what = "without end" if code == -signal.SIGALRM else f"ended with {code}"
                found.append(f"{batch[done]}: the process {what}")
                done += 1
            todo = todo[max(1, done) :]
            if len(found) > 20:
                break
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return counts, found


def _unharmed(subject: Subject, folder: Path) -> None:
    subject.make(folder)
    subject.read(folder)


def _make(subject: Subject, target: Path, done: Path) -> None:
    states = subject.make(target)
    shutil.copytree(target, target.parent / "whole")
    assert subject.read(target) == states[-1], "what is not damaged is read otherwise than it was written"
    (target.parent / "states").write_bytes(pickle.dumps(states))
    done.touch()


def main() -> int:
    search = Search("torture.damage", __doc__, counts="bytes of each subject")
    search.parser.add_argument("--subject", choices=list(SUBJECTS), action="append")
    options = search.begin()
    subjects = options.subject or list(SUBJECTS)
    for name in subjects:
        begun = time.monotonic()
        ends = begun + options.seconds / len(subjects)
        counts, found = damage(name, options.seed, options.count, ends)
        said = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        print(f"{name}: {said}; {time.monotonic() - begun:.0f} s", flush=True)
        search.tell(found)
    return search.end(", ".join(subjects))


if __name__ == "__main__":
    sys.exit(main())
