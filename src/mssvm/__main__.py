"""The command ``mssvm``, also ``python -m mssvm``: stopping it is one line from the first imports on."""

from __future__ import annotations

import gc
from typing import NoReturn

from mssvm.core.stopping import leave, stop_at_once


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    stop_at_once()
    from mssvm.cli import main as run

    gc.set_threshold(100_000, 50, 50)  # most of what a command makes it keeps, so looking for garbage seldom pays
    leave(run())


if __name__ == "__main__":
    main()
