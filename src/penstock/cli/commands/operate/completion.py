"""Completion for shells: commands, options, and the names of topics and queues."""

from __future__ import annotations

from penstock.cli.command import Command, argument, command
from penstock.cli.context import Run
from penstock.cli.failure import UsageError
from penstock.cli.index import GROUPS, names

SHELLS = ("bash", "zsh", "fish")


@command(
    "completion",
    "Prints a script that teaches your shell to complete penstock's commands",
    argument("shell", "bash, zsh or fish"),
    example=(
        'eval "$(penstock completion bash)"',
        "penstock completion fish > ~/.config/fish/completions/penstock.fish",
    ),
)
def completion(run: Run, shell: str) -> None:
    if shell not in SHELLS:
        raise UsageError(f"the shell is one of {', '.join(SHELLS)}, not {shell!r}")
    text = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]()
    run.out.write(text)


def _commands() -> list[Command]:
    from penstock.cli.main import load

    return [load(name) for _, _, commands in GROUPS for name, _ in commands]


def _options(command: Command) -> list[str]:
    from penstock.cli.main import SHARED

    return [name for option in (*command.options, *SHARED) for name in option.names]


def _first(command: Command) -> str | None:
    """What a command's first argument is the name of, if it is a topic or a queue."""
    if not command.arguments:
        return None
    name = command.arguments[0].name
    return {"topic": "topics", "queue": "queues"}.get(name)


_NAMES = """\
_penstock_names() {
    penstock "$1" --json 2>/dev/null | sed -n 's/^{"\\(topic\\|queue\\)":"\\([^"]*\\)".*/\\2/p' | sort -u
}
"""


def _bash() -> str:
    cases = []
    for found in _commands():
        listed = _first(found)
        dynamic = f"$(_penstock_names {listed})" if listed else ""
        cases.append(f'        {found.name}) options="{" ".join(_options(found))}"; names="{dynamic}" ;;')
    newline = "\n"
    return f"""\
# bash completion for penstock: eval "$(penstock completion bash)"
{_NAMES}
_penstock() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" options="" names=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(names())} --help --version" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{newline.join(cases)}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
        *) if [ "$COMP_CWORD" -eq 2 ] && [ -n "$names" ]; then
               COMPREPLY=($(compgen -W "$names" -- "$word"))
           else
               COMPREPLY=($(compgen -f -- "$word"))
           fi ;;
    esac
}}
complete -F _penstock penstock
"""


def _zsh() -> str:
    return f"""\
#compdef penstock
# zsh completion for penstock: eval "$(penstock completion zsh)"
autoload -U +X bashcompinit && bashcompinit
{_bash()}"""


def _fish() -> str:
    lines = ["# fish completion for penstock", "complete -c penstock -f"]
    for found in _commands():
        lines.append(f"complete -c penstock -n __fish_use_subcommand -a {found.name} -d {_quoted(found.summary)}")
        seen = f"'__fish_seen_subcommand_from {found.name}'"
        for option in found.options:
            parts = [f"complete -c penstock -n {seen}"]
            parts += [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
            parts.append(f"-d {_quoted(option.help)}")
            if not option.flag:
                parts.append("-r" if not option.choices else f"-x -a {_quoted(' '.join(option.choices))}")
            lines.append(" ".join(parts))
        listed = _first(found)
        if listed:
            ask = f'(penstock {listed} --json 2>/dev/null | string match -rg \'"(?:topic|queue)":"([^"]*)"\')'
            lines.append(f"complete -c penstock -n {seen} -a {_quoted(ask)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
