"""Readers of labelled data: one file per format (``conll``, ``images`` with ``png``, ``json_lines``, ``npz``, ``ts``).

Each turns a ``Stream`` into records; ``read`` holds the table of formats and puts the records together. ``values``
checks what files give as features and labels.
"""

from mssvm.data.readers.read import check, read, read_parts
from mssvm.data.readers.stream import Options

__all__ = ["Options", "check", "read", "read_parts"]
