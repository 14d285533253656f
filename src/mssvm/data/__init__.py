"""Data: files and tables in, data sets out; vocabularies of labels and features; metrics."""

from mssvm.data.dataset import Dataset
from mssvm.data.embedded import chunking, weak_pictures
from mssvm.data.readers import Options, check, read, read_parts
from mssvm.data.tables import from_frame, split, to_column

__all__ = [
    "Dataset",
    "Options",
    "check",
    "chunking",
    "from_frame",
    "read",
    "read_parts",
    "split",
    "to_column",
    "weak_pictures",
]
