"""The flat form of an elimination plan that engines execute.

All tables that an engine reads or writes for one instance are stored in one work vector:

    work = [ constant | slots of unary and table scores | messages and shifts ]

A slot holds the sum of all scores whose unclamped variables are the same. Axes of slots and messages are ordered by
elimination position, the variable eliminated first being last (contiguous). The bucket of a step therefore consists of
inputs whose last axis is the eliminated variable; the other clique axes are merged where every input has both or
neither.

A variable whose bucket is split is eliminated in several steps, one per mini-bucket. Each step has its own temperature
(its Hoelder weight) and one more input: the shift, a table over the variables that all its mini-buckets share, the
eliminated one among them. Exact elimination has one step per variable and no shifts.
"""

from __future__ import annotations

from typing import NamedTuple

from mssvm.core.arrays import Bools, Ints


class Program(NamedTuple):
    """Index arrays of one plan; v runs over variables, f over factors, s over steps, i over inputs of steps.

    A clamped variable's unary and a fully clamped factor go to the constant, ``work[0]``. Entry k of factor f's slot
    is entry ``entry[entry_at[f] + k]`` of its table, plus ``clamp_stride`` times the state of each clamped variable.
    ``level[i]`` is one more than the position of the deepest clique axis of input i (0: the eliminated variable only).
    Position p of the order owns the steps ``position_ptr[p] : position_ptr[p + 1]``; ``shift_at`` is where a step's
    shift begins in the work vector (-1 for the only step of a variable, which has none), ``shift_size`` its number of
    entries.
    """

    clamped: Bools
    unary_slot: Ints
    factor_slot: Ints
    factor_size: Ints
    entry_at: Ints
    entry: Ints
    clamp_ptr: Ints
    clamp_var: Ints
    clamp_stride: Ints
    position_ptr: Ints
    var: Ints
    card: Ints
    output: Ints
    shift_at: Ints
    shift_size: Ints
    message_at: Ints
    message_size: Ints
    message_input: Ints
    separator_ptr: Ints
    separator: Ints
    separator_stride: Ints
    axis_ptr: Ints
    axis_size: Ints
    input_ptr: Ints
    input_at: Ints
    input_size: Ints
    level: Ints
    stride_ptr: Ints
    stride: Ints
    n_slots: int
    n_work: int
    n_hidden: int
    max_axes: int
    max_inputs: int
    max_card: int
