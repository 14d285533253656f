"""Labels and weights of sites from tensors, read on the host: padding left out, checked, as estimators take them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from mssvm.core.arrays import AnyArray, Bools
from mssvm.core.errors import InputError
from mssvm.data.labels import Labels
from mssvm.data.tensors import as_array
from mssvm.torch.scores import LaidOut, without_padding


def labels_of_tensors(laid: LaidOut, y: Any, what: str, missing_label: int) -> Labels:
    """Labels of all sites from classes (sites,) or from booleans (sites, classes) that mark candidates."""
    encoded = laid.layout.encoded
    sites = laid.layout.encoded.labels
    flat = rows_of_sites(laid, y, what)
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
    _check_negative(flat, what, missing_label)
    observed = flat >= 0
    mask: Bools = (flat[:, None] == np.arange(encoded.n_classes)) | ~observed[:, None]
    return Labels(observed, mask, sites.ptr)


def _check_negative(labels: AnyArray, what: str, missing_label: int) -> None:
    """Warn of labels below zero that are not ``missing_label``; the next release will refuse them."""
    others = labels[(labels < 0) & (labels != missing_label)]
    if not len(others):
        return
    warnings.warn(
        f"{what} holds {int(others[0])}, and missing_label is {missing_label}; for now it is a missing label, "
        f"too. Pass missing_label={int(others[0])}: the next release will refuse other labels below zero.",
        FutureWarning,
        stacklevel=6,
    )


def rows_of_sites(laid: LaidOut, given: Any, what: str) -> AnyArray:
    """One row for every labelled site, without padding, of a tensor in the shape of the sites or a list of tensors."""
    sites = laid.layout.encoded.labels
    if isinstance(given, (list, tuple)):
        return _listed(laid, [np.asarray(as_array(part)) for part in given], what)
    flat = np.asarray(as_array(given))
    if not sites.scalar and laid.padded is not None:
        lead = flat.shape[: len(laid.padded)]
        if lead == laid.padded:
            flat = without_padding(flat, len(lead), laid.layout.rows(laid.layout.site_group, lead))
        elif flat.shape[:1] != sites.vars.shape:  # nor is there one row for every site
            raise InputError(f"{what} has leading axes {lead}; those of the sites are {laid.padded}.")
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
