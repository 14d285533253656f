"""Train and apply pyhcrf: reads {X: [[rows], ...], y: [...], splits: [[train, test], ...], states, c2, iterations}.

Prints {labels: predictions for every split} as JSON.
"""

import json
import sys

import numpy as np
from pyhcrf import HCRF

with open(sys.argv[1]) as file:
    work = json.load(file)
X = [np.array(x, dtype=np.float64) for x in work["X"]]
out = []
for train, test in work["splits"]:
    np.random.seed(0)  # noqa: NPY002  pyhcrf draws from the global generator
    noise = {"state_parameter_noise": 0.1, "transition_parameter_noise": 0.1}
    options = {"options": {"maxiter": work["iterations"]}}
    model = HCRF(num_states=work["states"], c2=work["c2"], optimizer_kwargs=options, **noise)
    try:
        model.fit([X[i] for i in train], [work["y"][i] for i in train])
    except RuntimeError:  # raised when the iterations are used up; the parameters are then left behind
        np.copyto(model.parameters, model._optimizer_result.x)
    out.append([int(v) for v in model.predict([X[i] for i in test])])
print(json.dumps({"labels": out}))
