"""The command ``mssvm``: one function per subcommand, put together here; bad input is one sentence and exit code 2."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer

from mssvm.cli.interrupt import interruptible
from mssvm.cli.versions import versions
from mssvm.core.collector import gc_paused
from mssvm.core.errors import MssvmError
from mssvm.core.stopping import Interruption, stopping
from mssvm.core.text import printable

# The base of usage errors in whichever click this typer brings along: BadParameter < UsageError < ClickException.
Usage: Any = typer.BadParameter.__mro__[2]

INTERRUPTED = 130  # what this typer makes of an interruption
COMMANDS = ("fit", "predict", "evaluate", "compare", "inspect", "check", "demo", "infer", "reproduce", "completion")


def app(arguments: list[str] | None = None, standalone_mode: bool = True) -> Any:
    """Run the command line, with the one command that is called for: the others take longer to import than to help."""
    given = sys.argv[1:] if arguments is None else arguments
    line = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    line.callback(invoke_without_command=True)(about)
    with gc_paused():
        for name in given[:1] if given and given[0] in COMMANDS else COMMANDS:
            line.command()(getattr(import_module(f"mssvm.cli.{name}"), name))
    return line(given, standalone_mode=standalone_mode)


def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Name the versions of what matters, and stop.")] = False,
) -> None:
    """Structured prediction with hidden variables, and inference on the models behind it."""
    if version:
        print("\n".join(f"{name} {number}" for name, number in versions().items()))
    elif context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    with stopping() as stop:
        return _run(arguments, stop)


def _run(arguments: list[str] | None, stop: Interruption) -> int:
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            code = interruptible(lambda: _command(arguments))
            sys.stdout.flush()
            return code
    except MssvmError as error:
        return _refuse(str(error))
    except Usage as error:
        return _refuse(f"{error.format_message()} Add --help to see what there is.")
    except KeyboardInterrupt as error:
        print("; ".join((f"mssvm: {stop.word}", *map(str, error.args))) + ".", file=sys.stderr)
        return stop.code
    except OSError as error:
        # Whatever is left in standard output's buffer: closing it at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0  # whoever read the output has seen enough
        return _refuse(f"{error.filename or 'the output'} cannot be read or written: {error.strerror or error}.")


def _command(arguments: list[str] | None) -> int:
    try:
        code = app(arguments, standalone_mode=False)
    except typer.Abort:
        code = INTERRUPTED
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    # The user knows the data, not the line of this package that has something to say about them.
    print(f"mssvm: {printable(str(message))}", file=sys.stderr)


def _refuse(sentence: str) -> int:
    # One line whatever the message holds, so that scripts can rely on it.
    print(f"mssvm: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return 2
