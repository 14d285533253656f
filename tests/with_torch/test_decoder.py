"""Best labels and marginals in exportable operators against the layer's exact inference, and against all labellings."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import mssvm as ms
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.torch import ChainDecoder, StructuredLoss
from mssvm.torch.recursions import best_paths, power_sum, site_marginals

K = 3
TAGS = ["O", "B-x", "I-x"]
LENGTHS = (6, 1, 4, 0, 2)


class Case(NamedTuple):
    """A chain, the temperature of its hidden variables, and whether links have scores of their own."""

    structure: ms.Chain
    eps_h: float = 1.0
    own: bool = False


CASES = {
    "plain": Case(ms.Chain()),
    "own tables": Case(ms.Chain(), own=True),
    "ends": Case(ms.Chain(ends=True)),
    "forbidden": Case(ms.Chain(forbidden=[(0, 2), (2, 1), (None, 2), (1, None)])),
    "forced": Case(ms.Chain(forced={0: [1, 2]}, ends=True)),
    "hidden at 1": Case(ms.Chain(hidden=2)),
    "hidden at 0": Case(ms.Chain(hidden=2), eps_h=0.0),
    "hidden at .3": Case(ms.Chain(hidden=4), eps_h=0.3, own=True),
    "hidden and direct": Case(ms.Chain(hidden=2, direct=True, ends=True), own=True),
    "hidden and forbidden": Case(ms.Chain(hidden=2, forbidden=[(0, 2), (None, 2)]), own=True),
    "linked": Case(ms.Chain(hidden=2, linked=True), eps_h=0.0),
    "linked and direct": Case(ms.Chain(hidden=2, linked=True, direct=True, forbidden=[(0, 2)]), eps_h=0.0, own=True),
}


def scores_of(case: Case, lengths: tuple[int, ...], strength: float, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random scores of all groups, in padded tensors."""
    generator = torch.Generator().manual_seed(seed)
    n = len(lengths)
    sites = max(lengths)
    chain = case.structure
    links = (n, sites - 1) if case.own else ()
    shapes: dict[str, tuple[int, ...]] = {"node": (n, sites, K)}
    if not chain.hidden or chain.direct:
        shapes["edge"] = (*links, K, K)
    if chain.ends:
        shapes |= {"first": (K,), "last": (K,)}
    if chain.hidden and chain.linked:
        shapes |= {"hidden": (n, sites, chain.hidden), "attach": (K, chain.hidden)}
        shapes["hidden.edge"] = (*links, chain.hidden, chain.hidden)
    elif chain.hidden:
        shapes |= {"left": (K, chain.hidden), "right": (chain.hidden, K), "between": (n, sites - 1, chain.hidden)}
    made = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return {name: strength * value for name, value in made.items()}


@pytest.mark.parametrize("strength", [1.0, 300.0, 3e4])
@pytest.mark.parametrize("name", CASES)
def test_the_answers_are_the_layers(name: str, strength: float) -> None:
    case = CASES[name]
    layer = StructuredLoss(case.structure, 0.0, case.eps_h)
    decoder = ChainDecoder(case.structure, K, case.eps_h)
    for seed in range(4):
        scores = scores_of(case, LENGTHS, strength, seed)
        lengths = torch.tensor(LENGTHS)
        labels, marginals = decoder(scores, lengths)
        assert torch.equal(labels, layer.decode(scores, lengths=lengths))
        torch.testing.assert_close(marginals, layer.marginals(scores, lengths=lengths), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("eps_h", [0.0, 0.5, 1.0])
def test_marginals_at_other_temperatures_are_those_of_all_labellings(eps_h: float) -> None:
    case = Case(ms.Chain(hidden=3))
    scores = scores_of(case, (4,), 1.0)
    temperatures = (0.7, 0.7 * eps_h)
    found = ChainDecoder(case.structure, K, temperatures=temperatures)(scores, torch.tensor([4]))[1][0]
    total = torch.zeros(4, K, dtype=torch.float64)
    for labels in product(range(K), repeat=4):
        value = sum(scores["node"][0, t, label] for t, label in enumerate(labels))
        for t in range(3):
            through = scores["left"][labels[t]] + scores["right"][:, labels[t + 1]] + scores["between"][0, t]
            value = value + power_sum(through, 0, temperatures[1])
        for t, label in enumerate(labels):
            total[t, label] += torch.exp(value / temperatures[0])
    torch.testing.assert_close(found, total / total.sum(dim=1, keepdim=True))


def test_forbidden_scores_may_come_from_the_network() -> None:
    case = CASES["own tables"]
    scores = scores_of(case, (5, 3), 1.0)
    scores["node"][:, 1, 0] = -torch.inf
    scores["edge"][:, :, 1, 1] = -torch.inf
    lengths = torch.tensor([5, 3])
    layer = StructuredLoss(case.structure, 0.0, 1.0)
    labels, marginals = ChainDecoder(case.structure, K)(scores, lengths)
    assert torch.equal(labels, layer.decode(scores, lengths=lengths))
    torch.testing.assert_close(marginals, layer.marginals(scores, lengths=lengths))


def test_padding_may_hold_anything() -> None:
    case = CASES["own tables"]
    scores = scores_of(case, (5, 2), 1.0)
    want = ChainDecoder(case.structure, K)(scores, torch.tensor([5, 2]))
    scores["node"][1, 2:] = torch.nan
    scores["edge"][1, 1:] = torch.nan
    for found, expected in zip(ChainDecoder(case.structure, K)(scores, torch.tensor([5, 2])), want, strict=True):
        assert torch.equal(found, expected)


def is_legal(tags: tuple[str, ...]) -> bool:
    return all(tag != "I-x" or (t > 0 and tags[t - 1] != "O") for t, tag in enumerate(tags))


def test_marginal_decoding_keeps_what_is_forbidden() -> None:
    """The largest sum of probabilities among the legal labellings, by all of them."""
    structure = ms.Chain(forbidden="bio")
    legal = [tags for tags in product(TAGS, repeat=5) if is_legal(tags)]
    decoder = ChainDecoder(structure, TAGS, decode="marginal")
    for seed in range(20):
        scores = scores_of(Case(structure), (5,), 2.0, seed)
        labels, marginals = decoder(scores, torch.tensor([5]))
        sums = [sum(marginals[0, t, TAGS.index(tag)].item() for t, tag in enumerate(tags)) for tags in legal]
        assert tuple(TAGS[k] for k in labels[0]) == legal[int(np.argmax(sums))]


def test_long_chains_keep_their_digits_in_single_precision() -> None:
    scores = scores_of(CASES["plain"], (5000,), 3.0)
    lengths = torch.tensor([5000])
    single = {name: value.float() for name, value in scores.items()}
    exact = ChainDecoder(ms.Chain(), K)(scores, lengths)
    found = ChainDecoder(ms.Chain(), K)(single, lengths)
    assert torch.equal(found[0], exact[0])
    torch.testing.assert_close(found[1].double(), exact[1], rtol=1e-4, atol=1e-5)


def test_half_precision_is_computed_in_single() -> None:
    scores = {name: value.half() for name, value in scores_of(CASES["plain"], (3,), 1.0).items()}
    assert ChainDecoder(ms.Chain(), K)(scores)[1].dtype == torch.float32


def test_chains_without_sites() -> None:
    labels, marginals = ChainDecoder(ms.Chain(), K)({"node": torch.zeros(2, 0, K), "edge": torch.zeros(K, K)})
    assert labels.shape == (2, 0) and marginals.shape == (2, 0, K)


def test_recursions_of_one_state() -> None:
    node = torch.zeros(1, 3, 1)
    assert best_paths(node, torch.zeros(1, 1), torch.tensor([3])).tolist() == [[0, 0, 0]]
    assert site_marginals(node, torch.zeros(1, 1), torch.tensor([3])).tolist() == [[[1.0], [1.0], [1.0]]]


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: ChainDecoder(ms.Grid(), K), "only chains"),
        (lambda: ChainDecoder(ms.Chain(hidden=2, linked=True), K), "use decode='marginal', eps_h=0"),
        (lambda: ChainDecoder(ms.Chain(hidden=2, linked=True), K, 0.0, (1.0, 0.0)), "another temperature"),
        (lambda: ChainDecoder(ms.Chain(order=2), K), "first order"),
        (lambda: ChainDecoder(ms.Chain(), K, temperatures=(0.0, 0.0)), "above zero"),
        (lambda: ChainDecoder(ms.Chain(), K, decode="best"), "'map' or 'marginal'"),
        (lambda: ChainDecoder(ms.Chain(), K)({"node": torch.zeros(1, 2, 4)}), "shape"),
        (lambda: ChainDecoder(ms.Chain(), K)({"node": torch.zeros(1, 2, K)}), "lack the group 'edge'"),
    ],
)
def test_what_has_no_recursion_is_refused_in_a_sentence(build: Any, sentence: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=sentence):
        build()


def test_scores_behind_the_last_site_are_not_read() -> None:
    case = CASES["hidden and direct"]
    scores = scores_of(case, (5, 2), 1.0)
    lengths = torch.tensor([5, 2])
    want = ChainDecoder(case.structure, K)(scores, lengths)
    more = {**scores}
    for name in ("edge", "between"):
        more[name] = torch.cat([scores[name], torch.full_like(scores[name][:, :1], 9.0)], dim=1)
    for found, expected in zip(ChainDecoder(case.structure, K)(more, lengths), want, strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(StructuredLoss(case.structure).decode(more, lengths=lengths), want[0])
