"""The protocol of the experiments: settings read from ``protocol.toml``, and solvers built from them."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from mssvm.core.errors import InputError
from mssvm.experiments.members import Arena
from mssvm.experiments.simulate import Recipe, checkerboard, hidden_chain
from mssvm.inference.exact import Exact
from mssvm.optim import BCFW, CCCP, LBFGS, Solver, Subgradient
from mssvm.optim.subgradient import Stopping


@dataclass(frozen=True, eq=False)
class Protocol:
    """All settings of a run. ``settings(name)`` are those of one experiment, quick ones where asked."""

    tree: dict[str, Any]
    quick: bool = False
    trials: int | None = None
    data: Path | None = None

    @classmethod
    def load(
        cls, quick: bool = False, trials: int | None = None, seed: int | None = None, data: Path | None = None
    ) -> Protocol:
        """The protocol shipped with the package; ``trials`` and ``seed`` override it."""
        if trials is not None and trials < 2:
            raise InputError(f"trials must be at least 2, got {trials}: standard errors need two.")
        tree = tomllib.loads(files("mssvm.experiments").joinpath("protocol.toml").read_text("utf-8"))
        return cls(tree if seed is None else tree | {"seed": seed}, quick, trials, data)

    @property
    def seed(self) -> int:
        return int(self.tree["seed"])

    @property
    def C(self) -> float:
        return float(self.tree["C"])

    @property
    def initial_std(self) -> float:
        return float(self.tree["initial_std"])

    @property
    def confidence(self) -> float:
        return float(self.tree["verdict"]["confidence"])

    @property
    def minimum_trials(self) -> int:
        return int(self.tree["verdict"]["minimum_trials"])

    def settings(self, name: str) -> dict[str, Any]:
        own: dict[str, Any] = self.tree[name]
        return {k: v for k, v in own.items() if k != "quick"} | (own.get("quick", {}) if self.quick else {})

    def n_trials(self, name: str, part: str | None = None) -> int:
        """Trials of an experiment, or of one part of it."""
        if self.trials is not None:
            return self.trials
        given = self.settings(name)["trials"]
        return int(given[part] if part is not None else given)

    def recipe(self, reading: str, **changes: Any) -> Recipe:
        """The generator's settings under a reading of the paper."""
        if reading not in self.tree["readings"]:
            raise InputError(f"reading {reading!r} is unknown; the protocol has {', '.join(self.tree['readings'])}.")
        data = {k: self.tree["data"][k] for k in ("sigma_x", "sigma_y", "sigma_h", "n_states", "n_train", "n_test")}
        return Recipe(**(data | self.tree["readings"][reading] | changes))

    def chain(self, experiment: str, params: dict[str, Any], n_sites: int | None = None, **changes: Any) -> Arena:
        """A new hidden chain with data and initial weights, drawn from the trial's own stream."""
        rng = self.generator(experiment, params["trial"])
        simulation = hidden_chain(
            rng, self.recipe(params["reading"], **changes), n_sites or self.tree["data"]["chain_sites"]
        )
        return Arena.of(simulation, self.initial_std, Exact(), self.C, rng)

    def grid(self, experiment: str, params: dict[str, Any]) -> Arena:
        """A new checkerboard, likewise."""
        rng, data = self.generator(experiment, params["trial"]), self.tree["data"]
        simulation = checkerboard(rng, self.recipe(params["reading"]), data["grid_rows"], data["grid_columns"])
        return Arena.of(simulation, self.initial_std, Exact(), self.C, rng)

    def generator(self, experiment: str, trial: int) -> np.random.Generator:
        """The stream of one trial, independent of all others."""
        return np.random.default_rng([self.seed, crc32(experiment.encode()), trial])

    def solver(self, graph: str, name: str, member: str) -> Solver[Any]:
        """The solver of one cell; members without a rate of their own use MSSVM's."""
        spec = self.tree["solvers"][graph][name]
        match spec["kind"]:
            case "subgradient":
                return Subgradient.literal(_own(spec["rate"], member), int(_own(spec["steps"], member)))
            case "printed cccp":
                stopping = Stopping(spec.get("stopping", "printed"))
                gradient = spec.get("gradient", 0.0)
                return CCCP.printed(_own(spec["rate"], member), spec["outer"], spec["inner"], gradient, stopping)
            case "cccp":
                inner = BCFW(max_passes=spec["passes"])
                return CCCP(inner, max_outer=spec["outer"], tolerance=spec["tolerance"])
            case "lbfgs":
                return LBFGS(schedule=tuple(spec["floors"]), max_iterations=spec["iterations"])
        raise InputError(f"solver {name!r} of the protocol has the unknown kind {spec['kind']!r}.")

    def fingerprint(self, name: str, params: dict[str, Any]) -> str:
        """Changes whenever a setting that can change this trial does; not with the number of trials, nor with lists of
        which one entry is the trial's own (``solvers`` where a trial has its ``solver``)."""
        own = {k: v for k, v in self.settings(name).items() if k != "trials" and k.removesuffix("s") not in params}
        common = {k: self.tree[k] for k in ("seed", "C", "initial_std", "data")}
        specs = self.tree["solvers"][params.get("graph", "chain")]
        used = [specs.get(name) for name in (params.get("solver", own.get("solver")), *own.get("call_solvers", []))]
        used.append(self.tree["readings"].get(params.get("reading")))
        text = json.dumps([own, common, used], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _own(by_member: dict[str, float], member: str) -> float:
    return float(by_member.get(member, by_member["M"]))
