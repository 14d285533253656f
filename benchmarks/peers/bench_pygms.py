"""pyGMs: loopy belief propagation on a grid, and marginal MAP on checkerboards by weighted mini-buckets."""

import numpy as np
import pygms as gm
from pygms import messagepass, wmb
from serve import serve, w


def model_of(edges, unary, tables):
    X = [gm.Var(i, unary.shape[1]) for i in range(len(unary))]
    factors = [gm.Factor([X[i]], np.exp(u)) for i, u in enumerate(unary)]
    factors += [gm.Factor([X[i], X[j]], np.exp(t)) for (i, j), t in zip(edges.tolist(), tables, strict=True)]
    return gm.GraphModel(factors)


def propagate(quick, iterations=50):
    edges, unary, tables = w.grid_scores(**w.sizes("grid", quick))
    model = model_of(edges, unary[0], tables)

    def run():
        _, beliefs = messagepass.LBP(model, maxIter=iterations)
        marginals = np.array([beliefs[i].table / beliefs[i].table.sum() for i in range(len(unary[0]))])
        return {"answer": {"marginals": marginals.ravel().tolist()}, "units": 2 * len(edges) * iterations}

    return run


def marginal_map(quick, bound=8, rounds=10):
    size = w.sizes("board", quick)
    boards = [w.board(seed, size["side"]) for seed in range(size["boards"])]

    def run():
        values = [solved(*b, bound, rounds) for b in boards]
        return {"answer": {"values": values}, "units": len(boards)}

    return run


def solved(edges, unary, tables, output, bound, rounds):
    """Q of the decoded outputs; hidden variables are eliminated first, with weight 1, outputs last, with weight 0."""
    model = model_of(edges, unary, tables)
    weights = [1e-8 if o else 1.0 for o in output]
    order = gm.eliminationOrder(model, "minfill", priority=[int(o) for o in output])[0]
    tree = wmb.WMB(model, elimOrder=order, iBound=bound, weights=weights)
    for _ in range(rounds):
        tree.msgForward(0.5, 0.1)
        tree.msgBackward(0.0, 0.0)
    tree.msgForward(0.0, 0.0)
    found = tree.assignBackward()
    y = np.array([int(found[i]) for i in range(len(unary))])
    return w.board_value(edges, unary, tables, output, y)


serve({"propagate": propagate, "marginal_map": marginal_map})
