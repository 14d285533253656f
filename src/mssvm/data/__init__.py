"""Data: files in, data sets out; vocabularies of labels and features; metrics."""

from typing import Any

from mssvm._moved import moved_name
from mssvm.data.dataset import Dataset
from mssvm.data.embedded import chunking, weak_pictures
from mssvm.data.readers import Options, check, read, read_parts

__all__ = ["Dataset", "Options", "check", "chunking", "read", "read_parts", "weak_pictures"]


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
