"""The command ``mssvm``: every subcommand is a function in a module of its name; an error prints one sentence and exits
with code 2."""

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

# The base of usage errors in the click that this typer brings along: BadParameter < UsageError < ClickException.
ClickException: Any = typer.BadParameter.__mro__[2]

INTERRUPTED = 130  # the exit code that typer gives to an interruption
COMMANDS = (
    "fit",
    "predict",
    "aggregate",
    "evaluate",
    "compare",
    "inspect",
    "check",
    "studio",
    "demo",
    "infer",
    "reproduce",
    "completion",
)


def app(arguments: list[str] | None = None, standalone_mode: bool = True) -> Any:
    """Run the command line. Only the module of the command that is called is imported; without a command, all are."""
    if arguments is None:
        arguments = sys.argv[1:]
    command_line = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command_line.callback(invoke_without_command=True)(about)
    called = tuple(arguments[:1])
    with gc_paused():
        for name in called if called and called[0] in COMMANDS else COMMANDS:
            command_line.command()(getattr(import_module(f"mssvm.cli.{name}"), name))
    return command_line(arguments, standalone_mode=standalone_mode)


def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the versions of relevant packages.")] = False,
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
    except ClickException as error:
        return _refuse(f"{error.format_message().rstrip('.')}. Add --help to see what there is.")
    except KeyboardInterrupt as error:
        sentence = "; ".join((stop.word, *(str(argument) for argument in error.args)))
        print(f"mssvm: {sentence}.", file=sys.stderr)
        return stop.code
    except OSError as error:
        # Standard output may still hold a buffer: flushing it at exit must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0  # the reader of the pipe has closed it, as head does
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
    # Without file and line of this package's code, which mean nothing to a user of the command.
    print(f"mssvm: {printable(str(message))}", file=sys.stderr)


def _refuse(sentence: str) -> int:
    # Always one line, so that scripts can rely on it.
    print(f"mssvm: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return 2
