"""Data: files and tables in, data sets out; vocabularies of labels and features; metrics.

readers, shards                     files, and files that the workers of a cluster read
tables, graphs, tensors             data frames, graphs and tensors as instances
dataset                             instances and labels, with the lines they were read from
features, named, words, pictures    features of sites, from arrays, names, words and photographs
standardise                         features with mean 0 and standard deviation 1
labels, chunks, spans               labels of sites as states; BIO tags; spans of segments
metrics, calibration                scores of predictions and of probabilities
embedded                            data that come with the package
"""

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
