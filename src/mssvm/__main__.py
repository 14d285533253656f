"""The command ``mssvm``, also ``python -m mssvm``; from the first import on, Ctrl-C prints a line, no traceback."""

from __future__ import annotations

import gc
from typing import NoReturn

from mssvm.core.stopping import leave, stop_at_once


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    stop_at_once()
    from mssvm.cli import main as run

    gc.set_threshold(100_000, 50, 50)  # commands keep most of their objects, so that collecting garbage seldom pays
    leave(run())


if __name__ == "__main__":
    main()
