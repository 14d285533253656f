"""The command ``mssvm``, also ``python -m mssvm``: stopping it is one line from the first imports on."""

from __future__ import annotations

import sys

from mssvm.core.stopping import leave, stop_at_once


def main() -> int:
    """Run the command line; returns the exit code."""
    stop_at_once()
    from mssvm.cli import main as run

    return leave(run())


if __name__ == "__main__":
    sys.exit(main())
