"""NumPy reference of bucket elimination: the same program as the compiled engine, one broadcast table per step.

Forward: message = PS_eps of the bucket's sum over the eliminated variable (paper eq. 5); reverse: chain rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.core.arrays import Floats, Ints
from mssvm.core.potentials import Marginals, segment_argmax
from mssvm.core.power import power_sum
from mssvm.engines.program import Call, Program


@dataclass(frozen=True)
class ReferenceEngine:
    """Readable elimination in log space throughout."""

    def run(self, program: Program, call: Call, instances: Ints, value: Floats, mu: Marginals | None) -> None:
        """Write value and marginals of ``instances``."""
        for b in instances.tolist():
            work = _load(program, call, b)
            value[b] = _forward(program, call, work)
            if mu is not None:
                _store(program, call, b, _reverse(program, call, work, float(value[b])), mu)

    def decode(self, program: Program, call: Call, instances: Ints, value: Floats, states: Ints) -> None:
        """Write value and maximising states of ``instances``, read off the marginals."""
        batch = call.batch
        mu = Marginals.zeros(batch)
        self.run(program, call, instances, value, mu)
        found = segment_argmax(mu.unary, batch.unary_ptr)
        for b in instances.tolist():
            for v in range(len(program.clamped)):
                i = batch.var_ptr[b] + v
                states[i] = call.first[i] if program.clamped[v] else -1
            for v, output in zip(program.var, program.output, strict=True):
                i = batch.var_ptr[b] + v
                if _temperature(call, output) == 0.0 and value[b] > -np.inf:
                    states[i] = found[i]


def _temperature(call: Call, output: int) -> float:
    return call.eps_y if output else call.eps_h


def _places(program: Program, call: Call, b: int) -> list[tuple[slice, Ints, int]]:
    """For every factor: its slot in the work vector, its table's entries, its number in the batch."""
    batch = call.batch
    out = []
    for f, size in enumerate(program.factor_size):
        clamp = slice(program.clamp_ptr[f], program.clamp_ptr[f + 1])
        states = call.first[batch.var_ptr[b] + program.clamp_var[clamp]]
        entries = program.entry[program.entry_at[f] : program.entry_at[f] + size] + states @ program.clamp_stride[clamp]
        out.append(
            (slice(program.factor_slot[f], program.factor_slot[f] + size), entries, int(batch.factor_ptr[b] + f))
        )
    return out


def _load(program: Program, call: Call, b: int) -> Floats:
    batch, theta = call.batch, call.theta
    work = np.zeros(program.n_work)
    masked = np.where(call.allowed, theta.unary, -np.inf)
    for v, slot in enumerate(program.unary_slot):
        scores = masked[batch.unary_ptr[batch.var_ptr[b] + v] : batch.unary_ptr[batch.var_ptr[b] + v + 1]]
        if program.clamped[v]:
            work[0] += scores[call.first[batch.var_ptr[b] + v]]
        else:
            work[slot : slot + len(scores)] += scores
    for slot_span, entries, f in _places(program, call, b):
        work[slot_span] += theta.tables[batch.table_at[f] + entries]
    return work


def _bucket(program: Program, s: int) -> tuple[tuple[int, ...], list[tuple[slice, tuple[int, ...]]]]:
    """Shape of the clique table of step s, and each input's place and (broadcastable) shape."""
    sizes = program.axis_size[program.axis_ptr[s] : program.axis_ptr[s + 1]].tolist()
    card = int(program.card[s])
    inputs = []
    for i in range(program.input_ptr[s], program.input_ptr[s + 1]):
        strides = program.stride[program.stride_ptr[i] : program.stride_ptr[i + 1]]
        shape = (*(n if stride else 1 for n, stride in zip(sizes, strides, strict=True)), card)
        inputs.append((slice(program.input_at[i], program.input_at[i] + program.input_size[i]), shape))
    return (*sizes, card), inputs


def _clique(program: Program, s: int, work: Floats) -> Floats:
    shape, inputs = _bucket(program, s)
    table = np.zeros(shape)
    for span, part in inputs:
        table = table + work[span].reshape(part)
    return table


def _forward(program: Program, call: Call, work: Floats) -> float:
    total = work[0]
    for s, output in enumerate(program.output):
        message, _ = power_sum(_clique(program, s, work), _temperature(call, output))
        at = program.message_at[s]
        work[at : at + program.message_size[s]] = message.ravel()
        if program.message_input[s] < 0:
            total += work[at]
    return float(total)


def _reverse(program: Program, call: Call, work: Floats, value: float) -> Floats:
    grad = np.zeros(program.n_work)
    if value == -np.inf:
        return grad
    grad[0] = 1.0
    grad[program.message_at[program.message_input < 0]] = 1.0
    for s in range(len(program.var) - 1, -1, -1):
        _, weights = power_sum(_clique(program, s, work), _temperature(call, program.output[s]))
        at = program.message_at[s]
        weights *= grad[at : at + program.message_size[s]].reshape((*weights.shape[:-1], 1))
        for span, shape in _bucket(program, s)[1]:
            spread = tuple(d for d, n in enumerate(shape) if n != weights.shape[d])
            grad[span] += weights.sum(axis=spread).ravel()
    return grad


def _store(program: Program, call: Call, b: int, grad: Floats, mu: Marginals) -> None:
    batch = call.batch
    at = batch.unary_ptr[batch.var_ptr[b] : batch.var_ptr[b + 1] + 1]
    mu.unary[at[0] : at[-1]] = 0.0
    for v, slot in enumerate(program.unary_slot):
        if program.clamped[v]:
            mu.unary[at[v] + call.first[batch.var_ptr[b] + v]] = grad[0]
        else:
            mu.unary[at[v] : at[v + 1]] = grad[slot : slot + at[v + 1] - at[v]]
    places = _places(program, call, b)
    for size, (_, _, f) in zip(batch.topology(b).table_sizes, places, strict=True):
        mu.tables[batch.mu_at[f] : batch.mu_at[f] + size] = 0.0
    for slot_span, entries, f in places:
        mu.tables[batch.mu_at[f] + entries] += grad[slot_span]
