"""Labels that lie on a GPU become roles, masks and losses there."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from mssvm.core.potentials import Potentials
from mssvm.engines.torch.arrays import DevicePotentials, DeviceQuery
from mssvm.losses import Hamming, Loss, Zero
from mssvm.objectives.sample import Sample
from mssvm.torch.scores import LaidOut, ScoreLayout


def sample_on_device(laid: LaidOut, y: Any, site_weight: Any, loss: Loss) -> tuple[Sample, Potentials] | None:
    """What ``to_sample`` and the loss make of labels, where these are and without a copy on the host; None where that
    has something to say about them, or the loss is not among those that are known here."""
    layout, batch = laid.layout, laid.layout.batch
    rows = _site_rows(laid, y)
    weight = None if site_weight is None else _site_rows(laid, site_weight)
    known = type(loss) in (Hamming, Zero) and len(batch) and bool(np.all(np.diff(layout.encoded.labels.ptr) > 0))
    if not known or rows is None or (site_weight is not None and (weight is None or weight.ndim != 1)):
        return None
    found = _masks(rows, layout.encoded.n_classes)
    if found is None:
        return None
    (observed, mask, fine), sites = found, layout.index("sites", laid.device)
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
    sites, padded = laid.layout.encoded.labels, laid.padded
    if not torch.is_tensor(given) or given.device != laid.device or sites.scalar or padded is None:
        return None
    if tuple(given.shape[: len(padded)]) != padded:
        return None
    rows = laid.layout.members("node", padded, laid.device)
    flat = given.detach().reshape(-1, *given.shape[len(padded) :])
    return flat if rows is None else flat[rows]


def _masks(rows: torch.Tensor, n_classes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Which sites have a label, which classes it admits, and whether all labels are among the classes."""
    if rows.dtype == torch.bool and rows.shape[1:] == (n_classes,):
        observed = rows.any(dim=1)
        return observed, rows | ~observed[:, None], torch.ones((), dtype=torch.bool, device=rows.device)
    if rows.dtype == torch.bool or rows.is_floating_point() or rows.is_complex() or rows.ndim != 1:
        return None
    observed = rows >= 0
    mask = (rows[:, None] == torch.arange(n_classes, device=rows.device)) | ~observed[:, None]
    return observed, mask, (rows < n_classes).all()


def _allowed(layout: ScoreLayout, device: torch.device) -> torch.Tensor:
    """States that the structure permits."""

    def make() -> torch.Tensor:
        allowed = layout.encoded.allowed
        if allowed is None:
            return torch.ones(layout.batch.n_states, dtype=torch.bool, device=device)
        return torch.from_numpy(allowed).to(device)

    found: torch.Tensor = layout.keep(("allowed", device), make)
    return found


def _delta(
    laid: LaidOut, output: torch.Tensor, truth: torch.Tensor, weight: torch.Tensor | None, loss: Loss
) -> Potentials:
    """Hamming's loss of every state, as ``Hamming.delta`` has it."""
    layout, batch = laid.layout, laid.layout.batch
    tables = layout.keep(
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
