"""Feeds every decoder inputs that reach new code in it, until the time is up.

    python -m torture.fuzzing [--minutes 10] [--decoder block] [--seed 1]

With atheris (`pip install atheris`; Linux, and a Python that it has a wheel for) inputs grow by what they reach;
without it whole inputs are changed at random. Only errors of penstock's tree may come out: anything else is a finding,
whose input is left in the folder named, to be put into the corpus. Ends with 1 when there is one.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from searching import Search

LONGEST = 20
"""Seconds after which reading one input is without end."""


def main() -> int:
    search = Search("torture.fuzzing", __doc__)
    search.parser.add_argument("--decoder")
    search.parser.add_argument("--one", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    options = search.begin()
    if options.one:
        guide(*options.one, seconds=options.seconds, seed=options.seed)
    from torture.decoders import BYTES, TEXTS

    guided = importlib.util.find_spec("atheris") is not None
    names = [options.decoder] if options.decoder else [*BYTES, *TEXTS]
    if unknown := set(names) - {*BYTES, *TEXTS}:
        search.parser.error(f"no decoder {min(unknown)!r}: {', '.join([*BYTES, *TEXTS])}")
    for name in names:
        found, tried = (by_reach if guided else by_chance)(name, options.seconds / len(names), options.seed)
        how = "guided by what they reach" if guided else "changed at random"
        print(f"{name}: {tried} inputs {how}", flush=True)
        search.tell([found] if found else [])
    return search.end(f"{len(names)} decoders")


# ── guided by atheris ────────────────────────────────────────────────────────────────────────────────────────────────
def by_reach(name: str, seconds: float, seed: int) -> tuple[str, str]:
    """A process of its own: libFuzzer ends the one it runs in."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    command = [sys.executable, "-m", "torture.fuzzing", "--one", name, str(folder)]
    command += ["--minutes", str(seconds / 60), "--seed", str(seed % (1 << 31) or 1)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    tried = next((line.split()[-1] for line in lines if "stat::number_of_executed_units" in line), "some")
    if done.returncode:
        said = [line for line in lines if "Uncaught Python exception" in line or "ERROR: " in line or "Error: " in line]
        return f"FOUND, in {folder}: {' '.join(said[:3]) or lines[-1:]}", tried
    shutil.rmtree(folder, ignore_errors=True)
    return "", tried


def guide(name: str, folder: str, *, seconds: float, seed: int) -> None:
    """Lets libFuzzer choose what one decoder is given; does not return."""
    import atheris  # type: ignore[import-not-found, unused-ignore]

    with atheris.instrument_imports(include=["penstock"]):
        from torture import decoders

    own = Path(folder, "corpus")
    own.mkdir(parents=True)
    text = name in decoders.TEXTS
    if text:
        read, samples = decoders.TEXTS[name][0], [each.encode() for each in decoders.TEXTS[name][1]]
    else:
        read, samples = decoders.BYTES[name][0], decoders.BYTES[name][1]()
    for number, data in enumerate([*samples, *decoders.corpus(name)]):
        (own / str(number)).write_bytes(data)

    def one(data: bytes) -> None:
        decoders.only_ours(read, data.decode("utf-8", "surrogateescape") if text else data)

    flags = [f"-max_total_time={max(1, round(seconds))}", f"-seed={seed}", f"-timeout={LONGEST}", "-rss_limit_mb=2048"]
    flags += [f"-artifact_prefix={folder}/", "-print_final_stats=1", "-max_len=4096"]
    atheris.Setup([sys.argv[0], *flags, str(own)], one)
    atheris.Fuzz()
    os._exit(0)


# ── by chance ────────────────────────────────────────────────────────────────────────────────────────────────────────
def by_chance(name: str, seconds: float, seed: int) -> tuple[str, str]:
    from torture.decoders import BYTES, TEXTS, changed, only_ours

    rng = random.Random(f"{seed} {name}")
    text = name in TEXTS
    read = TEXTS[name][0] if text else BYTES[name][0]
    wholes = [each.encode() for each in TEXTS[name][1]] if text else BYTES[name][1]()
    ends, tried = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        data = changed(rng.choice(wholes), rng)
        tried += 1
        try:
            only_ours(read, data.decode("utf-8", "replace") if text else data)
        except BaseException as error:
            path = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"), "input")
            path.write_bytes(data)
            return f"FOUND {type(error).__name__}: {error}, in {path}", str(tried)
    return "", str(tried)


if __name__ == "__main__":
    sys.exit(main())
