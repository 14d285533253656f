"""Files of factor models: UAI models, evidence, MAP-variable lists and solutions, and libDAI factor graphs.

A UAI model is ``MARKOV|BAYES n card_1..card_n m`` followed by m scopes (``k v_1..v_k``) and m tables
(``size value_1..value_size``, the last variable of the scope running fastest). ``#`` starts a comment.

A libDAI factor graph (``.fg``) is the number of factors, then per factor its variables, states and nonzero entries, the
first variable running fastest. Variables are named by any numbers; they are indexed here in increasing order of name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.uai.model import UaiModel
from mssvm.uai.tokens import Limits, Tokens

KINDS = ("MARKOV", "BAYES")


def read_model(path: str | Path, limits: Limits | None = None) -> UaiModel:
    """Read a model of either format: a UAI file starts with MARKOV or BAYES, a ``.fg`` file with a number."""
    tokens = Tokens.open(path, limits)
    first = tokens.peek()
    if first in KINDS:
        return _parse_uai(tokens)
    if first.isdigit():
        return _parse_fg(tokens)
    tokens.fail("a model starts with MARKOV, BAYES (UAI) or the number of factors (libDAI)", back=0)


def read_uai(path: str | Path, limits: Limits | None = None) -> UaiModel:
    """Read a UAI model, or raise one sentence with line and reason."""
    return _parse_uai(Tokens.open(path, limits))


def read_fg(path: str | Path, limits: Limits | None = None) -> UaiModel:
    """Read a libDAI factor graph, or raise one sentence with line and reason."""
    return _parse_fg(Tokens.open(path, limits))


def _parse_uai(tokens: Tokens) -> UaiModel:
    kind = tokens.word("the word MARKOV or BAYES")
    if kind not in KINDS:
        tokens.fail(f"a UAI model starts with MARKOV or BAYES, got {kind[:24]!r}")
    n = tokens.count("variables")
    cards = tuple(tokens.integer(f"the number of states of variable {i}", low=1) for i in range(n))
    if sum(cards) > tokens.limits.entries:
        tokens.fail(f"the variables have {sum(cards)} states together, more than the limit of {tokens.limits.entries}")
    m = tokens.count("factors")
    scopes = tuple(_scope(tokens, f, high=n - 1) for f in range(m))
    tables = tuple(_table(tokens, f, [cards[v] for v in scope]) for f, scope in enumerate(scopes))
    tokens.end()
    return UaiModel(cards, scopes, tables, kind)


def _scope(tokens: Tokens, f: int, high: int | None = None, tokens_each: int = 1) -> tuple[int, ...]:
    size = tokens.count(f"variables of factor {f}", tokens_each)
    scope = tuple(tokens.integer(f"a variable of factor {f}", high=high) for _ in range(size))
    if len(set(scope)) != size:
        tokens.fail(f"factor {f} names a variable twice")
    return scope


def _table(tokens: Tokens, f: int, shape: Sequence[int]) -> Floats:
    size = tokens.integer(f"the table size of factor {f}")
    needed = prod(shape)
    if size != needed:
        tokens.fail(f"the table of factor {f} should have {needed} values, {size} are declared")
    return tokens.numbers(size, f"the table of factor {f}")


def _parse_fg(tokens: Tokens) -> UaiModel:
    m = tokens.count("factors", tokens_each=2)
    names: list[tuple[int, ...]] = []
    tables: list[Floats] = []
    cards: dict[int, int] = {}
    entries_left = tokens.limits.entries
    for f in range(m):
        scope = _scope(tokens, f, tokens_each=2)
        shape = [_card(tokens, v, cards) for v in scope]
        size = prod(shape)
        entries_left -= size
        if entries_left < 0:
            limit = tokens.limits.entries
            tokens.fail(f"factor {f} has {size} entries, which takes all tables over the limit of {limit}")
        names.append(scope)
        tables.append(_sparse_table(tokens, f, size).reshape(shape[::-1]).transpose().ravel())
    tokens.end()
    labels = tuple(sorted(cards))
    index = {label: i for i, label in enumerate(labels)}
    scopes = tuple(tuple(index[v] for v in scope) for scope in names)
    return UaiModel(tuple(cards[v] for v in labels), scopes, tuple(tables), labels=labels)


def _card(tokens: Tokens, v: int, cards: dict[int, int]) -> int:
    """The number of states of variable v, which must agree with that of earlier factors (``cards``)."""
    card = tokens.integer(f"the number of states of variable {v}", low=1)
    if cards.setdefault(v, card) != card:
        tokens.fail(f"variable {v} has {card} states here and {cards[v]} in an earlier factor")
    return card


def _sparse_table(tokens: Tokens, f: int, size: int) -> Floats:
    nonzero = tokens.count(f"entries of factor {f}", tokens_each=2)
    table = np.zeros(size)
    for _ in range(nonzero):
        entry = tokens.integer(f"an entry of factor {f}", high=size - 1)
        table[entry] = tokens.numbers(1, f"the table of factor {f}")[0]
    return table


def read_evidence(path: str | Path, model: UaiModel, limits: Limits | None = None) -> dict[int, int]:
    """Read ``k v_1 s_1 .. v_k s_k``; the older form with a leading line ``1`` (one sample) is understood too."""
    tokens = Tokens.open(path, limits)
    # The plain form has an odd number of numbers, the older one an even number.
    if tokens.left % 2 == 0:
        tokens.integer("the number of evidence samples", low=1, high=1)
    k = tokens.count("observed variables", tokens_each=2)
    evidence: dict[int, int] = {}
    for _ in range(k):
        v = tokens.integer("an observed variable", high=model.n_vars - 1)
        state = tokens.integer(f"the state of variable {v}", high=model.cards[v] - 1)
        if evidence.setdefault(v, state) != state:
            tokens.fail(f"variable {v} is observed in two different states")
    tokens.end()
    return evidence


def read_query(path: str | Path, model: UaiModel, limits: Limits | None = None) -> tuple[int, ...]:
    """Read the MAP variables ``k v_1 .. v_k`` of a marginal-MAP task (``.query`` or ``.map``), in increasing order."""
    tokens = Tokens.open(path, limits)
    k = tokens.count("MAP variables")
    variables: set[int] = set()
    for _ in range(k):
        v = tokens.integer("a MAP variable", high=model.n_vars - 1)
        if v in variables:
            tokens.fail(f"MAP variable {v} is listed twice")
        variables.add(v)
    tokens.end()
    return tuple(sorted(variables))


def write_uai(path: str | Path, model: UaiModel) -> None:
    """Write a model; values are printed with all their digits, so reading gives the same numbers."""
    lines = [model.kind, str(model.n_vars), _join(model.cards), str(len(model.scopes))]
    lines += [_join((len(scope), *scope)) for scope in model.scopes]
    for table in model.tables:
        lines += [str(len(table)), " ".join(repr(float(x)) for x in table)]
    Path(path).write_text("\n".join(lines) + "\n", encoding="ascii")


def write_fg(path: str | Path, model: UaiModel) -> None:
    """Write a model; a variable that no factor names gets a factor of ones: the format has no other place for it."""
    named = {v for scope in model.scopes for v in scope}
    isolated = [v for v in range(model.n_vars) if v not in named]
    scopes = [*model.scopes, *((v,) for v in isolated)]
    tables = [*model.tables, *(np.ones(model.cards[v]) for v in isolated)]
    lines = [str(len(scopes))]
    for scope, table in zip(scopes, tables, strict=True):
        shape = [model.cards[v] for v in scope]
        values = np.ascontiguousarray(table.reshape(shape).transpose()).ravel()
        nonzero = np.flatnonzero(values)
        lines += ["", str(len(scope)), " ".join(str(model.labels[v]) for v in scope)]
        lines += [" ".join(str(card) for card in shape), str(len(nonzero))]
        lines += [f"{int(k)} {float(values[k])!r}" for k in nonzero]
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
    tokens = Tokens.open(path, limits)
    if tokens.word("the word MAR") != "MAR":
        tokens.fail("a MAR solution starts with the word MAR")
    n = tokens.count("variables", tokens_each=2)
    marginals = []
    for v in range(n):
        n_states = tokens.count(f"states of variable {v}")
        marginals.append(tokens.numbers(n_states, f"the marginal of {v}"))
    tokens.end()
    return marginals


def _join(numbers: Sequence[int] | tuple[int, ...]) -> str:
    return " ".join(str(x) for x in numbers)
