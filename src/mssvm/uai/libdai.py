"""libDAI factor graphs (``.fg``): the number of factors, then per factor its variables, states and nonzero entries.

The first variable of a factor runs fastest. Variables are named by any numbers; they are indexed here in increasing
order of name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.uai.files import KINDS, c_order, parse_uai
from mssvm.uai.model import FactorModel
from mssvm.uai.tokens import Limits, Tokens


def read_fg(path: str | Path, limits: Limits | None = None) -> FactorModel:
    """Read a libDAI factor graph, or raise one sentence with line and reason."""
    limits = limits or Limits()
    return parse_fg(Tokens.open(path, limits), limits)


def read_model(path: str | Path, limits: Limits | None = None) -> FactorModel:
    """Read a model of either format: a UAI file starts with MARKOV or BAYES, a ``.fg`` file with a number."""
    limits = limits or Limits()
    tokens = Tokens.open(path, limits)
    first = tokens.peek()
    if first in KINDS:
        return parse_uai(tokens, limits)
    if first.isdigit():
        return parse_fg(tokens, limits)
    tokens.fail("a model starts with MARKOV, BAYES (UAI) or the number of factors (libDAI)", back=0)


def parse_fg(tokens: Tokens, limits: Limits) -> FactorModel:
    m = tokens.count("factors", tokens_each=2)
    names: list[tuple[int, ...]] = []
    tables: list[Floats] = []
    cards: dict[int, int] = {}
    room = limits.entries
    for f in range(m):
        scope, shape = _scope(tokens, f, cards)
        size = 1
        for card in shape:
            size *= card
        room -= size
        if room < 0:
            tokens.fail(f"factor {f} has {size} entries, which takes all tables over the limit of {limits.entries}")
        names.append(scope)
        tables.append(c_order(_table(tokens, f, size), shape))
    tokens.end()
    labels = tuple(sorted(cards))
    index = {label: i for i, label in enumerate(labels)}
    scopes = tuple(tuple(index[v] for v in scope) for scope in names)
    return FactorModel(tuple(cards[v] for v in labels), scopes, tuple(tables), labels=labels)


def _scope(tokens: Tokens, f: int, cards: dict[int, int]) -> tuple[tuple[int, ...], list[int]]:
    k = tokens.count(f"variables of factor {f}", tokens_each=2)
    scope = tuple(tokens.integer(f"a variable of factor {f}") for _ in range(k))
    if len(set(scope)) != k:
        tokens.fail(f"factor {f} names a variable twice")
    shape = []
    for v in scope:
        card = tokens.integer(f"the number of states of variable {v}", low=1)
        if cards.setdefault(v, card) != card:
            tokens.fail(f"variable {v} has {card} states here and {cards[v]} in an earlier factor")
        shape.append(card)
    return scope, shape


def _table(tokens: Tokens, f: int, size: int) -> Floats:
    nonzero = tokens.count(f"entries of factor {f}", tokens_each=2)
    table = np.zeros(size)
    for _ in range(nonzero):
        at = tokens.integer(f"an entry of factor {f}", high=size - 1)
        table[at] = tokens.numbers(1, f"the table of factor {f}")[0]
    return table


def write_fg(path: str | Path, model: FactorModel) -> None:
    """Write a model; a variable that no factor names gets a factor of ones: the format has no other place for it."""
    named = {v for scope in model.scopes for v in scope}
    lonely = [v for v in range(model.n_vars) if v not in named]
    scopes = [*model.scopes, *((v,) for v in lonely)]
    tables = [*model.tables, *(np.ones(model.cards[v]) for v in lonely)]
    lines = [str(len(scopes))]
    for scope, table in zip(scopes, tables, strict=True):
        shape = [model.cards[v] for v in scope]
        values = np.ascontiguousarray(table.reshape(shape).transpose()).ravel()
        kept = np.flatnonzero(values)
        lines += ["", str(len(scope)), " ".join(str(model.labels[v]) for v in scope)]
        lines += [" ".join(str(card) for card in shape), str(len(kept))]
        lines += [f"{int(k)} {float(values[k])!r}" for k in kept]
    Path(path).write_text("\n".join(lines) + "\n", encoding="ascii")
