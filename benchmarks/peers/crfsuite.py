"""Train and apply python-crfsuite: reads {train: [[attributes, labels], ...], test: [attributes, ...], c2, iterations}.

Attributes of a site are a dict of name to value or a list of names. Prints {labels, seconds, iterations} as JSON.
"""

import json
import sys
import tempfile
import time

import pycrfsuite

with open(sys.argv[1]) as file:
    work = json.load(file)
path = tempfile.mktemp(suffix=".model")
start = time.perf_counter()
trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
for attributes, labels in work["train"]:
    trainer.append(attributes, labels)
settings = {"c1": 0.0, "c2": work["c2"], "max_iterations": work["iterations"]}
if work.get("all_features", True):
    settings.update({"feature.possible_states": True, "feature.possible_transitions": True})
trainer.set_params(settings)
trained = time.perf_counter()
trainer.train(path)
done = time.perf_counter()
tagger = pycrfsuite.Tagger()
tagger.open(path)
answer = [tagger.tag(attributes) for attributes in work["test"]]
last = trainer.logparser.last_iteration or {}
out = {
    "labels": answer,
    "seconds": done - start,
    "train_seconds": done - trained,
    "cpu": time.process_time(),
    "iterations": last.get("num"),
}
print(json.dumps(out))
