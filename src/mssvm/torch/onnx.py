"""Models on chains as ONNX files: a network with its decoder, or a fitted estimator with its own decoding.

``write`` exports any module; ``LinearTagger`` is a fitted estimator as a module of tensors, theta = Phi(x) w with x in
padded arrays.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mssvm.core.arrays import Floats
from mssvm.core.errors import MissingExtraError, UnsupportedError
from mssvm.losses import Hamming, Zero
from mssvm.structures import Chain, Encoder
from mssvm.torch.decoder import ChainDecoder

DTYPES = {"float64": torch.float64, "float32": torch.float32}
BATCH = "batch"
SITES = "sites"
Axes = Mapping[str, tuple[str, ...]]
"""By input: the names of its leading axes whose size may vary."""


def write(
    module: torch.nn.Module,
    path: str | Path,
    example: Mapping[str, torch.Tensor],
    axes: Axes,
    outputs: tuple[str, ...],
    metadata: Mapping[str, str],
) -> None:
    """Export a module to one ONNX file.

    ``example`` has its inputs by name; ``axes`` that may vary need a size of at least two in it.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtraError('ONNX files need onnx and onnxscript; run pip install "mssvm[onnx]".') from None
    sizes = {name: torch.export.Dim(name) for names in axes.values() for name in names}
    shapes: dict[str, dict[int, Any]] = {}
    for name in example:
        shapes[name] = {k: sizes[axis] for k, axis in enumerate(axes.get(name, ()))}
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            module.eval(),
            (),
            kwargs={name: value.clone() for name, value in example.items()},  # a tensor given twice becomes one input
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(example),
            output_names=list(outputs),
            verbose=False,
        )
    program.model.metadata_props.update(metadata)
    program.save(str(path), external_data=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter's messages about other packages and its deprecation warnings."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def estimator_to_onnx(estimator: Any, path: str | Path, dtype: str, decode: str) -> None:
    """Write a fitted estimator on chains.

    Inputs are x (batch, sites, features) and lengths (batch,), outputs are states and marginals.
    """
    if dtype not in DTYPES:
        raise UnsupportedError(f"dtype must be 'float64' or 'float32', got {dtype!r}.")
    tagger = LinearTagger(estimator, DTYPES[dtype], decode)
    example = {"x": torch.zeros(2, 3, tagger.n_features, dtype=DTYPES[dtype])}
    axes = {"x": (BATCH, SITES), "lengths": (BATCH,)}
    if tagger.n_edge_features:
        example["edge_x"] = torch.zeros(2, 3, tagger.n_edge_features, dtype=DTYPES[dtype])
        axes["edge_x"] = (BATCH, SITES)
    example["lengths"] = torch.tensor([3, 2])
    classes = json.dumps([str(label) for label in estimator.classes_])
    write(tagger, path, example, axes, ("states", "marginals"), {"classes": classes})


class LinearTagger(torch.nn.Module):
    """A fitted estimator on chains with dense features, as a function of padded tensors.

    ``tagger(x, lengths)`` returns states (positions in ``classes_``; -100 beyond the length) and marginals. Models with
    features of links also take ``edge_x`` (B, T, e): row t is the link from site t to t + 1, and the last is unused.
    """

    def __init__(self, estimator: Any, dtype: torch.dtype, decode: str) -> None:
        super().__init__()
        encoder: Encoder = estimator.encoder_
        _check(estimator, encoder, decode)
        self.chain = encoder.structure
        self.n_features = encoder.n_features
        self.n_edge_features = encoder.schema.features["edge"].n_features if "edge" in encoder.schema.features else 0
        self.decoder = ChainDecoder(
            self.chain, estimator.labels_.classes, estimator.eps_h, estimator.temperatures_, decode
        )
        self.weights = torch.nn.ParameterDict()
        for block in encoder.blocks:
            table = encoder.layout.view(estimator.coef_, block.name).reshape(-1, *block.cards)
            self.weights[_key(block.name)] = _parameter(table, dtype)

    def forward(
        self, x: torch.Tensor, lengths: torch.Tensor, edge_x: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = self.decoder(self.scores(x, edge_x), lengths)
        return found

    def scores(self, x: torch.Tensor, edge_x: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The scores of every group, by the formulas of ``structures.pairwise``."""
        scores = {"node": x @ self._weight("node") + self._weight("bias")[0]}
        if not self.chain.hidden or self.chain.direct:
            scores["edge"] = self._table("transition", edge_x)
        if self.chain.ends:
            scores["first"] = self._weight("start")[0]
            scores["last"] = self._weight("end")[0]
        if self.chain.hidden and self.chain.linked:
            scores["hidden"] = x @ self._weight("hidden.node")
            scores["attach"] = self._weight("attach")[0]
            scores["hidden.edge"] = self._table("hidden.transition", edge_x)
        elif self.chain.hidden:
            scores["left"] = self._weight("left")[0]
            scores["right"] = self._weight("right")[0]
            scores["between"] = x @ self._weight("left.x") + (x @ self._weight("right.x")).roll(-1, dims=1)
            if edge_x is not None:
                scores["between"] = scores["between"] + edge_x @ self._weight("between.x")
        return scores

    def _weight(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self.weights[_key(name)]
        return found

    def _table(self, name: str, edge_x: torch.Tensor | None) -> torch.Tensor:
        """The table that all links share, or one for each link if links have features."""
        table = self._weight(name)[0]
        if edge_x is None:
            return table
        return table + torch.tensordot(edge_x, self._weight(f"{name}.x"), dims=1)


def _check(estimator: Any, encoder: Encoder, decode: str) -> None:
    """Raise an error if the estimator cannot be exported."""
    if type(encoder.structure) is not Chain:
        name = type(encoder.structure).__name__
        raise UnsupportedError(f"only models on chains can be exported, not on {name}; use save and mssvm.load there.")
    for source, schema in encoder.schema.features.items():
        if schema.kind != "dense":
            raise UnsupportedError(
                f"only models with dense features can be exported, and {source} features are {schema.kind}; "
                "turn them into arrays before fit, or use save and mssvm.load."
            )
    loss = estimator._loss()
    if decode == "marginal" and not isinstance(loss, (Hamming, Zero)):
        raise UnsupportedError(
            f"labels of least expected loss are exported for the Hamming loss only, not for {type(loss).__name__}; "
            "use decode='map'."
        )


def _parameter(table: Floats, dtype: torch.dtype) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(np.asarray(table), dtype=dtype), requires_grad=False)


def _key(name: str) -> str:
    """A block's name without dots, which PyTorch does not allow in names of parameters."""
    return name.replace(".", "_")
