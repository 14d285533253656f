"""``mssvm completion``: a script that lets the shell complete commands, options and their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


class Flag(NamedTuple):
    """An option: its spellings, what it may be (nothing: anything), whether it takes a value, what it is for."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    takes_value: bool
    text: str


def completion(shell: Annotated[Shell, typer.Argument(help="The shell to write for.", case_sensitive=False)]) -> None:
    """Print a script that completes this command line in a shell; it needs nothing but the shell.

    Example: mssvm completion bash > ~/.local/share/bash-completion/completions/mssvm

    For zsh: mssvm completion zsh > ~/.mssvm.zsh, and "source ~/.mssvm.zsh" in ~/.zshrc; for fish:
    mssvm completion fish > ~/.config/fish/completions/mssvm.fish
    """
    from mssvm.cli import COMMANDS

    found = {name: described(getattr(import_module(f"mssvm.cli.{name}"), name)) for name in COMMANDS}
    typer.echo(_fish(found) if shell is Shell.fish else _bash(found, shell is Shell.zsh), nl=False)


Commands = dict[str, tuple[str, list[Flag]]]


def described(command: Callable[..., Any]) -> tuple[str, list[Flag]]:
    """Purpose and options of a command, from its signature; an argument with known values is a flag without a name."""
    flags = [Flag(("--help",), (), False, "Show what there is.")]
    for name, hint in get_type_hints(command, include_extras=True).items():
        if name == "return":
            continue
        kind, told = get_args(hint)[:2]
        values = tuple(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else _listed(told.metavar)
        # Within ``Annotated`` the first spelling stands where the default would.
        names = tuple(n for n in (told.default, *(told.param_decls or ())) if isinstance(n, str) and n[:1] == "-")
        if not names:
            plain = name.replace("_", "-")
            names = (f"--{plain}", f"--no-{plain}") if kind is bool else (f"--{plain}",)
        if not isinstance(told, ArgumentInfo):
            flags.append(Flag(names, values, kind is not bool, told.help or ""))
        elif values:
            flags.append(Flag((), values, True, ""))
    return (command.__doc__ or "").strip().splitlines()[0], flags


def _listed(metavar: str | None) -> tuple[str, ...]:
    """The values in ``[one|another]``."""
    return tuple(metavar.strip("[]").split("|")) if metavar and metavar.startswith("[") and "|" in metavar else ()


def _bash(commands: Commands, zsh: bool) -> str:
    after = []
    inside = []
    bare = []
    for name, (_, flags) in commands.items():
        for flag in flags:
            if flag.takes_value and flag.names:
                after.append(f"    {'|'.join(f'{name}:{f}' for f in flag.names)}) {_found(flag.values)} ;;")
            elif flag.values:
                bare.append(f"    {name}) {_found(flag.values)} ;;")
        inside.append(f"    {name}) {_found([f for flag in flags for f in flag.names])} ;;")
    head = "autoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{head}_mssvm() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}" found=
  if [ "$COMP_CWORD" -le 1 ]; then
    {_found([*commands, "--version", "--help"])}
  else
    case "$command:$before" in
{chr(10).join(after)}
    esac
  fi
  if [ -z "$found" ]; then case "$word" in -*) case "$command" in
{chr(10).join(inside)}
  esac ;; *) case "$command" in
{chr(10).join(bare)}
  esac ;; esac; fi
  COMPREPLY=($(eval "compgen ${{found:--f}} -- \\"\\$word\\""))
}}
complete -o filenames -F _mssvm mssvm
"""


def _found(words: Sequence[str]) -> str:
    """What to offer: one of the words, or a file where there are none."""
    return "found=" + _quoted(f'-W "{" ".join(words)}"' if words else "-f")


def _fish(commands: Commands) -> str:
    lines = ["complete -c mssvm -n __fish_use_subcommand -f -l version -d 'Name the versions of what matters.'"]
    for name, (text, flags) in commands.items():
        lines.append(f"complete -c mssvm -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}")
        for flag in flags:
            start = f"complete -c mssvm -n '__fish_seen_subcommand_from {name}'"
            spelled = "".join(f" -l {f[2:]}" if f.startswith("--") else f" -s {f[1:]}" for f in flag.names)
            values = f" -x -a '{' '.join(flag.values)}'" if flag.values else " -r" if flag.takes_value else " -f"
            if not flag.names:
                values = f" -f -a '{' '.join(flag.values)}'"
            lines.append(f"{start}{spelled}{values}" + (f" -d {_quoted(flag.text)}" if flag.text else ""))
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """One word for a shell."""
    return "'" + text.replace("'", "") + "'"
