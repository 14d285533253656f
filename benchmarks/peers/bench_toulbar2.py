"""toulbar2: the joint maximum on checkerboards, whose outputs are then judged as an answer to marginal MAP."""

import numpy as np
import pytoulbar2
from serve import serve, w


def joint_map(quick):
    size = w.sizes("board", quick)
    boards = [w.board(seed, size["side"]) for seed in range(size["boards"])]

    def run():
        return {"answer": {"values": [solved(*b) for b in boards]}, "units": len(boards)}

    return run


def solved(edges, unary, tables, output):
    top = float(unary.max() + tables.max()) * (len(unary) + len(edges))
    problem = pytoulbar2.CFN(2 * top, resolution=6)
    for i, scores in enumerate(unary):
        problem.AddVariable(f"x{i}", range(len(scores)))
        problem.AddFunction([i], (unary.max() - scores).tolist())
    for (i, j), table in zip(edges.tolist(), tables, strict=True):
        problem.AddFunction([i, j], (tables.max() - table).ravel().tolist())
    found = problem.Solve()
    return w.board_value(edges, unary, tables, output, np.array(found[0]))


serve({"joint_map": joint_map})
