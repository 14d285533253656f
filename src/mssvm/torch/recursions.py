"""Best paths and marginals of chains as recursions over sites, in operators that ``torch.export`` and ONNX know.

A chain of T sites with S states has scores node (B, T, S) and pair (S, S), or (B, T, S, S) with a table after every
site. The table after the last site is unused; it is there because ONNX Runtime mishandles empty axes. Messages go from
site to site:

    into_0 = 0,   total_t = into_t + node_t,   into_{t+1}[j] = PS_i[eps] (total_t[i] + pair_t[i, j])
    back_t[i] = PS_j[eps] (pair_t[i, j] + node_{t+1}[j] + back_{t+1}[j]),   back_{T-1} = 0

At eps = 0 the maximising i are stored and the best path is read backwards; at eps = 1 marginals are the softmax of
total_t + back_t. In an exported program the loop over sites is one operator, so that its length is not fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[torch.Tensor, Any], tuple[torch.Tensor, Any]]
"""One step of a scan: carry and rows of a site in; the next carry and the site's outputs out."""


def power_sum(x: torch.Tensor, dim: int, eps: float) -> torch.Tensor:
    """PS[eps] over an axis: the maximum at 0; -inf where all entries are -inf."""
    if eps == 0.0:
        return x.amax(dim)
    top = x.amax(dim, keepdim=True)
    top = torch.where(torch.isneginf(top), 0.0, top)
    if eps == 1.0:
        return (x - top).exp().sum(dim).log() + top.squeeze(dim)
    scale = constant(eps, x)
    return scale * ((x - top) / scale).exp().sum(dim).log() + top.squeeze(dim)


def constant(value: float, like: torch.Tensor) -> torch.Tensor:
    """A number as a tensor, because the exporter rounds plain numbers to single precision."""
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def best_paths(node: torch.Tensor, pair: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(B, T): the states of the best path; arbitrary beyond the length."""
    by_site = node.transpose(0, 1)
    last = is_last(node, lengths)

    def forward(into: torch.Tensor, rows: Any) -> tuple[torch.Tensor, Any]:
        total = into + rows[0]
        best, before = (total[:, :, None] + rows[1]).max(dim=1)
        return _around_zero(best), (total, before)

    totals, before = scan(forward, _no_message(node), (by_site, _links(node, pair)))
    ends = totals.argmax(dim=2)

    def backward(after: torch.Tensor, rows: Any) -> tuple[torch.Tensor, Any]:
        best_before, end, ends_here = rows
        state = torch.where(ends_here, end, best_before.gather(1, after[:, None])[:, 0])
        return state, (state.clone(),)

    unused = torch.zeros(node.shape[0], dtype=torch.int64, device=node.device)
    (states,) = scan(backward, unused, (before, ends, last), reverse=True)
    return states.transpose(0, 1)


def site_marginals(node: torch.Tensor, pair: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(B, T, S): the probability of every state under p ~ exp(scores); arbitrary beyond the length."""
    by_site = node.transpose(0, 1)
    links = _links(node, pair)
    last = is_last(node, lengths)

    def forward(into: torch.Tensor, rows: Any) -> tuple[torch.Tensor, Any]:
        total = into + rows[0]
        message = power_sum(total[:, :, None] + rows[1], 1, 1.0)
        return _around_zero(message), (total,)

    def backward(after: torch.Tensor, rows: Any) -> tuple[torch.Tensor, Any]:
        scores, table, ends_here = rows
        message = _around_zero(power_sum(table + after[:, None, :], 2, 1.0))
        back = torch.where(ends_here[:, None], 0.0, message)
        return scores + back, (back,)

    (totals,) = scan(forward, _no_message(node), (by_site, links))
    (back,) = scan(backward, _no_message(node), (by_site, links, last), reverse=True)
    return (totals + back).softmax(dim=2).transpose(0, 1)


def is_last(node: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(T, B): whether a site is the last of its chain."""
    sites = torch.arange(node.shape[1], device=node.device)
    return sites[:, None] == (lengths - 1)[None, :]


def inside(node: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(B, T): whether a site is within the length, that is, not padding."""
    sites = torch.arange(node.shape[1], device=node.device)
    return sites[None, :] < lengths[:, None]


def scan(step: Step, carry: torch.Tensor, rows: tuple[torch.Tensor, ...], reverse: bool = False) -> Any:
    """The outputs of ``step`` at every row of the first axis, stacked; ``reverse`` starts at the last row.

    A Python loop, or one operator for any number of rows while a program is exported.
    """
    if torch.compiler.is_exporting():
        from torch._higher_order_ops.scan import scan as operator  # imports the compiler

        return operator(step, carry, rows, reverse=reverse)[1]
    order = range(len(rows[0]))
    found = []
    for t in reversed(order) if reverse else order:
        carry, outputs = step(carry, tuple(part[t] for part in rows))
        found.append(outputs)
    if reverse:
        found.reverse()
    return tuple(torch.stack(parts) for parts in zip(*found, strict=True))


def _links(node: torch.Tensor, pair: torch.Tensor) -> torch.Tensor:
    """(T, B or 1, S, S): the table after every site."""
    if pair.ndim == 2:
        return pair.expand(node.shape[1], 1, *pair.shape)
    return pair.transpose(0, 1)


def _no_message(node: torch.Tensor) -> torch.Tensor:
    return node.new_zeros((node.shape[0], node.shape[2]))


def _around_zero(message: torch.Tensor) -> torch.Tensor:
    """A message less its largest entry, so that long chains lose no digits."""
    top = message.amax(dim=1, keepdim=True)
    return message - torch.where(torch.isneginf(top), 0.0, top)
