"""Readers of labelled data: one file per format (``json_lines`` with ``foreign`` and ``votes``, ``conll``, ``ts``,
``npz``, ``long_tables``, ``images`` with ``png``).

Each turns a ``Stream`` (``stream``) into records; ``read`` holds the table of formats and puts the records together.
``values`` checks what files give as features and labels.
"""

from mssvm.data.readers.read import check, read, read_parts
from mssvm.data.readers.stream import Options

__all__ = ["Options", "check", "read", "read_parts"]
