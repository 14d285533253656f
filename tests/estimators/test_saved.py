"""Models written by earlier versions load, and answer as they did when they were written (see tests/saved/make.py)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import mssvm as ms
from saved.make import EXPECTED, HERE, answers, data

KNOWN: dict[str, Any] = json.loads(EXPECTED.read_text("utf-8"))


def test_every_file_has_its_answers() -> None:
    assert sorted(path.stem for path in HERE.glob("*.safetensors")) == sorted(KNOWN)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_saved_model_answers_as_before(name: str) -> None:
    expected = KNOWN[name]
    model = ms.load(HERE / f"{name}.safetensors")
    assert type(model).__name__ == name.split(".")[0]
    found = answers(model, *data(expected["inputs"]))
    assert found["predict"] == expected["predict"]
    assert found["score"] == pytest.approx(expected["score"], abs=1e-12)
    for mine, theirs in zip(found["marginals"], expected["marginals"], strict=True):
        assert np.shape(mine) == np.shape(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)
