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


NEWLINE = "\n"


class Flag(NamedTuple):
    """An option: its spellings, its possible values (empty: any), whether it takes a value, and its help text."""

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

    commands = {name: described(getattr(import_module(f"mssvm.cli.{name}"), name)) for name in COMMANDS}
    script = _fish(commands) if shell is Shell.fish else _bash(commands, zsh=shell is Shell.zsh)
    typer.echo(script, nl=False)


Commands = dict[str, tuple[str, list[Flag]]]


def described(command: Callable[..., Any]) -> tuple[str, list[Flag]]:
    """Purpose and options of a command, from its signature; an argument with known values is a flag without a name."""
    flags = [Flag(("--help",), (), False, "Show all options.")]
    for name, hint in get_type_hints(command, include_extras=True).items():
        if name == "return":
            continue
        kind, info = get_args(hint)[:2]
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            values: tuple[str, ...] = tuple(kind)
        else:
            values = _listed(info.metavar)
        # Within ``Annotated`` the first spelling takes the place of the default.
        spellings = (info.default, *(info.param_decls or ()))
        names = tuple(text for text in spellings if isinstance(text, str) and text.startswith("-"))
        if not names:
            plain = name.replace("_", "-")
            names = (f"--{plain}", f"--no-{plain}") if kind is bool else (f"--{plain}",)
        if not isinstance(info, ArgumentInfo):
            flags.append(Flag(names, values, kind is not bool, info.help or ""))
        elif values:
            flags.append(Flag((), values, True, ""))
    purpose = (command.__doc__ or "").strip().splitlines()[0]
    return purpose, flags


def _listed(metavar: str | None) -> tuple[str, ...]:
    """The values in ``[one|another]``; none in any other text."""
    if metavar is None or not metavar.startswith("[") or "|" not in metavar:
        return ()
    return tuple(metavar.strip("[]").split("|"))


def _bash(commands: Commands, zsh: bool) -> str:
    """A function for bash's ``complete``, which zsh can load as well.

    It completes the value of an option (``after_option``), else options (``options``), else an argument with known
    values (``arguments``), else a file name.
    """
    after_option = []
    options = []
    arguments = []
    for name, (_, flags) in commands.items():
        for flag in flags:
            if flag.takes_value and flag.names:
                pattern = "|".join(f"{name}:{spelling}" for spelling in flag.names)
                after_option.append(f"    {pattern}) {_offer(flag.values)} ;;")
            elif flag.values:
                arguments.append(f"    {name}) {_offer(flag.values)} ;;")
        spellings = [spelling for flag in flags for spelling in flag.names]
        options.append(f"    {name}) {_offer(spellings)} ;;")
    head = "autoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{head}_mssvm() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}" found=
  if [ "$COMP_CWORD" -le 1 ]; then
    {_offer([*commands, "--version", "--help"])}
  else
    case "$command:$before" in
{NEWLINE.join(after_option)}
    esac
  fi
  if [ -z "$found" ]; then case "$word" in -*) case "$command" in
{NEWLINE.join(options)}
  esac ;; *) case "$command" in
{NEWLINE.join(arguments)}
  esac ;; esac; fi
  COMPREPLY=($(eval "compgen ${{found:--f}} -- \\"\\$word\\""))
}}
complete -o filenames -F _mssvm mssvm
"""


def _offer(words: Sequence[str]) -> str:
    """The assignment that makes compgen offer the words, or files if there are none."""
    if not words:
        return "found=" + _quoted("-f")
    listed = " ".join(words)
    return "found=" + _quoted(f'-W "{listed}"')


def _fish(commands: Commands) -> str:
    lines = ["complete -c mssvm -n __fish_use_subcommand -f -l version -d 'Print the versions of relevant packages.'"]
    for name, (text, flags) in commands.items():
        lines.append(f"complete -c mssvm -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}")
        for flag in flags:
            lines.append(f"complete -c mssvm -n '__fish_seen_subcommand_from {name}'{_fish_flag(flag)}")
    return "\n".join(lines) + "\n"


def _fish_flag(flag: Flag) -> str:
    """The options of fish's ``complete`` for one flag: spellings, values, description."""
    line = ""
    for spelling in flag.names:
        line += f" -l {spelling[2:]}" if spelling.startswith("--") else f" -s {spelling[1:]}"
    values = " ".join(flag.values)
    if not flag.names:
        line += f" -f -a '{values}'"
    elif flag.values:
        line += f" -x -a '{values}'"
    elif flag.takes_value:
        line += " -r"
    else:
        line += " -f"
    if flag.text:
        line += f" -d {_quoted(flag.text)}"
    return line


def _quoted(text: str) -> str:
    """One word for a shell."""
    return "'" + text.replace("'", "") + "'"
