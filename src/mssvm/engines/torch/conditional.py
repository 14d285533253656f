"""Q(y) on a device where no variable is hidden, so that it is theta(y); hidden trees run on the CPU engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from mssvm.core.arrays import Bools, Floats, Ints
from mssvm.core.components import HiddenComponents
from mssvm.core.potentials import Marginals
from mssvm.engines.messages import Annealing, Borders, Conditional
from mssvm.engines.torch.arrays import DeviceMarginals, Index, fetched

if TYPE_CHECKING:
    from mssvm.engines.torch.messages import TorchMessageModel


@dataclass(frozen=True, eq=False)
class TorchConditional:
    """Q(y) and marginals given y; local search runs on the CPU engine."""

    model: TorchMessageModel
    components: HiddenComponents
    eps_h: float

    @cached_property
    def _host(self) -> Conditional:
        return self.model.host.given(self.components, self.eps_h)

    @cached_property
    def _nothing_hidden(self) -> bool:
        return bool(self.components.outside.all())

    def evaluate(self, instances: Ints, y: Ints, value: Floats) -> None:
        value[instances] = np.nan
        instances = instances[self.components.forest[instances]]
        if len(instances) and self._nothing_hidden:
            self._score(instances, y, value)
        elif len(instances):
            self._host.evaluate(instances, y, value)

    def _score(self, instances: Ints, y: Ints, value: Floats) -> None:
        model = self.model
        plan = self.model.plan
        state, factors, first, second = self._states(instances, y)
        of_states = model.unary[plan.on_device(plan.rows(instances))].gather(1, state[:, None])[:, 0]
        of_factors = model.tables[model.number[factors], first, second]
        n_vars = plan.at.ints(np.diff(plan.batch.var_ptr)[instances])
        n_factors = plan.at.ints(np.diff(plan.batch.factor_ptr)[instances])
        unary = torch.segment_reduce(of_states, "sum", lengths=n_vars, unsafe=True)
        tables = torch.segment_reduce(of_factors, "sum", lengths=n_factors, unsafe=True)
        value[instances] = fetched(unary + tables)

    def marginals(self, instances: Ints, y: Ints, mu: Marginals) -> None:
        if not len(instances):
            return
        if not isinstance(mu, DeviceMarginals):
            self._host.marginals(instances, y, mu)
            return
        if not self._nothing_hidden:
            found = Marginals.zeros(self.model.plan.batch)
            self._host.marginals(instances, y, found)
            mu.add(found)
            return
        plan = self.model.plan
        state, factors, first, second = self._states(instances, y)
        which = torch.arange(len(plan.ends), device=first.device)[factors]
        places = plan.states_at[plan.on_device(plan.rows(instances))] + state, plan.mu_places[0][which, first, second]
        for part, at in zip(mu.parts, places, strict=True):
            part.index_add_(0, at, torch.ones_like(at, dtype=part.dtype))

    def _states(self, instances: Ints, y: Ints) -> tuple[torch.Tensor, Index, torch.Tensor, torch.Tensor]:
        """The states of the instances' variables; their factors, and the states of the ends of these."""
        plan = self.model.plan
        rows = plan.on_device(plan.rows(instances))
        factors = plan.on_device(plan.factors(instances))
        state = torch.from_numpy(y[plan.rows(instances)].astype(np.int32)).to(plan.at.device).to(torch.int64)
        every = torch.zeros(plan.batch.n_vars, dtype=torch.int64, device=plan.at.device)
        every[rows] = state
        first, second = every[plan.ends[factors]].unbind(1)
        return state, factors, first, second

    def improve(self, instances: Ints, free: Bools, y: Ints, annealing: Annealing | None = None) -> None:
        self._host.improve(instances, free, y, annealing)

    def tabulate(self, borders: Borders, instances: Ints, y: Ints, values: Floats) -> None:
        self._host.tabulate(borders, instances, y, values)

    def expect(self, borders: Borders, instances: Ints, y: Ints, weights: Floats, mu: Marginals) -> None:
        self._host.expect(borders, instances, y, weights, mu)
