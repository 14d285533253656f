"""Weakly labelled images: moves of whole regions, the solver for approximate inference, reports of training."""

from __future__ import annotations

import numpy as np
import pytest

import mssvm as ms
from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Potentials, Query
from mssvm.core.topology import Batch, Topology
from mssvm.engines import engine_of
from mssvm.engines.messages import MessageModel
from mssvm.experiments.members import MEMBERS, Untrained
from mssvm.experiments.segmentation import N_WEIGHTS, noisy_images, picture
from mssvm.experiments.simulate import PartlyLabelled
from mssvm.inference.exact import Exact
from mssvm.inference.propagation.propagate import Propagate
from mssvm.objectives.training import TrainingProblem
from mssvm.optim import Outcome, Scaling, Subgradient

ROWS, COLUMNS = 4, 5


def grid(cards: tuple[int, ...], seed: int, strength: float = 1.0) -> tuple[Batch, Potentials]:
    at = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    pairs = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    edges = [(int(a), int(b)) for one, two in pairs for a, b in zip(one.ravel(), two.ravel(), strict=True)]
    batch = Batch.build([Topology(cards, tuple(edges))] * 2)
    rng = np.random.default_rng(seed)
    return batch, Potentials(rng.normal(size=batch.n_states), strength * rng.normal(size=batch.n_table_entries))


def loaded(batch: Batch, theta: Potentials, query: Query) -> MessageModel:
    return engine_of().messages(batch).load(theta, query, np.zeros(batch.n_states))


def joint_score(batch: Batch, theta: Potentials, z: Ints) -> Floats:
    """theta(z) of every instance, by an inference with all states given."""
    allowed = np.zeros(batch.n_states, dtype=bool)
    allowed[batch.unary_ptr[:-1] + z] = True
    query = Query(np.ones(batch.n_vars, dtype=bool), allowed)
    return Exact()(batch, theta, query, 0.0, 0.0).value


@pytest.mark.parametrize("seed", range(4))
def test_moves_of_regions_only_raise_the_score_and_end_where_no_single_move_gains(seed: int) -> None:
    cards = (2, 3, 2, 3, 3) * ROWS
    batch, theta = grid(cards, seed)
    rng = np.random.default_rng(seed + 10)
    output = rng.random(batch.n_vars) < 0.5
    allowed = np.ones(batch.n_states, dtype=bool)
    allowed[batch.unary_ptr[3]] = False  # a forbidden state
    allowed[batch.unary_ptr[7] + 1 : batch.unary_ptr[8]] = False  # a variable with one state
    query = Query(output, allowed)
    free = query.n_allowed(batch) > 1
    z = np.array([rng.integers(c) for c in batch.cards])
    z[3], z[7] = 1, 0
    before = joint_score(batch, theta, z)
    moved = loaded(batch, theta, query).relabel(np.arange(2), free, z)[0]
    after = joint_score(batch, theta, z)
    assert np.all(after[moved] > before[moved]) and len(moved) == 2
    assert z[7] == 0 and z[3] != 0
    for i in np.flatnonzero(free):
        for x in range(int(batch.cards[i])):
            if allowed[batch.unary_ptr[i] + x]:
                other = z.copy()
                other[i] = x
                assert np.all(joint_score(batch, theta, other) <= after + 1e-9)


def test_a_region_moves_although_no_variable_of_it_gains_alone() -> None:
    batch, _ = grid((3,) * ROWS * COLUMNS, 0)
    unary = np.tile([0.0, 0.3, 0.1], batch.n_vars)
    tables = np.tile(2.0 * np.eye(3).ravel(), batch.n_factors)
    here = loaded(batch, Potentials(unary, tables), Query.all_outputs(batch))
    z = np.zeros(batch.n_vars, dtype=np.int64)
    assert len(here.relabel(np.arange(2), np.ones(batch.n_vars, dtype=bool), z)[0]) == 2
    assert np.all(z == 1)


def test_messages_of_given_states_are_rows_and_columns_of_the_tables() -> None:
    batch, theta = grid((2, 3, 2, 3, 3) * ROWS, 5)
    z = np.zeros(batch.n_vars, dtype=np.int64)
    moved, sent = loaded(batch, theta, Query.all_outputs(batch)).relabel(
        np.arange(2), np.ones(batch.n_vars, dtype=bool), z
    )
    assert len(moved) == 2 and len(set(z.tolist())) > 1
    want = []
    for i, j, at in zip(*batch.scope_vars.reshape(-1, 2).T, batch.table_at, strict=True):
        shape = (int(batch.cards[i]), int(batch.cards[j]))
        table = theta.tables[at : at + shape[0] * shape[1]].reshape(shape)
        want += [table[:, z[j]] - table[:, z[j]].max(), table[z[i]] - table[z[i]].max()]
    np.testing.assert_allclose(sent, np.concatenate(want), atol=1e-14)


Images = tuple[PartlyLabelled, PartlyLabelled]


@pytest.fixture(scope="module")
def images() -> Images:
    first, second = np.random.default_rng(3).spawn(2)
    return noisy_images(picture("blocks"), 3, 1.0, 0.5, first), noisy_images(picture("blocks"), 3, 1.0, 0.5, second)


def posed(member: str, data: PartlyLabelled) -> TrainingProblem:
    """What a member's ``fit`` solves with fast propagation."""
    solver = Untrained()
    common = {"inference": Propagate("fast"), "init": np.zeros(N_WEIGHTS), "classes": range(5)}
    MEMBERS[member](ms.GraphModel(), solver=solver, **common).fit(data.X, data.y)
    assert isinstance(solver.problem, TrainingProblem)
    return solver.problem


def test_regions_find_outputs_of_higher_score_on_strongly_coupled_images(images: Images) -> None:
    problem = posed("M", images[0])
    sample = problem.sample
    w = np.concatenate([np.arange(5.0) * 0.5, -0.25 * np.arange(1.0, 6.0) ** 2, 3.0 * np.eye(5).ravel()])
    theta = problem.model.forward(w, sample.inputs)
    plain, regions = (
        Propagate("fast", starts=starts)(sample.batch, theta, sample.query, 0.0, 1.0)
        for starts in (("sum_first",), ("sum_first", "regions"))
    )
    assert np.all(regions.value >= plain.value) and np.any(regions.value > plain.value + 1.0)


@pytest.mark.parametrize("member", ["M", "L", "H"])
def test_training_lowers_the_objective_and_reports_converged_and_floored_calls(member: str, images: Images) -> None:
    problem = posed(member, images[0])
    w0 = 0.1 * np.random.default_rng(0).standard_normal(N_WEIGHTS)
    found = Subgradient(max_iter=30, rate=0.3, batch_size=1, scaling=Scaling.ADAM).minimize(problem, w0)
    assert found.outcome is Outcome.COMPLETED
    assert found.objective < 0.7 * found.trace[0].objective
    assert all(0.0 <= row.converged <= 1.0 for row in found.trace)
    assert all(a.floored <= b.floored for a, b in zip(found.trace[:-1], found.trace[1:], strict=True))
    assert np.all(problem.difference(found.w).values >= 0.0)


@pytest.mark.parametrize("effort", ["fast", "normal"])
def test_the_value_of_decoded_outputs_is_the_one_they_have_when_given(effort: str, images: Images) -> None:
    """Although hidden pixels have cycles: U+ and U- must agree where the labels are decoded."""
    problem = posed("M", images[0])
    sample = problem.sample
    theta = problem.model.forward(np.random.default_rng(1).standard_normal(N_WEIGHTS), sample.inputs)
    belief = Propagate(effort)(sample.batch, theta, sample.query, 0.0, 1.0)
    outputs = np.flatnonzero(sample.query.output)
    given = sample.query.clamp(sample.batch, outputs, belief.decode(sample.batch)[outputs])
    again = Propagate(effort)(sample.batch, theta, given, 0.0, 1.0)
    np.testing.assert_allclose(belief.value, again.value, rtol=1e-12)
    np.testing.assert_allclose(belief.mu.unary, again.mu.unary, atol=1e-9)
    np.testing.assert_allclose(belief.mu.tables, again.mu.tables, atol=1e-6)


def test_objectives_that_are_estimates_do_not_choose_and_may_be_evaluated_rarely(images: Images) -> None:
    problem = posed("H", images[0])
    w0 = 0.1 * np.random.default_rng(0).standard_normal(N_WEIGHTS)
    seen: dict[int, list[Floats]] = {1: [], 3: []}
    found = {}
    for every, weights in seen.items():
        solver = Subgradient(max_iter=4, rate=0.1, batch_size=1, scaling=Scaling.ADAM, evaluate_every=every)
        found[every] = solver.minimize(problem, w0, callback=lambda row, w, weights=weights: weights.append(w))
        # The mean over the last quarter is entered last, behind the last iterate.
        np.testing.assert_array_equal(found[every].w, weights[-1])
        assert np.any(weights[-1] != weights[-2])
    assert [len(weights) for weights in seen.values()] == [6, 4]
    np.testing.assert_array_equal(found[1].w, found[3].w)
    np.testing.assert_array_equal(seen[1][3], seen[3][1])


def test_the_estimator_learns_images_with_half_the_labels_without_settings(images: Images) -> None:
    def on_grid(data: PartlyLabelled) -> tuple[list[Floats], list[object]]:
        return [g.nodes.reshape(20, 40, 1) for g in data.X], [np.reshape(y, (20, 40)).tolist() for y in data.y]

    fitted = ms.MSSVM(ms.Grid(), max_iter=60, random_state=0).fit(*on_grid(images[0]))
    assert fitted.score(*on_grid(images[1].revealed())) > 0.9
    assert "of its calls converged" in fitted.diagnose()
    assert fitted.training_["floored"] == fitted.history_["floored"][-1]
