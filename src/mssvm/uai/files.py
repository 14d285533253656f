"""UAI files: MARKOV and BAYES models, evidence, MAP-variable lists and solutions.

A model is ``MARKOV|BAYES n card_1..card_n m`` followed by m scopes (``k v_1..v_k``) and m tables
(``size value_1..value_size``, the last variable of the scope running fastest). ``#`` starts a comment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.uai.model import FactorModel
from mssvm.uai.tokens import Limits, Tokens

KINDS = ("MARKOV", "BAYES")


def read_uai(path: str | Path, limits: Limits | None = None) -> FactorModel:
    """Read a UAI model, or raise one sentence with line and reason."""
    limits = limits or Limits()
    return parse_uai(Tokens.open(path, limits), limits)


def parse_uai(tokens: Tokens, limits: Limits) -> FactorModel:
    kind = tokens.word("the word MARKOV or BAYES")
    if kind not in KINDS:
        tokens.fail(f"a UAI model starts with MARKOV or BAYES, got {kind[:24]!r}")
    n = tokens.count("variables")
    cards = tuple(tokens.integer(f"the number of states of variable {i}", low=1) for i in range(n))
    if sum(cards) > limits.entries:
        tokens.fail(f"the variables have {sum(cards)} states together, more than the limit of {limits.entries}")
    m = tokens.count("factors")
    scopes = tuple(_scope(tokens, f, n) for f in range(m))
    tables = tuple(_table(tokens, f, [cards[v] for v in scope]) for f, scope in enumerate(scopes))
    tokens.end()
    return FactorModel(cards, scopes, tables, kind)


def _scope(tokens: Tokens, f: int, n: int) -> tuple[int, ...]:
    size = tokens.count(f"variables of factor {f}")
    scope = tuple(tokens.integer(f"a variable of factor {f}", high=n - 1) for _ in range(size))
    if len(set(scope)) != size:
        tokens.fail(f"factor {f} names a variable twice")
    return scope


def _table(tokens: Tokens, f: int, shape: Sequence[int]) -> Floats:
    size = tokens.integer(f"the table size of factor {f}")
    needed = 1
    for card in shape:
        needed *= card
    if size != needed:
        tokens.fail(f"the table of factor {f} should have {needed} values, {size} are declared")
    return tokens.numbers(size, f"the table of factor {f}")


def read_evidence(path: str | Path, model: FactorModel, limits: Limits | None = None) -> dict[int, int]:
    """Read ``k v_1 s_1 .. v_k s_k``; the older form with a leading line ``1`` (one sample) is understood too."""
    tokens = Tokens.open(path, limits or Limits())
    # The plain form has an odd number of numbers, the older one an even number.
    if tokens.left % 2 == 0:
        tokens.integer("the number of evidence samples", low=1, high=1)
    k = tokens.count("observed variables", tokens_each=2)
    found: dict[int, int] = {}
    for _ in range(k):
        v = tokens.integer("an observed variable", high=model.n_vars - 1)
        state = tokens.integer(f"the state of variable {v}", high=model.cards[v] - 1)
        if found.setdefault(v, state) != state:
            tokens.fail(f"variable {v} is observed in two different states")
    tokens.end()
    return found


def read_query(path: str | Path, model: FactorModel, limits: Limits | None = None) -> tuple[int, ...]:
    """Read the MAP variables ``k v_1 .. v_k`` of a marginal-MAP task (``.query`` or ``.map``), in increasing order."""
    tokens = Tokens.open(path, limits or Limits())
    k = tokens.count("MAP variables")
    found: set[int] = set()
    for _ in range(k):
        v = tokens.integer("a MAP variable", high=model.n_vars - 1)
        if v in found:
            tokens.fail(f"MAP variable {v} is listed twice")
        found.add(v)
    tokens.end()
    return tuple(sorted(found))


def write_uai(path: str | Path, model: FactorModel) -> None:
    """Write a model; values are printed with all their digits, so reading gives the same numbers."""
    lines = [model.kind, str(model.n_vars), _join(model.cards), str(len(model.scopes))]
    lines += [_join((len(scope), *scope)) for scope in model.scopes]
    for table in model.tables:
        lines += [str(len(table)), " ".join(repr(float(x)) for x in table)]
    Path(path).write_text("\n".join(lines) + "\n", encoding="ascii")


def write_evidence(path: str | Path, evidence: Mapping[int, int]) -> None:
    pairs = [number for v, state in sorted(evidence.items()) for number in (v, state)]
    Path(path).write_text(_join((len(evidence), *pairs)) + "\n", encoding="ascii")


def write_query(path: str | Path, variables: Sequence[int]) -> None:
    Path(path).write_text("\n".join(str(v) for v in (len(variables), *variables)) + "\n", encoding="ascii")


def format_pr(value_log10: float) -> str:
    return f"PR\n{value_log10:.10g}"


def format_mar(marginals: Sequence[Floats]) -> str:
    blocks = [f"{len(p)} " + " ".join(f"{x:.9g}" for x in p) for p in marginals]
    return "MAR\n" + " ".join([str(len(marginals)), *blocks])


def format_map(states: Sequence[int] | Ints) -> str:
    return "MAP\n" + _join((len(states), *(int(s) for s in states)))


def format_mmap(assignment: Sequence[tuple[int, int]]) -> str:
    return "MMAP\n" + _join((len(assignment), *(number for pair in assignment for number in pair)))


def read_mar(path: str | Path, limits: Limits | None = None) -> list[Floats]:
    """Read a MAR solution: one marginal per variable."""
    tokens = Tokens.open(path, limits or Limits())
    if tokens.word("the word MAR") != "MAR":
        tokens.fail("a MAR solution starts with the word MAR")
    n = tokens.count("variables", tokens_each=2)
    out = [tokens.numbers(tokens.count(f"states of variable {v}"), f"the marginal of {v}") for v in range(n)]
    tokens.end()
    return out


def _join(numbers: Sequence[int] | tuple[int, ...]) -> str:
    return " ".join(str(x) for x in numbers)


def c_order(values: Floats, shape: Sequence[int]) -> Floats:
    """A table whose first variable runs fastest, as one whose last does."""
    return np.ascontiguousarray(values.reshape(tuple(shape), order="F")).ravel()
