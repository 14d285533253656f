"""The boundary of the compiled library: fields of records, and refusals with a sentence."""

from __future__ import annotations

import numpy as np
import pytest

from mssvm.core import library
from mssvm.core.errors import MssvmError
from mssvm.core.library import FLOATS, INT, INTS, Function, RecordType
from mssvm.engines.native import features

FLOAT_ROWS = np.zeros(6)
NO_FLOATS, NO_INTS = np.zeros(0), np.zeros(0, dtype=np.int64)


def term(**changes: object) -> library.Record:
    """A sound dense term of three rows with two features, two states wide, at scores 0, 2 and 4."""
    fields: dict[str, object] = {
        "layout": features.DENSE,
        "on_unary": 1,
        "rows": 3,
        "features": 2,
        "width": 2,
        "one_block": 1,
        "x": FLOAT_ROWS,
        "at": np.array([0, 2, 4]),
        "at_narrow": features.NO_SHORTS,
        "block": np.array([0]),
        "indices": NO_INTS,
        "indices_narrow": features.NO_SHORTS,
        "indptr": NO_INTS,
        "indptr_narrow": features.NO_SHORTS,
        "active_first": NO_INTS,
        "active_states": NO_INTS,
    }
    return features.TERM(**(fields | changes))


def check(record: library.Record, states: int = 6) -> int:
    """Check a model of one term, which outlives the call."""
    terms = np.array([record.address])
    model = features.MODEL(terms=terms, weights=4, states=6, entries=0, packed_from=0)
    model.set("states", states)
    return features.CHECK.run(model)


def test_a_sound_model_is_accepted() -> None:
    assert check(term()) == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layout": 7}, "unknown layout"),
        ({"rows": -1}, "negative size"),
        ({"at": np.array([0, 2])}, "one target for every row"),
        ({"at": np.array([0, 2, 5])}, "beyond the scores"),
        ({"x": np.zeros(5)}, "rows times features"),
        ({"block": np.array([1])}, "beyond the weights"),
        ({"block": np.array([-1])}, "negative place"),
        ({"one_block": 0}, "block of weights for every row"),
        ({"layout": features.SPARSE}, "rows . 1 pointers"),
        ({"layout": features.SPARSE, "indptr": np.array([0, 1, 1, 1]), "indices": np.array([2])}, "index for every"),
        (
            {"layout": features.SPARSE, "indptr": np.array([0, 1, 1, 1]), "indices": np.array([2]), "x": np.ones(1)},
            "no feature",
        ),
    ],
)
def test_an_unsound_term_is_refused_with_a_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(MssvmError, match=sentence):
        check(term(**changes))


def test_a_record_of_another_size_is_refused() -> None:
    other = RecordType("Model", {"terms": INTS, "weights": INT})
    with pytest.raises(MssvmError, match="Python files and library differ"):
        features.CHECK.run(other(terms=NO_INTS, weights=1))


@pytest.mark.parametrize(
    "value", [np.zeros(3, dtype=np.float32), np.zeros((3, 2))[:, 0], [1.0, 2.0], np.zeros(3, dtype=np.int64)]
)
def test_arrays_are_never_converted_in_silence(value: object) -> None:
    with pytest.raises(TypeError, match="contiguous array of float64"):
        FLOATS.encode("scores", value)


def test_fields_must_be_those_of_the_record() -> None:
    with pytest.raises(TypeError, match="needs the field 'weights'"):
        features.MODEL(terms=NO_INTS)
    with pytest.raises(TypeError, match="has no field colour"):
        features.MODEL(terms=NO_INTS, weights=0, states=0, entries=0, packed_from=0, colour=3)


def test_a_nested_record_must_be_of_its_kind() -> None:
    with pytest.raises(TypeError, match="model must be a record"):
        features.FORWARD(
            model=term(),
            w=NO_FLOATS,
            offset_unary=NO_FLOATS,
            offset_tables=NO_FLOATS,
            unary=NO_FLOATS,
            tables=NO_FLOATS,
        )


def test_fields_can_be_set_again() -> None:
    with pytest.raises(MssvmError, match="beyond the scores"):
        check(term(), states=5)


def test_a_symbol_that_is_not_there() -> None:
    with pytest.raises(AttributeError):
        Function("mssvm_no_such_function", n=INT)(n=1)


def test_the_chosen_variant_is_one_of_this_processor() -> None:
    assert library.available()
    assert library.lanes() in (2, 4, 8)
