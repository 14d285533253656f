"""Train and apply python-crfsuite: reads {train: [[attributes, labels], ...], test: [attributes, ...], c2, iterations}.

Attributes of a site are a dict of name to value or a list of names; ``possible_states`` and ``possible_transitions``
are crfsuite's options (default: all pairs have weights). Prints labels, times, iterations and objective as JSON.
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
cpu = time.process_time()
trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
for attributes, labels in work["train"]:
    trainer.append(attributes, labels)
settings = {"c1": 0.0, "c2": work["c2"], "max_iterations": work["iterations"]}
for option in ("possible_states", "possible_transitions"):
    settings[f"feature.{option}"] = work.get(option, True)
trainer.set_params(settings)
appended = time.perf_counter()
trainer.train(path)
done = time.perf_counter()
cpu = time.process_time() - cpu
tagger = pycrfsuite.Tagger()
tagger.open(path)
answer = [tagger.tag(attributes) for attributes in work["test"]]
last = trainer.logparser.last_iteration or {}
out = {
    "labels": answer,
    "seconds": done - start,
    "train_seconds": done - appended,
    "cpu": cpu,
    "encode_seconds": appended - start,
    "iterations": last.get("num"),
    "objective": last.get("loss"),
    "weights": trainer.logparser.featgen_num_features,
}
print(json.dumps(out))
