"""The command ``mssvm``: one function per subcommand, put together here; bad input is one sentence and exit code 2."""

from __future__ import annotations

import sys
from typing import Any

import typer

from mssvm.cli.infer import infer
from mssvm.cli.reproduce import reproduce
from mssvm.errors import MssvmError

# The base of usage errors in whichever click this typer brings along: BadParameter < UsageError < ClickException.
Usage: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def about() -> None:
    """Structured prediction with hidden variables, and inference on the models behind it."""


app.command()(infer)
app.command()(reproduce)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        code = app(arguments, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except MssvmError as error:
        return _refuse(str(error))
    except Usage as error:
        return _refuse(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        return 130


def _refuse(sentence: str) -> int:
    # One line whatever the message holds, so that scripts can rely on it.
    print(f"mssvm: {' '.join(sentence.split())}", file=sys.stderr)
    return 2
