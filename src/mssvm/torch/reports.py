"""Errors that operations on a GPU find in their tensors, raised without waiting for the device."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from mssvm.core.errors import InfeasibleError, InputError
from mssvm.engines.torch.padded import PROBLEMS

SENTENCES = {
    "score": "scores of instance {} held NaN or +inf; look at the network's output, its learning rate and its inputs",
    "length": "the length of instance {} was not between 1 and the axis of sites, or its mask had a hole",
    "label": "instance {} had a label that is not a class 0 to K - 1, or a site_weight below zero",
    "impossible": "no labelling of instance {} satisfied labels and constraints; relax one of them",
    "negative": "instance {} had a label below zero that is not missing_label; for now it is a missing label, too; "
    "the next release will refuse it",
}


class Reports:
    """Errors that calls on a GPU found in their tensors, raised by a later call, because no call waits for the device.

    The values of such instances are NaN at once.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[torch.Tensor, Any]] = []
        self._free: list[tuple[torch.Tensor, Any]] = []

    def __reduce__(self) -> Any:
        return Reports, ()

    def add(self, problem: torch.Tensor) -> None:
        """Queue the ``problem`` tensor of a call; it is read once the device has written it."""
        if problem.device.type != "cuda":
            _raise_problem(problem, "")
            return
        if _recording():
            return
        host, written = self._free.pop() if self._free else _mailbox(problem)
        host.copy_(problem, non_blocking=True)
        written.record()
        self._pending.append((host, written))

    def poll(self, wait: bool = False) -> None:
        """Raise the errors of the earlier calls that have finished; ``wait``: of all earlier calls."""
        while self._pending and not _recording():
            host, written = self._pending[0]
            if not wait and not written.query():
                return
            if wait:
                written.synchronize()
            self._free.append(self._pending.pop(0))
            _raise_problem(host, "an earlier call of this layer: ")


def _mailbox(problem: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Pinned memory of the host that a device can write to, and an event that tells when it was written."""
    return torch.empty(problem.shape, dtype=problem.dtype, pin_memory=True), torch.cuda.Event()


def _recording() -> bool:
    """Whether a CUDA graph is being recorded: the device must not be queried then."""
    return bool(torch.cuda.is_current_stream_capturing())


def _raise_problem(problem: torch.Tensor, where: str) -> None:
    found = dict(zip(PROBLEMS, problem.tolist(), strict=True))
    for name, sentence in SENTENCES.items():
        if not found[name]:
            continue
        message = f"{where}{sentence.format(found[name] - 1)}."
        if name == "negative":
            warnings.warn(message, FutureWarning, stacklevel=5)
        elif name == "impossible":
            raise InfeasibleError(message)
        else:
            raise InputError(message)
