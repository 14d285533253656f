"""The unified objective as a PyTorch module, with prediction, marginals and samples from the same potentials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from mssvm.core.arrays import Floats
from mssvm.core.checks import count, temperature
from mssvm.core.errors import InfeasibleError, InputError, UnsupportedError
from mssvm.core.params import Settings
from mssvm.core.potentials import Marginals, Potentials, Query
from mssvm.core.segments import segmentation_of
from mssvm.data.labels import Labels
from mssvm.engines import engine_of
from mssvm.engines.base import BoundQuery, Plan
from mssvm.engines.torch import TorchEngine
from mssvm.engines.torch.arrays import DeviceMarginals
from mssvm.estimators import plan as plans
from mssvm.estimators.kbest import check_k, k_best
from mssvm.estimators.prediction import PredictionRequest
from mssvm.inference.base import Planner
from mssvm.losses import Hamming, Zero
from mssvm.models.base import Inputs
from mssvm.models.linear import LinearInputs, LinearModel
from mssvm.objectives.sample import Sample
from mssvm.objectives.unified import Unified
from mssvm.structures import Segments, Structure
from mssvm.structures.encoded import Encoded, to_query, to_sample
from mssvm.torch.chain_operation import ChainAnswer, ChainSettings, power_sums
from mssvm.torch.constraints import Constraints
from mssvm.torch.functions import ValueFunction, checked, entropy, evaluate, on, potentials
from mssvm.torch.labels import sample_on_device
from mssvm.torch.lengths import lengths_of
from mssvm.torch.padded import PaddedScores, may_be_padded_chains, padded_chains, site_labels
from mssvm.torch.reports import Reports
from mssvm.torch.sampling import draw
from mssvm.torch.scores import LaidOut, Layouts, Scores, names_scores
from mssvm.torch.site_labels import labels_of_tensors, rows_of_sites

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
        ``Chain``, ``Segments``, ``Grid``, ``GraphModel`` or ``SequenceLabel``; classes are the numbers 0 .. K-1.
        ``Segments`` take their durations from the scores, and ``repeat="auto"`` means that no label follows itself.
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

    All methods take ``scores``, a mapping from "node", "edge", ... to tensors (see ``mssvm.torch.scores``; tables of
    edges are edge[from, to]). Padded scores need ``lengths`` ((B,), for grids (B, 2)) or a ``mask`` (booleans in the
    shape of the sites, True up to the length), and ``GraphModel`` needs ``graphs`` (``Graph`` objects or arrays of
    edges). Labels ``y`` are a tensor or an array of classes in the shape of the sites, ``missing_label`` where missing;
    a boolean tensor with a last axis of classes that marks candidates (a row without any is a missing label); or nested
    lists with ``ms.MISSING`` and sets.

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
        self._constraints = Constraints(self.structure)
        self._reports = Reports()

    def extra_repr(self) -> str:
        return f"{self.structure}, eps_y={self.eps_y}, eps_h={self.eps_h}, loss={self.loss}"

    # ------------------------------------------------------------------------------------- the objective

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
        """The objective, reduced over instances times their ``weight``; ``site_weight`` scales the loss of a site."""
        found = self._objective_of_tensors(scores, y, site_weight, lengths=lengths, mask=mask, graphs=graphs)
        value = self._objective_of_layout(scores, y, site_weight, lengths, graphs, mask) if found is None else found
        if weight is not None:
            weights = torch.as_tensor(weight, dtype=value.dtype, device=value.device)
            if weights.ndim and weights.shape != value.shape:
                shape = tuple(weights.shape)
                raise InputError(f"weight needs one number for each of the {len(value)} instances, got shape {shape}.")
            value = value * weights
        return REDUCTIONS[self.reduction](value)

    def _objective_of_tensors(self, scores: Scores, y: Any, site_weight: Any, **shape: Any) -> torch.Tensor | None:
        """The objective by the fast path (``torch/padded``); None if these are not padded chains."""
        if type(self.loss) not in (Hamming, Zero):
            return None
        scale = self.loss.scale if isinstance(self.loss, Hamming) else 0.0
        normalize = isinstance(self.loss, Hamming) and self.loss.normalize
        settings = ChainSettings(self.eps_y, self.eps_h, 2, scale, normalize, self.missing_label)
        found = self._of_tensors(scores, y, shape, settings, site_weight)
        return None if found is None else found[1][0]

    def _of_tensors(
        self, scores: Scores, given: Any, shape: Mapping[str, Any], settings: ChainSettings, site_weight: Any = None
    ) -> tuple[PaddedScores, ChainAnswer] | None:
        """Scores of padded chains, and their power sums with derivatives; None if they have to take the general
        path."""
        if shape.get("graphs") is not None:
            return None
        if not may_be_padded_chains(self.structure, self.inference, scores):
            return None
        sizes = (shape.get("lengths"), shape.get("mask"))
        chains = padded_chains(self.structure, self._constraints, scores, *sizes, settings.eps_h)
        if chains is None:
            return None
        sites = site_labels(given, site_weight, chains, settings.sides == 1)
        if sites is None:
            return None
        if torch.compiler.is_compiling():
            return chains, power_sums(chains, sites, settings)
        self._reports.poll()
        found = power_sums(chains, sites, settings)
        self._reports.add(found[3])
        return chains, found

    def _settings_without_loss(self, eps_y: float, eps_h: float) -> ChainSettings:
        return ChainSettings(eps_y, eps_h, missing=self.missing_label)

    def check(self) -> None:
        """Raise the errors that earlier calls found in their tensors; waits for the GPU.

        On a GPU a call does not wait until the device has checked labels and scores: the value of an invalid instance
        is NaN, and a later call, or this method, raises the error. Inside ``torch.compile`` or a CUDA graph the NaN is
        the only sign.

        >>> layer.check()                                                         # nothing was wrong
        """
        self._reports.poll(wait=True)

    @torch.compiler.disable
    @names_scores
    def _objective_of_layout(
        self, scores: Scores, y: Any, site_weight: Any, lengths: Any, graphs: Any, mask: Any
    ) -> torch.Tensor:
        laid = self.lay_out(scores, lengths, graphs, mask)
        return evaluate(self.objective(laid, y, site_weight), laid)

    def objective(self, laid: LaidOut, y: Any, site_weight: Any) -> ValueFunction:
        """U+ - U- and its gradient, for labels ``y``, as a function of the potentials."""
        planner = self._planner(laid, training=True)
        unified = Unified(self.eps_y, self.eps_h, self.loss)
        found = None
        if laid.device.type != "cpu":
            found = sample_on_device(laid, y, site_weight, self.loss, self.missing_label)
        sample, delta = found or self._sample(laid, y, site_weight)
        parts = unified.bind(sample, delta, self._plan(laid, planner, "training"), planner)

        def value_function(theta: Potentials) -> tuple[Floats, Marginals]:
            found = parts.difference(theta)
            checked(found.minus)
            return found.plus - found.minus, found.mu

        return value_function

    def _sample(self, laid: LaidOut, y: Any, site_weight: Any) -> tuple[Sample, Potentials]:
        labels = self._labels(laid, y, "y")
        per_site = None
        if site_weight is not None:
            per_site = rows_of_sites(laid, site_weight, "site_weight").astype(np.float64)
        sample = to_sample(laid.layout.encoded, labels, site_weight=per_site)
        return sample, self.loss.delta(sample.batch, sample.query.output, sample.truth, sample.site_weight)

    # ------------------------------------------------------------------------------------- inference

    def log_partition(self, scores: Scores, *, given: Any = None, **shape: Any) -> torch.Tensor:
        """log sum exp theta over all labellings that agree with ``given``, by instance; its gradient: the marginals.

        >>> float(layer.log_partition(scores)) > 3.0, layer.log_partition(scores, given=torch.tensor([[0, 1]])).tolist()
        (True, [3.0])
        """
        found = self._of_tensors(scores, given, shape, self._settings_without_loss(1.0, 1.0))
        return self._log_partition_of_layout(scores, given, shape) if found is None else found[1][0]

    @torch.compiler.disable
    @names_scores
    def _log_partition_of_layout(self, scores: Scores, given: Any, shape: Any) -> torch.Tensor:
        laid, value_function = self._at_one(scores, given, shape)
        return evaluate(value_function, laid)

    @torch.compiler.disable
    @names_scores
    def entropy(self, scores: Scores, *, given: Any = None, **shape: Any) -> torch.Tensor:
        """Entropy of p ~ exp theta of every instance, differentiable.

        >>> bool(layer.entropy(scores) > 0)
        True
        """
        laid, value_function = self._at_one(scores, given, shape, precision="double")
        return entropy(value_function, laid)

    @torch.no_grad()
    def marginals(self, scores: Scores, *, given: Any = None, **shape: Any) -> Any:
        """Probability of every class at every site under p ~ exp theta, in the shape of the sites.

        >>> layer.marginals(scores).sum(-1).tolist()
        [[1.0, 1.0]]
        """
        found = self._of_tensors(scores, given, shape, self._settings_without_loss(1.0, 1.0))
        return self._marginals_of_layout(scores, given, shape) if found is None else found[1][1]

    @torch.compiler.disable
    @names_scores
    def _marginals_of_layout(self, scores: Scores, given: Any, shape: Any) -> Any:
        laid, value_function = self._at_one(scores, given, shape)
        value, mu = value_function(potentials(laid.unary, laid.tables))
        checked(value)
        return laid.back(on(laid.unary, laid.layout.encoded.over_sites(mu.unary)), 0.0)

    @torch.no_grad()
    def decode(self, scores: Scores, *, given: Any = None, **shape: Any) -> Any:
        """argmax_y PS_h[eps_h] theta, the decoder that the objective bounds; padding gets -100.

        >>> layer.decode(scores).tolist()
        [[0, 1]]
        """
        found = self._of_tensors(scores, given, shape, self._settings_without_loss(0.0, self.eps_h))
        if found is None:
            return self._decode_of_layout(scores, given, shape)
        chains, (_, best, *_) = found
        labels = best.argmax(dim=-1)
        return labels if chains.inside is None else labels.masked_fill(~chains.inside, MISSING_LABEL)

    @torch.compiler.disable
    @names_scores
    def _decode_of_layout(self, scores: Scores, given: Any, shape: Any) -> Any:
        laid = self.lay_out(scores, **shape)
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
        laid = self.lay_out(scores, **shape)
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
        """``n`` draws from p ~ exp theta, each in the shape of the sites.

        On forests draws are exact and take one call of inference; elsewhere they are made variable by variable, and
        are as exact as inference is.

        >>> draws = layer.sample(scores, n=3, generator=torch.Generator().manual_seed(0))
        >>> len(draws), tuple(draws[0].shape)
        (3, (1, 2))
        """
        laid = self.lay_out(scores, **shape)
        query = self._query(laid, given)
        batch = laid.layout.batch
        theta = potentials(laid.unary, laid.tables)
        device = generator.device if generator is not None else "cpu"
        if isinstance(self.structure, Segments):
            seed = int(torch.randint(1 << 62, (), generator=generator, device=device))
            return self._drawn_segmentations(laid, theta, query, count(n, "n", 1), seed)
        size = (count(n, "n", 1), batch.n_vars)
        uniform = torch.rand(size, dtype=torch.float64, generator=generator, device=device).cpu().numpy()
        drawn = draw(self._planner(laid), batch, theta, query, uniform)
        vars_ = laid.layout.encoded.labels.vars
        return [laid.back(torch.from_numpy(z[vars_]).to(laid.device), MISSING_LABEL) for z in drawn]

    def _drawn_segmentations(self, laid: LaidOut, theta: Potentials, query: Query, n: int, seed: int) -> list[Any]:
        bound = cast(Any, self._bound(laid, self._planner(laid), query, 1.0, 1.0))
        labels = [drawn % laid.layout.encoded.n_classes for drawn in bound.sample(theta, n, seed)]
        draws = []
        for number in range(n):
            sites = np.concatenate([drawn[number] for drawn in labels])
            draws.append(laid.back(torch.from_numpy(sites).to(laid.device), MISSING_LABEL))
        return draws

    @torch.compiler.disable
    @torch.no_grad()
    @names_scores
    def segments(self, scores: Scores, *, given: Any = None, **shape: Any) -> list[list[tuple[int, int, int]]]:
        """The best segmentation of every instance, spans (start, stop, label); for ``Segments`` only.

        >>> segmenter = ms.torch.StructuredLoss(ms.Segments(max_length=2))
        >>> segmenter.segments({"node": scores["node"]})
        [[(0, 1, 0), (1, 2, 1)]]
        """
        if not isinstance(self.structure, Segments):
            raise UnsupportedError(f"{type(self.structure).__name__} has no segments; use decode for labels of sites.")
        laid = self.lay_out(scores, **shape)
        belief = self._request(laid, given).map()
        layout = self.structure.segment_layout(laid.layout.encoder.schema, laid.layout.encoder.vocabulary)
        spans = segmentation_of(layout, laid.layout.batch, belief.mu.unary)
        out: list[list[tuple[int, int, int]]] = [[] for _ in range(len(laid.layout.batch))]
        for b, start, stop, label in zip(spans.instance, spans.start, spans.stop, spans.label, strict=True):
            out[int(b)].append((int(start), int(stop), int(label)))
        return out

    # ------------------------------------------------------------------------------------- the general path

    def lay_out(self, scores: Scores, lengths: Any = None, graphs: Any = None, mask: Any = None) -> LaidOut:
        """Scores as the potentials of a batch."""
        if isinstance(scores, LaidOut):
            return scores
        if mask is None:
            return self._layouts.lay_out(scores, lengths, graphs)
        if lengths is not None:
            raise InputError("mask and lengths say the same; give one of them.")
        return self._layouts.lay_out(scores, lengths_of(mask), graphs)

    def _planner(self, laid: LaidOut, training: bool = False, precision: str | None = None) -> Planner:
        n = len(laid.layout.batch) if training else 0
        inference = self.structure.inference(laid.layout.encoder)
        if inference is None:
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
        plan = self._plan(laid, planner, "inference")
        layout = laid.layout
        by_value = isinstance(planner.inference, Settings) and laid.device.type == "cpu"
        if query is not layout.query or not by_value:
            return plan.bind(query, eps_y, eps_h)
        key = planner.inference, planner.engine, eps_y, eps_h
        return layout.bounds.get(key, lambda _: plan.bind(query, eps_y, eps_h))

    def _at_one(
        self, scores: Scores, given: Any, shape: Any, precision: str | None = None
    ) -> tuple[LaidOut, ValueFunction]:
        """Scores laid out, and inference for them at temperature one."""
        laid = self.lay_out(scores, **shape)
        return laid, self.value_function(laid, given, 1.0, 1.0, precision)

    def value_function(
        self, laid: LaidOut, given: Any, eps_y: float, eps_h: float, precision: str | None = None
    ) -> ValueFunction:
        """The power sum over all labellings that agree with ``given``, and its gradient."""
        bound = self._bound(laid, self._planner(laid, precision=precision), self._query(laid, given), eps_y, eps_h)

        def value_function(theta: Potentials) -> tuple[Floats, Marginals]:
            belief = bound(theta)
            return belief.value, belief.mu

        return value_function

    def _request(self, laid: LaidOut, given: Any) -> PredictionRequest:
        """The scores as a model without weights: a request that estimators can answer."""
        template = laid.layout.encoded
        theta = potentials(laid.unary, laid.tables)
        inputs = LinearInputs(template.batch, (), theta)
        encoded = Encoded(
            inputs,
            template.labels,
            template.hidden,
            template.n_classes,
            template.allowed,
            segments=template.segments,
        )
        planner = self._planner(laid)
        predictor = partial(self._predictor, laid)
        request = PredictionRequest(encoded, self._query(laid, given), LinearModel(0), np.zeros(0), planner, predictor)
        request.__dict__["theta"] = theta  # theta stays on its device
        return request

    def _predictor(self, laid: LaidOut, planner: Planner, inputs: Inputs, query: Query) -> BoundQuery:
        if inputs.batch is laid.layout.batch:
            return self._bound(laid, planner, query, 0.0, self.eps_h)
        return planner(inputs.batch).bind(query, 0.0, self.eps_h)

    def _labels(self, laid: LaidOut, y: Any, what: str) -> Labels:
        """Labels of all sites, from tensors or from the types that estimators take."""
        sites = laid.layout.encoded.labels
        listed = isinstance(y, (list, tuple)) and len(y) > 0 and all(map(torch.is_tensor, y))
        if not torch.is_tensor(y) and not listed:
            return laid.layout.encoder.encode_labels(y, sites.shapes, what)
        labels = labels_of_tensors(laid, y, what, self.missing_label)
        if isinstance(self.structure, Segments):
            boundaries = np.ones((len(sites.vars), 2), dtype=bool)
            return self.structure.with_boundaries(labels, boundaries, laid.layout.encoder)
        return labels
