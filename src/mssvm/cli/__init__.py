"""The command ``mssvm``: one function per subcommand, put together here; bad input is one sentence and exit code 2."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer

from mssvm.cli.check import check
from mssvm.cli.compare import compare
from mssvm.cli.demo import demo
from mssvm.cli.evaluate import evaluate
from mssvm.cli.fit import fit
from mssvm.cli.infer import infer
from mssvm.cli.inspect import inspect
from mssvm.cli.predict import predict
from mssvm.cli.reproduce import reproduce
from mssvm.cli.versions import versions
from mssvm.core.errors import MssvmError

# The base of usage errors in whichever click this typer brings along: BadParameter < UsageError < ClickException.
Usage: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Name the versions of what matters, and stop.")] = False,
) -> None:
    """Structured prediction with hidden variables, and inference on the models behind it."""
    if version:
        print("\n".join(f"{name} {number}" for name, number in versions().items()))
    elif context.invoked_subcommand is None:
        print(context.get_help())


for command in (fit, predict, evaluate, compare, inspect, check, demo, infer):
    app.command()(command)
app.command()(reproduce)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            code = app(arguments, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except MssvmError as error:
        return _refuse(str(error))
    except Usage as error:
        return _refuse(f"{error.format_message()} Add --help to see what there is.")
    except (KeyboardInterrupt, typer.Abort):
        print("mssvm: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has seen enough; closing standard output at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _warn(message: Warning | str, *where: object, **more: object) -> None:
    # The user knows the data, not the line of this package that has something to say about them.
    print(f"mssvm: {message}", file=sys.stderr)


def _refuse(sentence: str) -> int:
    # One line whatever the message holds, so that scripts can rely on it.
    print(f"mssvm: {' '.join(sentence.split())}", file=sys.stderr)
    return 2
