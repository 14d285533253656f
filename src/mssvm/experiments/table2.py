"""Table 2: MSSVM, LSSVM and HCRF by several solvers on the hidden chain and the checkerboard grid."""

from __future__ import annotations

from mssvm.experiments.members import Arena
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.simulate import checkerboard, hidden_chain
from mssvm.experiments.trials import Params, Result, generator
from mssvm.inference.exact import Exact

NAME = "table2"


def tasks(protocol: Protocol) -> list[Params]:
    """Every graph, reading, solver and trial; all members are in one task."""
    settings = protocol.settings(NAME)
    return [
        {"graph": graph, "solver": solver, "reading": reading, "trial": trial}
        for graph, solvers in settings["solvers"].items()
        for solver in solvers
        for trial in range(protocol.n_trials(NAME, graph))
        for reading in settings["readings"]
    ]


def draw(protocol: Protocol, params: Params) -> Arena:
    """Data and initial weights of a trial; the same for every solver."""
    rng = generator(protocol, NAME, params["trial"])
    data, recipe = protocol.tree["data"], protocol.recipe(params["reading"])
    if params["graph"] == "chain":
        simulation = hidden_chain(rng, recipe, data["chain_sites"])
    else:
        simulation = checkerboard(rng, recipe, data["grid_rows"], data["grid_columns"])
    w0 = protocol.initial_std * rng.standard_normal(simulation.model.n_weights)
    return Arena(simulation, w0, Exact(), protocol.C)


def run(protocol: Protocol, params: Params) -> Result:
    """Accuracy, objective and inference calls of every member."""
    arena = draw(protocol, params)
    result: Result = {"bayes": arena.bayes()}
    for member in protocol.settings(NAME)["members"]:
        solution = arena.train(member, protocol.solver(params["graph"], params["solver"], member))
        last = solution.trace[-1]
        result[member] = {
            "accuracy": arena.accuracy(member, solution.w),
            "objective": solution.objective,
            "calls": last.plus_calls + last.minus_calls,
            "outcome": solution.outcome.value,
        }
    return result
