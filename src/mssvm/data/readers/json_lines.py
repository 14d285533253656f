"""JSON lines: one object per line, ``x`` and ``y`` for chains, sequences and grids, ``nodes`` and ``edges`` for graphs.

{"x": [[0.1, 2], [0.3, 1]], "y": ["B", null]}                    a chain; null: missing, ["B", "I"]: candidates
{"x": ["The", "cat"], "y": ["O", "B"]}                            words, turned into features of words in context
{"x": [{"w": "the"}, {"w": "cat"}], "y": ["O", "B"]}              named features
{"x": [[0.1], [0.2]], "y": "walk"}                                a sequence with one label
{"x": [[[0.1], [0.2]], [[0.3], [0.4]]], "y": [[0, 1], [0, null]]} a grid: one level deeper
{"nodes": [[0.1], [0.2]], "edges": [[0, 1]], "edge_x": [[1]], "y": ["a", "b"]}   a graph
{"x": [0.1, 0.2, 0.7], "y": [1, 0, null]}                         several labels, with structure="multilabel"
{"tokens": ["The", "cat"], "ner_tags": ["O", "B"]}                fields of other programs: see ``foreign``

Votes of several annotators stand in ``votes`` or ``spans`` (``readers.votes``).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from mssvm.core.checks import shown
from mssvm.core.errors import InputError
from mssvm.data.dataset import Kind, Record, n_sites
from mssvm.data.graphs import Graph
from mssvm.data.readers.foreign import translated
from mssvm.data.readers.stream import Opened, Options, Stream
from mssvm.data.readers.values import Fail, LabelReader, flags, table
from mssvm.data.readers.votes import has_votes, read_votes
from mssvm.data.words import words

PEEKED = 200  # first instances, by which the structure is guessed

Line = tuple[int, str]
"""Number and text."""


def open_json(stream: Stream, options: Options) -> Opened:
    """Instances of one structure: ``options.structure``, or that of the first instance that shows it."""
    lines: Iterator[Line] = ((line, text) for line, text in stream.lines() if text.strip())
    kind = options.structure
    if kind is None:
        kind, peeked = _guess_from(lines, stream)
        lines = chain(peeked, lines)
    label = options.columns[-1] if options.columns else None
    reader = JsonReader(stream, kind, options.missing_label, label)
    return Opened(kind, _records(reader, lines, options))


def _guess_from(lines: Iterator[Line], stream: Stream) -> tuple[Kind, list[Line]]:
    """The structure of the first instance that reveals it, a chain if none does, and the lines read so far: no more
    than needed, as the other end of a pipe may wait for answers."""
    peeked = []
    for line, text in islice(lines, PEEKED):
        peeked.append((line, text))
        try:
            fail = partial(stream.fail, line=line)
            kind = guess_kind(translated(parse(text, fail), fail))
        except InputError:
            break  # reading will raise the same error
        if kind is not None:
            return kind, peeked
    return "chain", peeked


def _records(reader: JsonReader, lines: Iterable[Line], options: Options) -> Iterator[Record]:
    for line, text in lines:
        try:
            record = reader.record(line, text)
        except InputError as error:
            if options.note is None:
                raise
            options.note(str(error))
            continue
        yield record


class JsonReader:
    """Turns lines into instances of one kind."""

    def __init__(self, stream: Stream, kind: Kind, missing_label: Hashable = None, label: str | None = None) -> None:
        self.stream = stream
        self.kind = kind
        self.label = label
        self.labels = LabelReader(missing_label)
        self._interned: dict[str, str] = {}  # one object for equal names of features
        self._n_labels = 0  # labels of every instance, in multi-label data

    def record(self, line: int, text: str) -> Record:
        fail = partial(self.stream.fail, line=line)
        record = translated(parse(text, fail), fail, self.label)
        if self.kind == "multilabel":
            return self._multilabel(line, record, fail)
        x = self._graph(record, fail) if self.kind == "graph" else self._features(record, fail)
        shape = n_sites(x, self.kind)
        y = self.labels.read(record.get("y"), shape, fail, line)
        votes = read_votes(record, shape, self.labels, fail, line)
        return Record(line, x, y, record.get("id"), flags(record.get("hidden"), shape, fail), votes=votes)

    def _multilabel(self, line: int, record: dict[str, Any], fail: Fail) -> Record:
        """One row of features, and as many labels as every other instance has."""
        if has_votes(record):
            fail("votes on several labels of one row are not read from files; use MultiLabel from Python")
        x = self._x(record, fail)
        y = record.get("y")
        if y is not None:
            self._n_labels = self._n_labels or (len(y) if isinstance(y, list) else 0)
            if not isinstance(y, list) or not y or len(y) != self._n_labels:
                wanted = f"{self._n_labels} labels, as in the instances before" if self._n_labels else "labels"
                fail(f"'y' should be a list of {wanted}, got {shown(y)}")
            y = self.labels.read(y, (len(y),), fail, line)
        if isinstance(x, dict) or (isinstance(x, list) and _has_text([x])):
            features = self._named(x, 0, fail)
        else:
            features = table([x], 2, "'x'", fail)[0]
        return Record(line, features, y, record.get("id"))

    def _x(self, record: dict[str, Any], fail: Fail) -> Any:
        if "x" not in record:
            hint = "; it has 'nodes', so use --structure graph" if "nodes" in record else ""
            fail(f"the object has no 'x' (it has {', '.join(map(repr, record)) or 'nothing'}){hint}")
        return record["x"]

    def _features(self, record: dict[str, Any], fail: Fail) -> Any:
        depth = 2 if self.kind == "grid" else 1
        x = self._sites(self._x(record, fail), depth, "x", fail)
        if record.get("edge_x") is None:
            return x
        if self.kind != "chain":
            fail("'edge_x' belongs to chains and graphs; leave it out")
        if len(x) < 2:
            fail("'edge_x' of a chain has a row between every two sites, and here is only one site")
        edge_x = self._sites(record["edge_x"], 1, "edge_x", fail)
        if len(edge_x) != len(x) - 1:
            fail(f"'edge_x' has {len(edge_x)} rows for {len(x)} sites; a chain needs one row less than sites")
        return {"x": x, "edge_x": edge_x}

    def _sites(self, value: Any, depth: int, what: str, fail: Fail) -> Any:
        """Features of sites: an array, or lists of named features."""
        if not isinstance(value, list):
            fail(f"'{what}' should be a list, got {shown(value)}")
        if not value:
            fail(f"'{what}' is empty; leave out instances without sites")
        if depth == 2:
            if isinstance(value[0], list) and value[0] and isinstance(value[0][0], dict):
                return self._named_grid(value, fail)
            return table(value, 3, f"'{what}'", fail)
        if isinstance(value[0], str):
            if not all(isinstance(word, str) and word for word in value):
                fail(f"'{what}' mixes words and features; give words, or features, for all sites")
            return [self._intern(site) for site in words([value])[0]]
        if isinstance(value[0], dict) or _has_text(value):
            return [self._named(site, s, fail) for s, site in enumerate(value)]
        return table(value, 2, f"'{what}'", fail)

    def _named_grid(self, value: Any, fail: Fail) -> Any:
        if any(not isinstance(row, list) or len(row) != len(value[0]) for row in value):
            fail("the rows of the grid differ in length; give every row the same number of sites")
        return [[self._named(site, s, fail) for s, site in enumerate(row)] for row in value]

    def _named(self, site: Any, s: int, fail: Fail) -> Any:
        """Named features; those that are all text become shared names, which need little memory."""
        if isinstance(site, list) and all(isinstance(name, str) for name in site):
            return self._intern(site)
        if not isinstance(site, dict):
            fail(f"site {s} is {shown(site)}; named features are an object or a list of text, for all sites")
        for name, value in site.items():
            if value is None or (isinstance(value, float) and not abs(value) < float("inf")):
                fail(f"site {s}: feature {name!r} is {value}; impute it or leave it out")
        if all(isinstance(value, str) for value in site.values()):
            return self._intern([f"{name}:{value}" for name, value in site.items()])
        return site

    def _intern(self, names: list[str]) -> list[str]:
        interned = self._interned
        return [interned.setdefault(name, name) for name in names]

    def _graph(self, record: dict[str, Any], fail: Fail) -> Graph:
        for key in ("nodes", "edges"):
            if not isinstance(record.get(key), list):
                fail(f"a graph needs '{key}' as a list (the object has {', '.join(map(repr, record)) or 'nothing'})")
        edges = record["edges"]
        for e, edge in enumerate(edges):
            if not (isinstance(edge, list) and len(edge) == 2 and all(type(v) is int for v in edge)):
                fail(f"edge {e} is {shown(edge)}; an edge is a pair of node numbers")
        nodes = self._sites(record["nodes"], 1, "nodes", fail)
        edge_x = record.get("edge_x")
        if edge_x is not None:
            edge_x = self._sites(edge_x, 1, "edge_x", fail) if edges else None
        try:
            return Graph(nodes, edges, edge_x, record.get("node_types"), record.get("edge_types"))
        except InputError as error:
            fail(str(error).rstrip("."))


def parse(text: str, fail: Fail) -> dict[str, Any]:
    """The object on a line."""
    try:
        record = json.loads(text)
    except ValueError as error:
        reason = str(error).split(":")[0].lower() if isinstance(error, json.JSONDecodeError) else str(error)
        fail(f'this is not JSON ({reason}); every line must hold one object such as {{"x": ..., "y": ...}}')
    except RecursionError:
        fail("the JSON is nested too deeply; every line must hold one plain instance")
    if not isinstance(record, dict):
        fail(f"expected an object with 'x' and 'y', got {shown(record)}")
    return record


def guess_kind(record: dict[str, Any]) -> Kind | None:
    """The kind of a record, or None where it does not show."""
    if "nodes" in record:
        return "graph"
    x = record.get("x")
    first = x[0] if isinstance(x, list) and x else None
    if isinstance(first, list) and first and isinstance(first[0], (list, dict)):
        return "grid"
    labels = record.get("y")
    votes = record.get("votes")
    if labels is None and isinstance(votes, dict):
        labels = next((given for given in votes.values() if given is not None), None)
    if isinstance(votes, list) or record.get("spans") is not None:
        return "chain"
    if labels is None:
        return None
    return "chain" if isinstance(labels, list) else "sequence"


def _has_text(value: list[Any]) -> bool:
    """Whether a list of sites is a list of lists of names; empty ones may come first."""
    for site in value:
        if not isinstance(site, list):
            return False
        if site:
            return isinstance(site[0], str)
    return False
