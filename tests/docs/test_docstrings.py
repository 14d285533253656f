"""Docstrings on the API page: parameters are definitions, formulas literal, examples examples, and prose is escaped."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "_ext"))

import house_docstrings

DOCSTRING = """1/2 |w|^2 and coef_ are escaped, ``code(x,
y_)`` is not.

    U(theta) = PS_y theta

Parameters
----------
eps_y, eps_h : float
    Temperatures of *both*,
    on two lines.
loss : "zero" or None

X is a list.

>>> 1 + 1
2
"""


def test_a_docstring_is_rendered() -> None:
    text = "\n".join(house_docstrings.rendered(DOCSTRING.splitlines()))
    assert r"1/2 \|w\|^2 and coef\_ are escaped, ``code(x, y_)`` is not." in text
    assert "::\n\n        U(theta) = PS_y theta" in text
    assert ".. rubric:: Parameters" in text and "----" not in text
    assert "**eps_y**, **eps_h** : float\n    Temperatures of \\*both\\*, on two lines." in text
    assert '**loss** : "zero" or None' in text
    assert text.rstrip().endswith("X is a list.\n\n\n>>> 1 + 1\n2")
