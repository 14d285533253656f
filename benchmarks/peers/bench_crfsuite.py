"""python-crfsuite on tagged chains: training from named features, and tagging."""

import tempfile
import time

import pycrfsuite
from serve import serve, w


def data(quick, workload="tagged"):
    X, y = w.tagged_texts(workload, quick)
    cut = len(X) * 4 // 5
    return X[:cut], y[:cut], X[cut:], y[cut:]


def trained(X, Y, path, iterations):
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    options = {"c1": 0.0, "c2": 1.0, "max_iterations": iterations, "feature.possible_transitions": True}
    trainer.set_params({**options, "feature.possible_states": True})
    for features, labels in zip(X, Y, strict=True):
        trainer.append(features, labels)
    trainer.train(path)
    return trainer.logparser.last_iteration


def tagger_of(path):
    tagger = pycrfsuite.Tagger()
    tagger.open(path)
    return tagger


def accuracy(given, truth):
    pairs = [(a, b) for p, t in zip(given, truth, strict=True) for a, b in zip(p, t, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def fit(quick, iterations=50):
    X, Y, _, _ = data(quick)
    path = tempfile.mktemp(suffix=".model")

    def run():
        last = trained(X, Y, path, iterations)
        return {"answer": {"objective": last["loss"], "iterations": last["num"]}}

    return run


def predict(quick, workload="tagged"):
    X, Y, XT, YT = data(quick, workload)
    path = tempfile.mktemp(suffix=".model")
    trained(X, Y, path, 50)
    tagger = tagger_of(path)

    def run():
        wall = time.perf_counter()
        cpu = time.process_time()
        found = [tagger.tag(s) for s in XT]
        times = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        return {"answer": {"accuracy": accuracy(found, YT)}, **times}

    return run


serve({"fit": fit, "predict": predict})
