"""PGMax: loopy belief propagation on grids, one or several at once (the same tables, other scores)."""

import time

import jax
import numpy as np
from pgmax import fgraph, fgroup, infer, vgroup
from serve import serve, w


def propagate(quick, workload="grid", count=10, iterations=50, temperature=1.0):
    size = w.sizes(workload, quick)
    height = size["height"]
    width = size["width"]
    states = size["states"]
    edges, unary, tables = w.grid_scores(**size, count=count)
    variables = vgroup.NDVarArray(num_states=states, shape=(height, width))
    graph = fgraph.FactorGraph(variable_groups=[variables])
    pairs = [[variables[int(i) // width, int(i) % width] for i in edge] for edge in edges]
    factors = fgroup.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=tables)
    graph.add_factors(factors)
    bp = infer.build_inferer(graph.bp_state, backend="bp")

    def one(scores):
        arrays = bp.init(evidence_updates={variables: scores})
        return bp.get_beliefs(bp.run(arrays, num_iters=iterations, damping=0.0, temperature=temperature))[variables]

    all_of_them = jax.jit(jax.vmap(one))
    scores = jax.numpy.asarray(unary.reshape(count, height, width, states), dtype="float32")

    def run():
        wall = time.perf_counter()
        cpu = time.process_time()
        found = all_of_them(scores).block_until_ready()
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        beliefs = np.asarray(found[0], dtype=float).reshape(-1, states)
        p = np.exp(beliefs - beliefs.max(1, keepdims=True))
        answer = {"marginals": (p / p.sum(1, keepdims=True)).ravel().tolist(), "states": beliefs.argmax(1).tolist()}
        return {"answer": answer, "units": 2 * len(edges) * iterations * count, **times}

    return run


serve({"propagate": propagate})
