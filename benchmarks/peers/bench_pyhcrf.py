"""pyhcrf on sequences with a hidden chain: an iteration of L-BFGS, all transitions allowed."""

import time

import numpy as np
from pyhcrf import HCRF
from serve import serve, w


def iteration(quick, states=3, iterations=100):
    x, y = w.hidden_sequences(**w.sizes("sequences", quick))
    cut = len(x) * 3 // 4
    X = [np.ascontiguousarray(s) for s in x[:cut]]
    Y = [int(v) for v in y[:cut]]
    pairs = [[c, a, b] for c in range(max(Y) + 1) for a in range(states) for b in range(states)]
    settings = {"num_states": states, "c2": 1.0, "transitions": np.array(pairs, dtype="int64")}
    settings |= {"state_parameter_noise": 0.1, "transition_parameter_noise": 0.1}

    def run():
        np.random.seed(3)  # noqa: NPY002  pyhcrf draws from the global generator
        model = HCRF(**settings, optimizer_kwargs={"options": {"maxiter": iterations}})
        wall = time.perf_counter()
        cpu = time.process_time()
        try:
            model.fit(X, Y)
        except RuntimeError:  # raised when the iterations are used up; the parameters are then left behind
            np.copyto(model.parameters, model._optimizer_result.x)
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        right = float(np.mean(np.array(model.predict(X)) == np.array(Y)))
        return {"answer": {"accuracy": right}, "units": int(model._optimizer_result.nit), **times}

    return run


serve({"iteration": iteration})
