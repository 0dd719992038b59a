"""What holds for every command: it is declared, has help with examples that work, and takes mistakes with grace."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from cli.commandline import Cli
from penstock.cli.command import EXTRAS, SHARED, JournalCommand, summary
from penstock.cli.main import MODULES, app

ROOT = click.Context(app, info_name="penstock")
GROUPS = ("buffer",)
COMMANDS = [name for name in MODULES if name not in GROUPS]


def load(name: str) -> JournalCommand:
    found = app.get_command(ROOT, name)
    assert isinstance(found, JournalCommand)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_what_its_parameters_mean(name: str) -> None:
    command = load(name)
    assert summary(command).endswith(".")
    assert all(isinstance(one, click.Option | click.Argument) and one.help for one in command.params)
    assert set(SHARED) <= set(command.params)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_parameter_and_an_example(cli: Cli, name: str) -> None:
    command = load(name)
    context = click.Context(command, parent=ROOT, info_name=name)
    shown = cli(name, "--help").out
    for parameter in command.params:
        record = parameter.get_help_record(context)
        assert record is not None and record[0] in shown
    assert command.examples and all(example in shown for example in command.examples)
    assert cli("help", name).out == shown
    assert "Ellipsis" not in shown


def _own_line(example: str, command: JournalCommand) -> list[str] | None:
    """The words after `penstock NAME` in an example, up to what the shell does with them."""
    inner = re.search(r"\$\((.*)\)", example)
    for line in (inner.group(1) if inner else example).split(" | "):
        words = shlex.split(line)
        if words[:2] == ["penstock", command.name]:
            return words[2 : words.index(">")] if ">" in words else words[2:]
    return None


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_can_be_parsed(name: str) -> None:
    command = load(name)
    found = [words for example in command.examples if (words := _own_line(example, command)) is not None]
    assert found
    for words in found:
        command.make_context(name, words, parent=ROOT)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_is_none_is_a_sentence(cli: Cli, name: str) -> None:
    said = cli(name, "--no-such-option", code=2).err
    assert "--no-such-option" in said and f"penstock {name} --help" in said and "Traceback" not in said


def test_the_overview_lists_everything(cli: Cli) -> None:
    shown = cli("--help").out
    assert all(f"  {name} " in shown for name in MODULES)
    alone = cli().out
    listed = [line.split()[0] for line in alone.splitlines() if line.startswith("  ") and line[2] != " "]
    assert len(listed) == 10 and "penstock --help" in alone
    for section in ("Start here", "Topics", "Queues", "Operate", "Spark and buffers"):
        assert f"\n{section}:\n" in shown


def test_a_mistyped_command_is_suggested(cli: Cli) -> None:
    said = cli("topcis", code=2).err
    assert "no such command 'topcis'" in said and "'topics'" in said and "penstock --help" in said


MISTYPED = [
    ["append", "orders", "placed", "{}"],
    ["push", "emails", "{}"],
    ["configure", "orders", "--max-age", "1d"],
    ["purge", "emails", "--yes"],
    ["seek", "orders", "billing", "--to-end"],
    ["work", "emails", "json:dumps"],
    ["run", "pipeline.py", "--dry"],
    ["serve", "--port", "0"],
    ["topics"],
    ["info"],
]


@pytest.mark.parametrize("words", MISTYPED, ids=lambda words: words[0])
def test_a_mistyped_journal_is_not_made(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.py").write_text("")
    before = sorted(tmp_path.iterdir())
    said = cli(*words, "--url", "typo.db", code=3).err
    assert f"there is no journal at {tmp_path / 'typo.db'}" in said and "--create" in said
    assert sorted(tmp_path.iterdir()) == before


def test_a_journal_is_made_when_the_command_says_so(cli: Cli, tmp_path: Path) -> None:
    new = str(tmp_path / "new.db")
    cli("append", "orders", "placed", "{}", "--url", new, "--create")
    assert cli("topics", "--url", new, "--json").document["events"] == 1


def test_what_is_not_there_is_said_with_the_journal_it_is_not_in(cli: Cli, orders: str, url: str) -> None:
    assert url in cli("read", "ordres", code=3).err
    assert url in cli("queues").err and url in cli("peek", "emails", code=3).err


def test_a_terminal_is_told_which_journal_it_looks_at(
    cli: Cli, orders: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert cli("topics").err.strip() == url
    assert cli("topics", "--json").err == ""


def test_a_message_about_an_argument_names_the_option(cli: Cli, tmp_path: Path) -> None:
    said = cli("push", "emails", "{}", "--key", "a", "--delay", "5s", code=2).err
    assert "--key cannot be combined with --delay or --not-before" in said
    assert "--priority yes" in cli("push", "emails", "{}", "--priority", "3", code=2).err


def test_the_caret_of_a_condition_stands_under_its_place(cli: Cli, orders: str) -> None:
    _, condition, caret, *_ = cli("read", "orders", "--where", "payload.total >> 10", code=2).err.splitlines()
    assert condition.strip() == "payload.total >> 10"
    assert condition[caret.index("^")] == ">" and caret.index("^") - condition.index("payload") == 15


def test_a_mistyped_option_is_suggested(cli: Cli) -> None:
    assert "Did you mean '--limit'?" in cli("read", "orders", "--limti", "3", code=2).err


def test_mistakes_are_one_object_with_json(cli: Cli) -> None:
    assert json.loads(cli("topcis", "--json", code=2).err)["error"] == "usage"
    assert "\n" not in cli("completion", code=2).err.splitlines()[0] and "zsh" in cli("completion", code=2).err
    assert "penstock: got unexpected" in cli("read", "orders", "more", code=2).err
    assert "'TOPIC'" in json.loads(cli("read", "--json", code=2).err)["message"]


def test_shared_options_stand_before_or_behind_the_command(cli: Cli, orders: str, url: str) -> None:
    expected = cli("topics", "--json").out
    assert cli("--json", "--url", url, "topics", "--url", url).out == expected
    assert cli("--json", "--url", "memory:", "topics").out == ""
    assert cli("--url", "memory:", "topics", "--url", url, "--json").out == expected


def test_a_negative_number_as_a_payload_goes_behind_the_end_of_the_options(cli: Cli) -> None:
    assert "behind --" in cli("append", "t", "-5", code=2).err
    cli("append", "t", "--", "-5")
    assert cli("read", "t", "--json").document["payload"] == -5


def test_the_version_is_said(cli: Cli) -> None:
    import penstock

    assert cli("--version").out == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize("name", GROUPS)
def test_groups_with_commands_of_their_own_have_help(cli: Cli, name: str) -> None:
    assert "Usage" in cli(name, "--help").out
    assert "Usage" in cli(name, code=2).err
    assert "did you mean" in cli(name, "statsu", code=2).err.lower()


def test_every_extra_of_the_package_is_known_by_what_it_brings() -> None:
    text = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    imported = {"python_ulid": "ulid", "langgraph_checkpoint": "langgraph"}
    for extra, needed in text["project"]["optional-dependencies"].items():
        names = [re.split(r"[>;=\[]", one)[0].replace("-", "_") for one in needed if not one.startswith("penstock[")]
        for name in names:
            assert imported.get(name, name) in EXTRAS.get(extra, ()), (extra, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "extra", "words"),
    [
        ("click", "cli", ["topics"]),
        ("starlette", "server", ["serve", "--port", "0"]),
        ("rocksdict", "rocksdb", ["append", "t", "1", "--url", "rocksdb:x"]),
        ("pyarrow", "arrow", ["export", "orders", "x.parquet"]),
        ("obstore", "buffer", ["buffer", "produce", "s3://bucket/x"]),
        ("pyspark", "spark", ["run", "pipeline.py"]),
        ("slatedb", "object", ["demo", "--failover"]),
    ],
)
def test_the_right_extra_is_named_when_a_package_is_missing(
    orders: str, url: str, tmp_path: Path, missing: str, extra: str, words: list[str]
) -> None:
    (tmp_path / "pipeline.py").write_text(
        "from penstock.spark import flow, topic\n"
        "@flow(source=topic('orders'), target=topic('copies'))\n"
        "def copies(orders): return orders\n"
    )
    program = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = {words!r}; from penstock.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PENSTOCK_URL": url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"penstock[{extra}]" in done.stderr and "Traceback" not in done.stderr and done.returncode in (1, 2)


def test_the_overview_and_completion_import_nothing_heavy() -> None:
    program = (
        "import sys; from penstock.cli.main import run; run(['--help']); run(['append', '--help']);"
        "heavy = {'apsw', 'msgspec', 'pyarrow', 'rich', 'starlette', 'asyncio', 'penstock.api'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_commands_that_need_no_spark_do_not_import_it() -> None:
    """Nor what a terminal, a server or Arrow would need: a command should begin at once."""
    program = (
        "import sys; from penstock.cli.main import run; run(['--url', 'memory:', 'topics']);"
        "heavy = {'pyspark', 'pyarrow', 'rich', 'starlette', 'numpy', 'asyncio', 'hashlib', 'concurrent'};"
        "heavy &= set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
