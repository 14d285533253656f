"""Roles, masks and losses from labels on a GPU, without a copy to the host."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from mssvm.core.potentials import Potentials
from mssvm.engines.torch.arrays import DevicePotentials, DeviceQuery
from mssvm.losses import Hamming, Loss, Zero
from mssvm.objectives.sample import Sample
from mssvm.torch.layouts import ScoreLayout
from mssvm.torch.scores import LaidOut, without_padding


def sample_on_device(
    laid: LaidOut, y: Any, site_weight: Any, loss: Loss, missing_label: int = -100
) -> tuple[Sample, Potentials] | None:
    """The result of ``to_sample`` and of the loss, computed on the device of the labels.

    None if the labels are invalid (``to_sample`` has the error message), or if the loss is not implemented here.
    """
    layout = laid.layout
    batch = laid.layout.batch
    rows = _site_rows(laid, y)
    weight = None if site_weight is None else _site_rows(laid, site_weight)
    supported = type(loss) in (Hamming, Zero) and len(batch) and bool(np.all(np.diff(layout.encoded.labels.ptr) > 0))
    supported = supported and layout.encoded.segments is None
    if not supported or rows is None or (site_weight is not None and (weight is None or weight.ndim != 1)):
        return None
    found = _masks(rows, layout.encoded.n_classes, missing_label)
    if found is None:
        return None
    observed, mask, fine = found
    sites = layout.index("sites", laid.device)
    output = torch.zeros(batch.n_vars, dtype=torch.bool, device=laid.device)
    output[sites] = observed
    truth = torch.ones(batch.n_states, dtype=torch.bool, device=laid.device)
    truth[layout.states_of_sites(laid.device)] = mask.reshape(-1)
    query = DeviceQuery(output, _allowed(layout, laid.device))
    narrower = query.restrict(truth)
    fine = fine & (narrower.counts(batch) > 0).all()
    if weight is not None:
        fine = fine & (weight >= 0).all() & torch.isfinite(weight).all()
    if not bool(fine):
        return None
    sizes = (len(batch), batch.n_vars)
    sample = Sample(layout.encoded.inputs, query, cast(Any, truth), *(np.broadcast_to(1.0, n) for n in sizes))
    sample.__dict__["truth_query"] = narrower
    return sample, _delta(laid, output, truth, weight, loss)


def _site_rows(laid: LaidOut, given: Any) -> torch.Tensor | None:
    """One row per label site of a tensor on the device of the scores, padding left out."""
    sites = laid.layout.encoded.labels
    padded = laid.padded
    if not torch.is_tensor(given) or given.device != laid.device or sites.scalar or padded is None:
        return None
    if tuple(given.shape[: len(padded)]) != padded:
        return None
    rows = laid.layout.members(laid.layout.site_group, padded, laid.device)
    found: torch.Tensor = without_padding(given.detach(), len(padded), rows)
    return found


def _masks(
    rows: torch.Tensor, n_classes: int, missing_label: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Which sites have a label, which classes it admits, and whether all labels are classes or ``missing_label``."""
    if rows.dtype == torch.bool and rows.shape[1:] == (n_classes,):
        observed = rows.any(dim=1)
        return observed, rows | ~observed[:, None], torch.ones((), dtype=torch.bool, device=rows.device)
    if rows.dtype == torch.bool or rows.is_floating_point() or rows.is_complex() or rows.ndim != 1:
        return None
    observed = rows >= 0
    mask = (rows[:, None] == torch.arange(n_classes, device=rows.device)) | ~observed[:, None]
    known = (rows < n_classes) & (observed | (rows == missing_label))
    return observed, mask, known.all()


def _allowed(layout: ScoreLayout, device: torch.device) -> torch.Tensor:
    """States that the structure permits."""

    def make() -> torch.Tensor:
        allowed = layout.encoded.allowed
        if allowed is None:
            return torch.ones(layout.batch.n_states, dtype=torch.bool, device=device)
        return torch.from_numpy(allowed).to(device)

    found: torch.Tensor = layout.cached(("allowed", device), make)
    return found


def _delta(
    laid: LaidOut, output: torch.Tensor, truth: torch.Tensor, weight: torch.Tensor | None, loss: Loss
) -> Potentials:
    """The Hamming loss of every state, as ``Hamming.delta`` computes it."""
    layout = laid.layout
    batch = laid.layout.batch
    tables = layout.cached(
        ("no tables", laid.device, laid.unary.dtype), lambda: laid.unary.new_zeros(batch.n_table_entries)
    )
    if not isinstance(loss, Hamming):
        return DevicePotentials(laid.unary.new_zeros(batch.n_states), tables)
    per_variable = loss.scale * output.to(laid.unary)
    if weight is not None:
        per_variable[layout.index("sites", laid.device)] *= weight.to(laid.unary)
    if loss.normalize:
        owner = layout.index("owner", laid.device)
        count = laid.unary.new_zeros(len(batch)).index_add_(0, owner, output.to(laid.unary))
        per_variable = per_variable / count.clamp(min=1.0)[owner]
    unary = per_variable[layout.index("state_var", laid.device)].masked_fill(truth, 0.0)
    return DevicePotentials(unary.detach(), tables)
