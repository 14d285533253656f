"""Segments: sequences cut into labelled segments whose lengths have scores, with hidden states in them.

    theta(x, s, h) = sum_t x_t . node[:, y_t] + bias[y_t]
                   + sum_segments duration[d, c] + x_a . first.x[:, c] + x_b . last.x[:, c] + x_ab . segment.x[:, c]
                   + sum_neighbours transition[c, c'] + start[c_1] + end[c_n]
    hidden         + sum_segments attach[c, h_a] + sum_t x_t . hidden.node[:, y_t, h_t] + hidden.bias[y_t, h_t]
    moving         + sum_t inside a segment hidden.transition[c, h_t, h_{t+1}]

for a segmentation s, with c the label of a segment, d its length, a and b its first and last site. The segmentation is
the output; the label y_t of a site is that of its segment. Unless ``moving``, all h_t of a segment are one state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.checks import count, shown
from mssvm.core.errors import InputError
from mssvm.core.segments import SegmentLayout
from mssvm.data.labels import Labels, LabelVocabulary, Shapes, is_missing, plain
from mssvm.data.spans import SpanLabels, span_labels
from mssvm.inference.segments import SegmentInference
from mssvm.structures.base import MOST_STATES, Schema, Sources, Structure, check_flag, label_mask
from mssvm.structures.chain import Chain
from mssvm.structures.durations import durations_of
from mssvm.structures.encoder import Encoder
from mssvm.structures.layout import InstanceTopology, first_sites
from mssvm.structures.weights import HardConstraint, KnownScores, WeightBlock

LONGEST = 1 << 20
LABEL = "label"
HIDDEN = "hidden"


@dataclass(eq=False, repr=False)
class Segments(Structure):
    """Sequences of segments, each with a label and a length: a semi-Markov model.

    Parameters
    ----------
    max_length : int, or mapping of label to int
        Sites of the longest segment; labels that a mapping leaves out may be as long as the longest of the others.
    hidden : int
        States of the hidden variable of a segment; 0 for none. Inference is exact for every pair of temperatures.
    moving : bool
        Let the hidden state change from site to site inside a segment, instead of one for the whole segment.
    durations : "table", "geometric", "poisson", "negative-binomial", ("negative-binomial", r), "gamma" or array (K, J)
        Scores of lengths: a weight for every label and length, a family of distributions, or features of the lengths.
    min_length : int, or mapping of label to int
        Sites of the shortest segment; labels that a mapping leaves out may have one site.
    repeat : "auto", bool or iterable of labels
        Labels of which two segments may follow each other. "auto": those that the training data show in longer runs
        than max_length, or in adjacent spans.
    ends : bool
        Separate scores for the labels of the first and the last segment.
    borders : bool
        Scores of the features at the first and at the last site of a segment.
    segment_features : function of (x, start, stop), or None
        Features of the segment x[start:stop], an array of numbers. The alternative is to give them with X, as
        ``{"x": (T, d), "segment_x": (T, K, f)}``, entry [a, k] for the segment of k + 1 sites that begins at a.
    forbidden : iterable of (label, next label)
        Transitions between segments that never happen; ``None`` as in ``Chain``.
    forced : mapping of label to a label or an iterable of labels
        The labels that must follow a label.
    fixed : mapping of block to weights
        Known weights that training leaves alone (see ``Chain``).

    X is a list of (T, d) arrays, sparse matrices or lists of named features. y has labels of sites, spans
    ``[(start, stop, label), ...]``, or both as ``{"sites": ..., "spans": ...}``; sites outside spans are missing. Known
    sites without boundaries are a candidate set: all segmentations that agree with them.

    >>> spans = [[(0, 1, "B"), (1, 2, "I"), (2, 3, "O")], [(0, 3, "B"), (3, 4, "O")]]
    >>> helix = ms.MSSVM(ms.Segments(max_length=3, hidden=2), random_state=0).fit(X, spans)
    >>> [segment[:3] for segment in helix.predict_segments(X)[1]]
    [(0, 3, 'B'), (3, 4, 'O')]
    """

    learns_from_labels: ClassVar[bool] = True

    max_length: int | Mapping[Hashable, int] = 40
    hidden: int = 0
    moving: bool = False
    durations: Any = "table"
    min_length: int | Mapping[Hashable, int] = 1
    repeat: str | bool | Iterable[Hashable] = "auto"
    ends: bool = False
    borders: bool = False
    segment_features: Callable[[Any, int, int], Any] | None = None
    forbidden: Iterable[tuple[Hashable, Hashable]] | None = None
    forced: Mapping[Hashable, Any] | None = None
    fixed: Mapping[str, Any] | None = None

    def check(self) -> None:
        count(self.hidden, "hidden", 0, MOST_STATES)
        for name in ("moving", "ends", "borders"):
            check_flag(getattr(self, name), name)
        if self.moving and not self.hidden:
            raise InputError("moving=True needs hidden states; set hidden=2 or more, or leave moving out.")
        for name in ("max_length", "min_length"):
            limits = getattr(self, name)
            if isinstance(limits, Mapping):
                for label, limit in limits.items():
                    count(limit, f"{name}[{shown(label)}]", 1, LONGEST)
                if not limits:
                    raise InputError(f"{name} is an empty mapping; give a number, or a number for some labels.")
            else:
                count(limits, name, 1, LONGEST)
        if self.segment_features is not None and not callable(self.segment_features):
            raise InputError(f"segment_features must be a function or None, got {shown(self.segment_features)}.")
        if isinstance(self.repeat, str) and self.repeat != "auto":
            raise InputError(f"repeat must be 'auto', True, False or a list of labels, got {self.repeat!r}.")
        durations_of(self.durations, self.longest)

    @property
    def longest(self) -> int:
        """Sites of the longest segment of any label."""
        if isinstance(self.max_length, Mapping):
            return max(int(limit) for limit in self.max_length.values())
        return int(self.max_length)

    # ------------------------------------------------------------------------------------- X

    def read(self, X: Sequence[Any]) -> Sources:
        nodes = []
        segments = []
        for b, item in enumerate(X):
            x = item
            segment_x = None
            if isinstance(item, Mapping):
                if "x" not in item or any(name not in ("x", "segment_x") for name in item):
                    raise InputError(
                        f"a dict needs the key 'x' and may have 'segment_x', got {sorted(item)}.", instance=b
                    )
                x = item["x"]
                segment_x = item.get("segment_x")
            if self.segment_features is not None:
                if segment_x is not None:
                    raise InputError("give either segment_x or the parameter segment_features.", instance=b)
                segment_x = _features_of_segments(self.segment_features, x, self.longest, b)
            nodes.append(x)
            segments.append(None if segment_x is None else _flat_segments(segment_x, x, self.longest, b))
        without = [part is None for part in segments]
        if all(without):
            return Sources({"node": nodes})
        if any(without):
            raise InputError("segment_x is missing, but other instances have it.", instance=without.index(True))
        return Sources({"node": nodes, "segment": segments})

    # ------------------------------------------------------------------------------------- labels

    def learn_labels(self, y: Any, classes: Any, missing_label: Hashable) -> LabelVocabulary:
        return LabelVocabulary.learn(_all_sites(y), 1, classes, missing_label)

    def site_labels(self, y: Any, shapes: Shapes, what: str = "y") -> Any:
        return [part.sites for part in self._read_labels(y, shapes, what)]

    def encode_labels(self, y: Any, shapes: Shapes, what: str, encoder: Encoder) -> Labels:
        read = self._read_labels(y, shapes, what)
        labels = encoder.vocabulary.encode([part.sites for part in read], shapes, what)
        for b, part in enumerate(read):
            for start, stop, label in part.spans:
                self._check_span(start, stop, label, b, what)
        boundaries = np.concatenate([part.boundaries() for part in read] or [np.ones((0, 2), dtype=bool)])
        return self.with_boundaries(labels, boundaries, encoder)

    def with_boundaries(self, labels: Labels, boundaries: Bools, encoder: Encoder) -> Labels:
        """Labels of sites with the boundaries that are known, and those that follow from the labels."""
        boundaries[first_sites(labels.ptr)] &= (False, True)
        self._find_boundaries(labels, boundaries, self._repeating(encoder.schema, encoder.vocabulary))
        return Labels(labels.observed, labels.mask, labels.ptr, boundaries)

    def _read_labels(self, y: Any, shapes: Shapes, what: str) -> list[SpanLabels]:
        if not isinstance(y, (list, tuple, np.ndarray)) or len(y) != len(shapes):
            found = f"{len(y)} instances" if hasattr(y, "__len__") else type(y).__name__
            raise InputError(f"{what} has {found} and X has {len(shapes)}; they must match.")
        return [span_labels(item, b, shape[0], what) for b, (item, shape) in enumerate(zip(y, shapes, strict=True))]

    def _check_span(self, start: int, stop: int, label: Any, b: int, what: str) -> None:
        """Raise if no segment is as long as the span."""
        length = stop - start
        longest = self._limit("max_length", label, self.longest)
        shortest = self._limit("min_length", label, 1)
        if not shortest <= length <= longest:
            reason = (
                f"the span ({start}, {stop}, {shown(label)}) has {length} sites, but its label has "
                f"{shortest} to {longest}; change max_length or min_length."
            )
            raise InputError(reason, what=what, instance=b)

    def _limit(self, name: str, label: Any, other: int) -> int:
        limits = getattr(self, name)
        if not isinstance(limits, Mapping):
            return int(limits)
        if isinstance(label, (set, frozenset, list)) or is_missing(label):
            return other
        return int(limits.get(plain(label), other))

    @staticmethod
    def _find_boundaries(labels: Labels, boundaries: Bools, repeating: Bools) -> None:
        """Boundaries that follow from labels: between different ones there is one, inside a run of a label that never
        follows itself there is none."""
        single = labels.single
        states = labels.states
        known = single[1:] & single[:-1]
        known[first_sites(labels.ptr)[1:] - 1] = False  # between instances
        at = np.flatnonzero(known)
        same = states[at] == states[at + 1]
        boundaries[at[~same] + 1] &= (False, True)
        boundaries[at[same & ~repeating[states[at]]] + 1] &= (True, False)

    def types_from_labels(self, y: Any, vocabulary: LabelVocabulary) -> Mapping[str, tuple[str, ...]]:
        """Numbers of the classes that may follow themselves under ``repeat="auto"``."""
        if self.repeat != "auto":
            return {}
        repeated = np.zeros(vocabulary.n_classes, dtype=bool)
        for b, item in enumerate(y if y is not None else ()):
            self._find_repeats(span_labels(item, b, None), vocabulary, repeated)
        return {"repeat": tuple(str(k) for k in np.flatnonzero(repeated))}

    def _find_repeats(self, labels: SpanLabels, vocabulary: LabelVocabulary, repeated: Bools) -> None:
        known = [vocabulary.table.get(plain(v), -1) if isinstance(v, Hashable) else -1 for v in labels.sites]
        states = np.array(known, dtype=np.int64)
        starts = ~labels.boundaries()[:, 0]
        ends = np.flatnonzero(np.append(states[1:] != states[:-1], True)) if len(states) else states
        begin = 0
        for stop in (ends + 1).tolist():
            state = int(states[begin])
            longest = self.longest if state < 0 else self._limit("max_length", vocabulary.classes[state], self.longest)
            if state >= 0 and (stop - begin > longest or starts[begin + 1 : stop].any()):
                repeated[state] = True
            begin = stop

    def _repeating(self, schema: Schema, vocabulary: LabelVocabulary) -> Bools:
        """The classes that may follow themselves."""
        if isinstance(self.repeat, (bool, np.bool_)):
            return np.full(vocabulary.n_classes, bool(self.repeat))
        if isinstance(self.repeat, str):
            mask = np.zeros(vocabulary.n_classes, dtype=bool)
            mask[[int(k) for k in schema.types.get("repeat", ())]] = True
            return mask
        return label_mask(self.repeat, vocabulary, "repeat")

    def hidden_states(self, states: Ints) -> Ints:
        return states % max(int(self.hidden), 1)  # states of the hidden variables are pairs of label and hidden state

    # ------------------------------------------------------------------------------------- weights

    def segment_layout(self, schema: Schema, vocabulary: LabelVocabulary) -> SegmentLayout:
        """Which scores the model has."""
        wide = "segment" in schema.features
        return SegmentLayout(vocabulary.n_classes, self.longest, int(self.hidden), self.moving, self.borders, wide)

    def inference(self, encoder: Encoder) -> SegmentInference:
        return SegmentInference(self.segment_layout(encoder.schema, encoder.vocabulary))

    def blocks(self, schema: Schema, vocabulary: LabelVocabulary) -> tuple[WeightBlock, ...]:
        n = vocabulary.n_classes
        labels = ((LABEL,), (n,))
        out = [
            WeightBlock("node", "label", *labels, source="node"),
            WeightBlock("bias", "label", *labels),
            WeightBlock("transition", "transition", (LABEL, LABEL), (n, n)),
        ]
        durations = durations_of(self.durations, self.longest)
        if durations.basis is None:
            out.append(WeightBlock("duration", "duration", ("length", LABEL), (self.longest, n)))
        else:
            parametric = WeightBlock(
                "duration", "duration", *labels, basis=durations.basis, basis_names=durations.names
            )
            out.append(parametric)
        if self.ends:
            out += [WeightBlock("start", "begin", *labels), WeightBlock("end", "end", *labels)]
        if self.borders:
            out += [WeightBlock("first.x", "first", *labels, source="node")]
            out += [WeightBlock("last.x", "last", *labels, source="node")]
        if "segment" in schema.features:
            out.append(WeightBlock("segment.x", "segment", *labels, source="segment"))
        if self.hidden:
            pairs = ((LABEL, HIDDEN), (n, int(self.hidden)))
            out.append(WeightBlock("hidden.node", "hidden", *pairs, source="node"))
            out.append(WeightBlock("hidden.bias", "hidden", *pairs))
            out.append(WeightBlock("attach", "attach", *pairs))
        if self.moving:
            triple = ((LABEL, HIDDEN, HIDDEN), (n, int(self.hidden), int(self.hidden)))
            out.append(WeightBlock("hidden.transition", "move", *triple))
        return tuple(out)

    def known_scores(self, schema: Schema, vocabulary: LabelVocabulary) -> list[KnownScores]:
        known = durations_of(self.durations, self.longest).known
        if known is None:
            return []
        return [KnownScores("duration", np.repeat(known[:, None], vocabulary.n_classes, axis=1))]

    def constraints(self, schema: Schema, vocabulary: LabelVocabulary) -> list[HardConstraint]:
        masks: dict[str, Bools] = {}
        for constraint in Chain(forbidden=self.forbidden, forced=self.forced).constraints(schema, vocabulary):
            masks[constraint.group] = constraint.mask
        n = vocabulary.n_classes
        transitions = masks.get("edge", np.zeros((n, n), dtype=bool))
        np.fill_diagonal(transitions, transitions.diagonal() | ~self._repeating(schema, vocabulary))
        lengths = np.arange(1, self.longest + 1)
        impossible = np.zeros((self.longest, n), dtype=bool)
        for name in ("max_length", "min_length"):
            limits = getattr(self, name)
            if isinstance(limits, Mapping):
                for label in limits:
                    vocabulary.index(label, name)  # raises on an unknown label
        for k, label in enumerate(vocabulary.classes):
            longest = self._limit("max_length", label, self.longest)
            shortest = self._limit("min_length", label, 1)
            if shortest > longest:
                raise InputError(f"min_length of {shown(label)} is {shortest}, above its max_length of {longest}.")
            impossible[:, k] = (lengths < shortest) | (lengths > longest)
        out = {
            "transition": transitions,
            "duration": impossible,
            "begin": masks.get("first"),
            "end": masks.get("last"),
            "origin": np.array([True, False]),  # the first site is inside no segment that began before it
        }
        layout = self.segment_layout(schema, vocabulary)
        sizes = {name: states for name, _, states in layout.parts} | dict(layout.single)
        # Auxiliary variables hold scores only: they stay in their first state.
        for name in ("first", "last", "segment", "length", "state", "next"):
            if name in sizes:
                out[name] = np.arange(sizes[name]) > 0
        return [HardConstraint(group, mask) for group, mask in out.items() if mask is not None and mask.any()]

    # ------------------------------------------------------------------------------------- topology

    def topology(self, key: Any, encoder: Encoder) -> InstanceTopology:
        n = int(key)  # the key of an instance is its number of sites
        layout = self.segment_layout(encoder.schema, encoder.vocabulary)
        members = layout.members(n)
        groups: dict[str, Ints] = {name: variables[:, None] for name, variables in members.items()}
        groups["origin"] = members["boundary"][:1, None]
        for name, scope in layout.tables.items():
            groups[name] = np.array([[int(members[part][0]) for part in scope]])
        auxiliary = np.concatenate([part for name, part in members.items() if name not in (LABEL, HIDDEN)])
        sizes = {"node": n, "segment": n * self.longest}
        cards = layout.cards(n)
        hidden_shape = (n,) if self.hidden else None
        return InstanceTopology(cards, members[LABEL], (n,), groups, sizes, {}, hidden_shape, auxiliary=auxiliary)


def _all_sites(y: Any) -> Any:
    """Labels of sites from which to learn the classes; the numbers of sites are not known yet."""
    if not isinstance(y, (list, tuple, np.ndarray)):
        return y
    return [span_labels(item, b, None).sites for b, item in enumerate(y)]


def _features_of_segments(function: Callable[[Any, int, int], Any], x: Any, longest: int, b: int) -> Floats:
    """Features (T, K, f) of all segments of an instance; zeros where a segment would end beyond it."""
    n = x.shape[0] if hasattr(x, "shape") else len(x)
    out: Floats | None = None
    for start in range(n):
        for stop in range(start + 1, min(n, start + longest) + 1):
            row = np.atleast_1d(np.asarray(function(x, start, stop), dtype=np.float64))
            if out is None:
                out = np.zeros((n, longest, len(row)))
            if row.shape != out.shape[2:]:
                reason = f"segment_features gave {row.shape} numbers for ({start}, {stop}), before {out.shape[2:]}."
                raise InputError(reason, instance=b)
            out[start, stop - start - 1] = row
    return np.zeros((n, longest, 1)) if out is None else out


def _flat_segments(segment_x: Any, x: Any, longest: int, b: int) -> Floats:
    """Features of segments (T, K, f) as rows (T K, f)."""
    array = np.asarray(segment_x, dtype=np.float64)
    n = x.shape[0] if hasattr(x, "shape") else len(x)
    if array.ndim != 3 or array.shape[:2] != (n, longest):
        reason = f"segment_x has shape {array.shape}; it needs ({n}, {longest}, features)."
        raise InputError(reason, instance=b)
    return array.reshape(n * longest, -1)
