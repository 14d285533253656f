"""The unified objective as a PyTorch module, with prediction, marginals and samples from the same potentials."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import AnyArray, Bools, Floats
from mssvm.core.checks import count, temperature
from mssvm.core.errors import InfeasibleError, InputError, UnsupportedError
from mssvm.core.params import Settings
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.data.labels import Labels
from mssvm.engines import engine_of
from mssvm.engines.base import BoundQuery, Plan
from mssvm.engines.torch import TorchEngine
from mssvm.engines.torch.arrays import DeviceMarginals
from mssvm.estimators import plan as plans
from mssvm.estimators.kbest import check_k, k_best
from mssvm.estimators.prediction import PredictionRequest
from mssvm.inference.base import Planner
from mssvm.models.base import Inputs
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives.sample import Sample
from mssvm.objectives.unified import Unified
from mssvm.structures import Segments, Structure
from mssvm.structures.encoded import Encoded, to_query, to_sample
from mssvm.torch.functions import Question, checked, entropy, evaluate, on, potentials
from mssvm.torch.labels import sample_on_device
from mssvm.torch.sampling import draw
from mssvm.torch.scores import LaidOut, Layouts, Scores, lengths_of, names_scores, without_padding

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "none": lambda value: value,
}
MISSING_LABEL = -100  # as in torch.nn.CrossEntropyLoss


class StructuredLoss(torch.nn.Module):
    """U(theta) = PS_y[eps_y] PS_h[eps_h] (theta + Delta) - PS_h[eps_h] (theta clamped to y), for scores of a network.

    Parameters
    ----------
    structure : Structure
        ``Chain``, ``Grid``, ``GraphModel`` or ``SequenceLabel``; classes are the numbers 0 .. K-1.
    eps_y, eps_h : float
        Temperatures of outputs and hidden variables: (0, 1) MSSVM, (0, 0) LSSVM, (1, 1) with ``loss="zero"`` a CRF.
    loss : "hamming", "zero" or a loss object
    reduction : "mean", "sum" or "none"
        Over instances.
    inference : "auto", "exact", "propagate" or an inference object
    memory_limit : int
        Bytes that exact inference may use.
    threads : int
        Threads of the CPU engine.
    missing_label : int
        The number below zero that stands for a missing label in ``y``, by default that of ``CrossEntropyLoss``. Other
        numbers below zero are refused; in tensors for one more release they are missing labels, with a warning.

    All methods take ``scores`` (see ``mssvm.torch.scores``: a mapping from "node", "edge", ... to tensors; the first
    axis of an edge's table is the label that it comes from, edge[from, to]) with
    ``lengths`` ((B,), for grids (B, 2)) or ``mask`` (booleans in the shape of the sites, True up to the length) where
    they are padded, and ``graphs`` (``Graph`` objects or arrays of edges) for ``GraphModel``. Labels ``y`` are a tensor
    or an array of classes, ``missing_label`` where missing, in the shape of the sites; a boolean tensor with a last
    axis of classes that marks candidates (a row without any is a missing label); or nested lists with ``ms.MISSING``
    and sets.

    >>> layer = ms.torch.StructuredLoss(ms.Chain(), eps_y=0.0, eps_h=1.0)
    >>> float(layer(scores, torch.tensor([[0, -100]])))                           # the second label is missing
    0.0
    """

    def __init__(
        self,
        structure: Structure,
        eps_y: float = 0.0,
        eps_h: float = 1.0,
        loss: Any = "hamming",
        *,
        reduction: str = "mean",
        inference: Any = "auto",
        memory_limit: int = 1 << 30,
        threads: int = 1,
        missing_label: int = MISSING_LABEL,
    ) -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction must be one of {', '.join(map(repr, REDUCTIONS))}, got {reduction!r}.")
        self.structure = plans.structure_of(structure)
        if isinstance(self.structure, Segments):
            raise UnsupportedError(
                "the layer has no segments yet; use ms.Segments with an estimator, or ms.Chain here."
            )
        self.eps_y = temperature(eps_y, "eps_y")
        self.eps_h = temperature(eps_h, "eps_h")
        self.loss = plans.loss_of(loss, "hamming")
        self.reduction = reduction
        self.threads = threads
        self.inference = inference
        self.memory_limit = memory_limit
        plans.inference_of(inference, memory_limit, threads)  # raises for unknown names
        if isinstance(missing_label, bool) or not isinstance(missing_label, int) or missing_label >= 0:
            raise InputError(f"missing_label must be a whole number below zero, got {missing_label!r}.")
        self.missing_label = missing_label
        own_tables = bool(getattr(self.loss, "needs_own_tables", False))
        self._layouts = Layouts(self.structure, own_tables, missing_label)

    def extra_repr(self) -> str:
        return f"{self.structure}, eps_y={self.eps_y}, eps_h={self.eps_h}, loss={self.loss}"

    # ------------------------------------------------------------------------------------- the objective

    @torch.compiler.disable
    @names_scores
    def forward(
        self,
        scores: Scores,
        y: Any,
        *,
        lengths: Any = None,
        mask: Any = None,
        graphs: Any = None,
        weight: Any = None,
        site_weight: Any = None,
    ) -> torch.Tensor:
        """The objective, reduced over instances of the given ``weight``; ``site_weight`` scales the loss of a site."""
        laid = self._lay_out(scores, lengths, graphs, mask)
        value = evaluate(self._objective(laid, y, site_weight), laid)
        if weight is not None:
            weights = torch.as_tensor(weight, dtype=value.dtype, device=value.device)
            if weights.ndim and weights.shape != value.shape:
                shape = tuple(weights.shape)
                raise InputError(f"weight needs one number for each of the {len(value)} instances, got shape {shape}.")
            value = value * weights
        return REDUCTIONS[self.reduction](value)

    def _objective(self, laid: LaidOut, y: Any, site_weight: Any) -> Question:
        planner = self._planner(laid, training=True)
        unified = Unified(self.eps_y, self.eps_h, self.loss)
        found = (
            None if laid.device.type == "cpu" else sample_on_device(laid, y, site_weight, self.loss, self.missing_label)
        )
        sample, delta = found or self._sample(laid, y, site_weight)
        parts = unified.bind(sample, delta, self._plan(laid, planner, "training"), planner)

        def question(theta: Potentials) -> tuple[Floats, Marginals]:
            found = parts.difference(theta)
            checked(found.minus)
            return found.plus - found.minus, found.mu

        return question

    def _sample(self, laid: LaidOut, y: Any, site_weight: Any) -> tuple[Sample, Potentials]:
        labels = self._labels(laid, y, "y")
        per_site = None
        if site_weight is not None:
            per_site = _sites(laid, site_weight, "site_weight").astype(np.float64)
        sample = to_sample(laid.layout.encoded, labels, site_weight=per_site)
        return sample, self.loss.delta(sample.batch, sample.query.output, sample.truth, sample.site_weight)

    # ------------------------------------------------------------------------------------- questions

    @torch.compiler.disable
    @names_scores
    def log_partition(self, scores: Scores, *, given: Any = None, **shape: Any) -> torch.Tensor:
        """log sum exp theta over all labellings that agree with ``given``, by instance; its gradient: the marginals.

        >>> float(layer.log_partition(scores)) > 3.0, layer.log_partition(scores, given=torch.tensor([[0, 1]])).tolist()
        (True, [3.0])
        """
        laid, question = self._at_one(scores, given, shape)
        return evaluate(question, laid)

    @torch.compiler.disable
    @names_scores
    def entropy(self, scores: Scores, *, given: Any = None, **shape: Any) -> torch.Tensor:
        """Entropy of p ~ exp theta of every instance, differentiable.

        >>> bool(layer.entropy(scores) > 0)
        True
        """
        laid, question = self._at_one(scores, given, shape, precision="double")
        return entropy(question, laid)

    @torch.compiler.disable
    @torch.no_grad()
    @names_scores
    def marginals(self, scores: Scores, *, given: Any = None, **shape: Any) -> Any:
        """Probability of every class at every site under p ~ exp theta, in the shape of the sites.

        >>> layer.marginals(scores).sum(-1).tolist()
        [[1.0, 1.0]]
        """
        laid, question = self._at_one(scores, given, shape)
        value, mu = question(potentials(laid.unary, laid.tables))
        checked(value)
        return laid.back(on(laid.unary, laid.layout.encoded.over_sites(mu.unary)), 0.0)

    @torch.compiler.disable
    @torch.no_grad()
    @names_scores
    def decode(self, scores: Scores, *, given: Any = None, **shape: Any) -> Any:
        """argmax_y PS_h[eps_h] theta, the decoder that the objective bounds; padding gets -100.

        >>> layer.decode(scores).tolist()
        [[0, 1]]
        """
        laid = self._lay_out(scores, **shape)
        request = self._request(laid, given)
        sites = laid.layout.encoded.labels
        belief = request.map()
        if isinstance(belief.mu, DeviceMarginals):
            mine = belief.mu.parts[0][laid.layout.states_of_sites(laid.device)]
            return laid.back(mine.reshape(len(sites.vars), -1).argmax(dim=1), MISSING_LABEL)
        return laid.back(torch.from_numpy(request.states(belief, sites)).to(laid.device), MISSING_LABEL)

    @torch.compiler.disable
    @torch.no_grad()
    @names_scores
    def topk(
        self, scores: Scores, k: int, *, given: Any = None, **shape: Any
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Per instance the k best labellings (k, sites...), best first, and their scores PS_h[eps_h] theta.

        >>> labels, values = layer.topk(scores, k=2)[0]
        >>> labels.tolist(), values.tolist()
        ([[0, 1], [0, 0]], [3.0, 2.0])
        """
        laid = self._lay_out(scores, **shape)
        request = self._request(laid, given)
        sites = request.encoded.labels
        first = request.encoded.batch.var_ptr
        out = []
        for b, found in enumerate(k_best(request, check_k(k))):
            if not found:
                raise InfeasibleError("no labelling satisfies given labels and constraints.", instance=b)
            mine = sites.vars[sites.ptr[b] : sites.ptr[b + 1]] - first[b]
            states = np.stack([states[mine] for _, states in found]).reshape(len(found), *sites.shapes[b])
            values = laid.unary.new_tensor([value for value, _ in found])
            out.append((torch.from_numpy(states).to(laid.device), values))
        return out

    @torch.compiler.disable
    @torch.no_grad()
    @names_scores
    def sample(
        self, scores: Scores, n: int = 1, *, given: Any = None, generator: torch.Generator | None = None, **shape: Any
    ) -> list[Any]:
        """``n`` draws from p ~ exp theta, each in the shape of the sites: exact on forests in one call of inference,
        elsewhere variable by variable, as exact as inference is.

        >>> draws = layer.sample(scores, n=3, generator=torch.Generator().manual_seed(0))
        >>> len(draws), tuple(draws[0].shape)
        (3, (1, 2))
        """
        laid = self._lay_out(scores, **shape)
        query = self._query(laid, given)
        batch = laid.layout.batch
        theta = potentials(laid.unary, laid.tables)
        size = (count(n, "n", 1), batch.n_vars)
        device = generator.device if generator is not None else "cpu"
        uniform = torch.rand(size, dtype=torch.float64, generator=generator, device=device).cpu().numpy()
        drawn = draw(self._planner(laid), batch, theta, query, uniform)
        vars_ = laid.layout.encoded.labels.vars
        return [laid.back(torch.from_numpy(z[vars_]).to(laid.device), MISSING_LABEL) for z in drawn]

    # ------------------------------------------------------------------------------------- how they are answered

    def _lay_out(self, scores: Scores, lengths: Any = None, graphs: Any = None, mask: Any = None) -> LaidOut:
        if isinstance(scores, LaidOut):
            return scores
        if mask is None:
            return self._layouts.lay_out(scores, lengths, graphs)
        if lengths is not None:
            raise InputError("mask and lengths say the same; give one of them.")
        return self._layouts.lay_out(scores, lengths_of(mask), graphs)

    def _planner(self, laid: LaidOut, training: bool = False, precision: str | None = None) -> Planner:
        n = len(laid.layout.batch) if training else 0
        inference = plans.inference_of(self.inference, self.memory_limit, self.threads, n)
        if laid.device.type == "cpu":
            return Planner(inference, engine_of("auto", self.threads))
        own = "double" if laid.unary.dtype == torch.float64 else "single"
        return Planner(inference, TorchEngine(str(laid.device), precision or own))

    def _plan(self, laid: LaidOut, planner: Planner, what: str) -> Plan:
        """The plan of a layout's batch, made once."""
        key = (what, planner.engine, planner.inference)
        if key not in laid.layout.plans:
            laid.layout.plans[key] = planner(laid.layout.batch)
        plan: Plan = laid.layout.plans[key]
        return plan

    def _query(self, laid: LaidOut, given: Any) -> Query:
        if given is None:
            return laid.layout.query
        return to_query(laid.layout.encoded, None, self._labels(laid, given, "given"))

    def _bound(self, laid: LaidOut, planner: Planner, query: Query, eps_y: float, eps_h: float) -> BoundQuery:
        """Inference for a query; without labels it depends on the layout alone and, on the CPU, is cached with it."""
        plan = self._plan(laid, planner, "asking")
        layout = laid.layout
        by_value = isinstance(planner.inference, Settings) and laid.device.type == "cpu"
        if query is not layout.query or not by_value:
            return plan.bind(query, eps_y, eps_h)
        key = planner.inference, planner.engine, eps_y, eps_h
        return layout.bounds.get(key, lambda _: plan.bind(query, eps_y, eps_h))

    def _at_one(self, scores: Scores, given: Any, shape: Any, precision: str | None = None) -> tuple[LaidOut, Question]:
        """Inference at temperature one."""
        laid = self._lay_out(scores, **shape)
        bound = self._bound(laid, self._planner(laid, precision=precision), self._query(laid, given), 1.0, 1.0)

        def question(theta: Potentials) -> tuple[Floats, Marginals]:
            belief = bound(theta)
            return belief.value, belief.mu

        return laid, question

    def _request(self, laid: LaidOut, given: Any) -> PredictionRequest:
        """The scores as a model without weights: a request that estimators can answer."""
        template = laid.layout.encoded
        theta = potentials(laid.unary, laid.tables)
        inputs = LinearInputs(template.batch, (), theta)
        encoded = Encoded(inputs, template.labels, template.hidden, template.n_classes, template.allowed)
        planner = self._planner(laid)
        predictor = partial(self._predictor, laid)
        request = PredictionRequest(encoded, self._query(laid, given), LinearModel(0), np.zeros(0), planner, predictor)
        request.__dict__["theta"] = theta  # as it is, on its device
        return request

    def _predictor(self, laid: LaidOut, planner: Planner, inputs: Inputs, query: Query) -> BoundQuery:
        if inputs.batch is laid.layout.batch:
            return self._bound(laid, planner, query, 0.0, self.eps_h)
        return planner(inputs.batch).bind(query, 0.0, self.eps_h)

    def _labels(self, laid: LaidOut, y: Any, what: str) -> Labels:
        """Labels of all sites, from tensors or from the types that estimators take."""
        encoded = laid.layout.encoded
        sites = laid.layout.encoded.labels
        listed = isinstance(y, (list, tuple)) and len(y) > 0 and all(map(torch.is_tensor, y))
        if not torch.is_tensor(y) and not listed:
            return laid.layout.vocabulary.encode(y, sites.shapes, what)
        flat = _sites(laid, y, what)
        if flat.dtype == np.bool_ and flat.ndim == 2:
            observed: Bools = np.asarray(flat.any(axis=1))
            return Labels(observed, flat | ~observed[:, None], sites.ptr)
        if flat.dtype.kind not in "iu" or flat.ndim != 1:
            raise InputError(
                f"{what} must be whole numbers in the shape of the sites, or booleans with one more axis, of classes; "
                f"got {flat.dtype} with {flat.ndim - 1} more axes."
            )
        bad = np.flatnonzero(flat >= encoded.n_classes)
        if len(bad):
            reason = f"label {int(flat[bad[0]])} is not among the classes 0 to {encoded.n_classes - 1}."
            at = int(np.searchsorted(sites.ptr, bad[0], side="right")) - 1
            raise InputError(reason, what=what, instance=at, site=int(bad[0] - sites.ptr[at]))
        self._check_negative(flat, what)
        observed = flat >= 0
        mask: Bools = (flat[:, None] == np.arange(encoded.n_classes)) | ~observed[:, None]
        return Labels(observed, mask, sites.ptr)

    def _check_negative(self, labels: AnyArray, what: str) -> None:
        """Warn of labels below zero that are not ``missing_label``; the next release will refuse them."""
        others = labels[(labels < 0) & (labels != self.missing_label)]
        if not len(others):
            return
        warnings.warn(
            f"{what} holds {int(others[0])}, and missing_label is {self.missing_label}; for now it is a missing label, "
            f"too. Pass missing_label={int(others[0])}: the next release will refuse other labels below zero.",
            FutureWarning,
            stacklevel=6,
        )


def _array(given: Any) -> AnyArray:
    """A tensor on any device, or an array-like, as an array."""
    if not torch.is_tensor(given):
        return np.asarray(given)
    tensor = given.detach()
    if tensor.dtype in (torch.bfloat16, torch.float16):  # types that NumPy does not have, or rounds with
        tensor = tensor.float()
    return np.asarray(tensor.cpu().numpy())


def _sites(laid: LaidOut, given: Any, what: str) -> AnyArray:
    """One row per label site of a tensor in the shape of the sites, or of a list of them; padding left out."""
    sites = laid.layout.encoded.labels
    if isinstance(given, (list, tuple)):
        return _listed(laid, [_array(part) for part in given], what)
    flat = _array(given)
    if not sites.scalar and laid.padded is not None:
        lead = flat.shape[: len(laid.padded)]
        if lead != laid.padded and flat.shape[:1] != sites.vars.shape:
            raise InputError(f"{what} has leading axes {lead}; those of the sites are {laid.padded}.")
        if lead == laid.padded:
            flat = without_padding(flat, len(lead), laid.layout.rows("node", lead))
    if len(flat) != len(sites.vars):
        raise InputError(f"there are {len(sites.vars)} sites to label, but labels or weights for {len(flat)}.")
    return flat


def _listed(laid: LaidOut, parts: list[AnyArray], what: str) -> AnyArray:
    """The rows of a list with the sites of every instance."""
    sites = laid.layout.encoded.labels
    if len(parts) != len(sites.shapes):
        raise InputError(f"{what} is a list of {len(parts)} for {len(sites.shapes)} instances.")
    flat = []
    for b, (part, shape) in enumerate(zip(parts, sites.shapes, strict=True)):
        if part.shape[: len(shape)] != shape:
            raise InputError(f"the shape is {part.shape}; the sites have {shape}.", what=what, instance=b)
        flat.append(part.reshape(-1, *part.shape[len(shape) :]))
    return np.concatenate(flat) if flat else np.zeros(0, dtype=np.int64)
