"""The protocol of the experiments: the settings of ``protocol.toml``, and the data, solvers and inference from them."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from mssvm.core.errors import InputError
from mssvm.experiments.lbfgs import ScipyLBFGS
from mssvm.experiments.members import Arena
from mssvm.experiments.simulate import Recipe, checkerboard, hidden_chain
from mssvm.inference.base import Inference
from mssvm.inference.exact import Exact
from mssvm.inference.propagation.propagate import Propagate
from mssvm.optim import BCFW, CCCP, Solver, Subgradient
from mssvm.optim.subgradient import Scaling, Stopping

Params = dict[str, Any]
"""The parameters that identify one trial of an experiment."""


@dataclass(frozen=True, eq=False)
class Protocol:
    """All settings of a run. ``settings(name)`` are those of one experiment; with ``quick``, its smaller ones."""

    tree: dict[str, Any]
    quick: bool = False
    trials: int | None = None
    data: tuple[Path, ...] = ()

    @classmethod
    def load(
        cls, quick: bool = False, trials: int | None = None, seed: int | None = None, data: Sequence[Path] = ()
    ) -> Protocol:
        """The protocol shipped with the package; ``trials`` and ``seed`` override it."""
        if trials is not None and trials < 2:
            raise InputError(f"trials must be at least 2, got {trials}: standard errors need two.")
        for folder in data:
            if not folder.is_dir():
                raise InputError(f"{folder} is not a folder; name the folder of the MSRC images.")
        tree = tomllib.loads(files("mssvm.experiments").joinpath("protocol.toml").read_text("utf-8"))
        return cls(tree if seed is None else tree | {"seed": seed}, quick, trials, tuple(data))

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

    @property
    def decode(self) -> str:
        """The decoder of all members."""
        return str(self.tree["pinned"]["decoding"]["decode"])

    def settings(self, name: str) -> dict[str, Any]:
        settings = dict(self.tree[name])
        quick = settings.pop("quick", {})
        if self.quick:
            settings |= quick
        return settings

    def n_trials(self, name: str, part: str | None = None) -> int:
        """Trials of an experiment, or of one part of it."""
        if self.trials is not None:
            return self.trials
        trials = self.settings(name)["trials"]
        if part is not None:
            trials = trials[part]
        return int(trials)

    def recipe(self, reading: str, **changes: Any) -> Recipe:
        """The generator's settings under a reading of the paper."""
        if reading not in self.tree["readings"]:
            raise InputError(f"reading {reading!r} is unknown; the protocol has {', '.join(self.tree['readings'])}.")
        data = {k: self.tree["data"][k] for k in ("sigma_x", "sigma_y", "sigma_h", "n_states", "n_train", "n_test")}
        return Recipe(**(data | self.tree["readings"][reading] | changes))

    def arena(self, name: str, params: Params, **changes: Any) -> Arena:
        """A new model with data and initial weights, drawn from the stream of the trial: a checkerboard if the graph is
        "grid", otherwise the hidden chain. ``changes`` are to the generator's settings and ``n_sites``."""
        rng = self.generator(name, params["trial"])
        data = self.tree["data"]
        n_sites = changes.pop("n_sites", data["chain_sites"])
        recipe = self.recipe(params["reading"], **changes)
        if params.get("graph") == "grid":
            simulation = checkerboard(rng, recipe, data["grid_rows"], data["grid_columns"])
        else:
            simulation = hidden_chain(rng, recipe, n_sites)
        exact = self.inference("exact")
        own = self.tree["pinned"]["members"]
        scale = params.get("scale", self.initial_std)
        return Arena.of(simulation, scale, rng, exact, C=self.C, own=own, decode=self.decode)

    def generator(self, experiment: str, trial: int) -> np.random.Generator:
        """The stream of one trial, independent of all others."""
        return np.random.default_rng([self.seed, crc32(experiment.encode()), trial])

    def train(self, name: str, arena: Arena, solver: str, graph: str = "chain") -> Iterator[tuple[str, Any]]:
        """Every member of an experiment in turn, trained by the named solver."""
        for member in self.settings(name)["members"]:
            yield member, arena.fit(member, self.solver(graph, solver, member))

    def solver(self, graph: str, name: str, member: str) -> Solver[Any]:
        """The solver of one cell; members without a rate of their own use MSSVM's."""
        spec = self.tree["solvers"][graph][name]
        pinned = self.tree["pinned"]
        match spec["kind"]:
            case "subgradient":
                return Subgradient.literal(_own(spec["rate"], member), int(_own(spec["steps"], member)))
            case "printed cccp":
                stopping = Stopping(spec.get("stopping", "printed"))
                gradient = spec.get("gradient", 0.0)
                return CCCP.printed(_own(spec["rate"], member), spec["outer"], spec["inner"], gradient, stopping)
            case "cccp":
                inner = BCFW(max_iter=spec["passes"], **pinned["cccp"]["bcfw"])
                limits = {"max_iter": spec["outer"], "tolerance": spec["tolerance"]}
                return CCCP(inner, **limits, inner_tolerance=pinned["cccp"]["inner_tolerance"])
            case "lbfgs":
                return ScipyLBFGS(schedule=tuple(spec["floors"]), max_iter=spec["iterations"], **pinned["lbfgs"])
        raise InputError(f"solver {name!r} of the protocol has the unknown kind {spec['kind']!r}.")

    def descent(self, name: str, rate: float, **settings: Any) -> Subgradient:
        """Subgradient descent instance by instance with the pinned settings of the given name."""
        pinned = self.tree["pinned"][name]
        return Subgradient(rate=rate, **(pinned | {"scaling": Scaling(pinned["scaling"])} | settings))

    def inference(self, name: str, **changes: Any) -> Inference:
        """Exact inference, or propagation at the effort of the given name, with every setting pinned."""
        pinned = self.tree["pinned"][name] | changes
        listed = {key: tuple(value) for key, value in pinned.items() if isinstance(value, list)}
        settings = pinned | listed
        if name == "exact":
            return Exact(**settings)
        return Propagate(**settings)

    def fingerprint(self, name: str, params: Params) -> str:
        """A hash of all settings that can change this trial.

        It leaves out which trials there are (their number, and ``further`` ones), lists of which one entry is the
        trial's own (``solvers`` if a trial has a ``solver``), and pinned settings while they are those of the stored
        trials.
        """
        ignored = ("trials", "pins", "further")
        own = {k: v for k, v in self.settings(name).items() if k not in ignored and k.removesuffix("s") not in params}
        common = {k: self.tree[k] for k in ("seed", "C", "initial_std", "data")}
        specs = self.tree["solvers"][params.get("graph", "chain")]
        solvers = (params.get("solver", own.get("solver")), *own.get("call_solvers", []))
        used = [specs.get(solver) for solver in solvers]
        pins = ["decoding", *self.settings(name).get("pins", []), *(spec["kind"] for spec in used if spec)]
        used.append(self.tree["readings"].get(params.get("reading")))
        return _digest([own, common, used, *self._moved(pins)])

    def _moved(self, names: Iterable[str]) -> list[Any]:
        """The pinned settings of these names that differ from those of the stored trials."""
        pinned = self.tree["pinned"]
        known_names = sorted({name for name in names if name in pinned})
        return [pinned[name] for name in known_names if _digest(pinned[name]) != pinned["kept"][name]]


def _own(by_member: dict[str, float], member: str) -> float:
    """The member's own setting, or MSSVM's."""
    return float(by_member.get(member, by_member["M"]))


def _digest(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]
