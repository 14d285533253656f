"""Readers: one file a format, one table of endings (``read``)."""

from mssvm.data.readers.read import Options, check, read, read_parts

__all__ = ["Options", "check", "read", "read_parts"]
