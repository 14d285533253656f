"""What is measured: the data of every benchmark, by fixed seeds. NumPy only, so that peers in their own virtual
environments draw exactly the same numbers.

``SIZES`` has the arguments of every workload twice: as published, and small (``--quick``) to see that all runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tagged": ({"n": 1000}, {"n": 100}),
    "text": ({"n": 500}, {"n": 60}),
    "sequences": ({"n": 200}, {"n": 60}),
    "dense": ({"n": 1000, "length": 40}, {"n": 48, "length": 12}),
    "latent": ({"n": 20, "length": 10, "labels": 4, "features": 5}, {"n": 10, "length": 6, "labels": 3, "features": 4}),
    "many_labels": ({"n": 100, "length": 20, "labels": 700}, {"n": 8, "length": 6, "labels": 40}),
    "grid": ({"height": 20, "width": 40, "states": 5}, {"height": 6, "width": 8, "states": 5}),
    "wide_grid": ({"height": 100, "width": 100, "states": 21}, {"height": 8, "width": 8, "states": 21}),
    "wide_corner": ({"height": 30, "width": 30, "states": 21}, {"height": 8, "width": 8, "states": 21}),
    "board": ({"boards": 10, "side": 6}, {"boards": 3, "side": 4}),
    "hidden_chains": ({"n": 1000, "length": 40}, {"n": 64, "length": 12}),
    "side_by_side": ({"count": 32, "height": 20, "width": 40}, {"count": 16, "height": 5, "width": 6}),
    "pictures": ({"n": 8, "side": 10}, {"n": 4, "side": 6}),
    "large_pictures": ({"n": 6, "side": 64}, {"n": 2, "side": 10}),
    "image": ({"side": 300, "labels": 2}, {"side": 20, "labels": 2}),
    "large_image": ({"side": 1000, "labels": 5}, {"side": 24, "labels": 5}),
    "file": ({"megabytes": 100}, {"megabytes": 2}),
}


def sizes(name: str, quick: bool) -> dict[str, Any]:
    return SIZES[name][int(quick)]


def softmax(a: Array) -> Array:
    e = np.exp(a)
    return np.asarray(e / e.sum(-1, keepdims=True))


# ------------------------------------------------------------------------------------------------------- sequences


def tagged_chains(n: int = 1000, length: int = 30, labels: int = 10, symbols: int = 20) -> tuple[Array, Array]:
    """Observed symbols and labels (n, length) of a random hidden Markov model; the first 80% are for training."""
    rng = np.random.default_rng(0)
    move = softmax(rng.normal(0, 1.5, (labels, labels))).cumsum(1)
    emit = softmax(rng.normal(0, 1, (labels, symbols))).cumsum(1)
    y, x = np.zeros((2, n, length), dtype=np.int64)
    y[:, 0] = rng.integers(labels, size=n)
    for t in range(length):
        if t:
            y[:, t] = np.minimum((rng.random(n)[:, None] > move[y[:, t - 1]]).sum(1), labels - 1)
        x[:, t] = np.minimum((rng.random(n)[:, None] > emit[y[:, t]]).sum(1), symbols - 1)
    return x, y


def named(x: Array) -> list[list[dict[str, str]]]:
    """Symbols as named features of every site."""
    return [[{"o": str(o)} for o in row] for row in x]


def names(y: Array) -> list[list[str]]:
    """Labels as strings."""
    return [[str(v) for v in row] for row in y]


def tagged_texts(workload: str, quick: bool) -> tuple[Any, Any]:
    """Named features and labels of the workload "tagged" (one feature a site) or "text" (20 of them)."""
    if workload == "text":
        return text_chains(**sizes("text", quick))
    x, y = tagged_chains(**sizes("tagged", quick))
    return named(x), names(y)


def text_chains(n: int = 500, length: int = 20, labels: int = 10, words: int = 2000, tags: int = 12) -> tuple[Any, Any]:
    """Sentences with the 20 features a token of crfsuite's tutorial, and labels; the first 80% are for training.

    Words are random letters, drawn by a hidden Markov model over the labels; the part of speech is one of the word. A
    token has texts, truth values and a number, and at the ends of a sentence fewer of them.
    """
    x, y = tagged_chains(n, length, labels, words)
    rng = np.random.default_rng(4)
    letters = [rng.integers(97, 123, size=rng.integers(2, 10)) for _ in range(words)]
    vocabulary = ["".join(map(chr, codes)) for codes in letters]
    vocabulary[::7] = [word.title() for word in vocabulary[::7]]
    vocabulary[1::31] = [word.upper() for word in vocabulary[1::31]]
    part = [f"{'NVJR'[tag % 4]}{'BDGPZ'[tag % 5]}{tag}" for tag in rng.integers(tags, size=words)]
    return [_tokens([vocabulary[k] for k in row], [part[k] for k in row]) for row in x], names(y)


def _tokens(words: list[str], tags: list[str]) -> list[dict[str, Any]]:
    """Features of every token of a sentence: its own, and those of the tokens before and after it."""
    out = []
    for t, word in enumerate(words):
        features: dict[str, Any] = {
            "bias": 1.0,
            "word.lower()": word.lower(),
            "word[-3:]": word[-3:],
            "word[-2:]": word[-2:],
            "word.isupper()": word.isupper(),
            "word.istitle()": word.istitle(),
            "word.isdigit()": word.isdigit(),
            "postag": tags[t],
            "postag[:2]": tags[t][:2],
            "length": float(len(word)) / 10,
        }
        for step, end in ((-1, "BOS"), (1, "EOS")):
            if not 0 <= t + step < len(words):
                features[end] = True
                continue
            near = words[t + step]
            tag = tags[t + step]
            features |= {
                f"{step:+}:word.lower()": near.lower(),
                f"{step:+}:word.istitle()": near.istitle(),
                f"{step:+}:word.isupper()": near.isupper(),
                f"{step:+}:postag": tag,
                f"{step:+}:postag[:2]": tag[:2],
            }
        out.append(features)
    return out


def hidden_sequences(n: int = 200, length: int = 20, classes: int = 3, states: int = 3, d: int = 6) -> tuple[Any, Any]:
    """Sequences of a hidden Markov model per class; a constant and d real features; the first 75% are for training."""
    rng = np.random.default_rng(0)
    move = softmax(rng.normal(0, 1.5, (classes, states, states)))
    mean = rng.normal(0, 1, (states, d))
    y = rng.integers(classes, size=n)
    x = np.ones((n, length, d + 1))
    for i, c in enumerate(y):
        h = rng.integers(states)
        for t in range(length):
            x[i, t, 1:] = mean[h] + rng.normal(0, 1, d)
            h = rng.choice(states, p=move[c, h])
    return x, y


def dense_chains(
    n: int = 1000, length: int = 40, labels: int = 10, features: int = 50, missing: float = 0.3
) -> tuple[Array, Array, Array]:
    """Real features (n, length, d), labels of a Markov chain, and which of them are seen."""
    rng = np.random.default_rng(1)
    move = softmax(rng.normal(0, 1.5, (labels, labels))).cumsum(1)
    mean = rng.normal(0, 0.2, (labels, features))
    y = np.zeros((n, length), dtype=np.int64)
    y[:, 0] = rng.integers(labels, size=n)
    for t in range(1, length):
        y[:, t] = np.minimum((rng.random(n)[:, None] > move[y[:, t - 1]]).sum(1), labels - 1)
    return mean[y] + rng.normal(size=(n, length, features)), y, rng.random(y.shape) >= missing


def hidden_chain_scores(n: int = 1000, length: int = 40, labels: int = 10, hidden: int = 2) -> dict[str, Array]:
    """Scores of chains with hidden variables: labels u, hidden v (one a site), and tables for links and for leaves."""
    rng = np.random.default_rng(2)
    return {
        "u": rng.normal(size=(n, length, labels)),
        "v": rng.normal(size=(n, length, hidden)),
        "left": rng.normal(size=(labels, hidden)),
        "right": rng.normal(size=(hidden, labels)),
        "table": 0.6 * rng.normal(size=(labels, labels)),
        "leaf": rng.normal(size=(labels, hidden)),
    }


# ------------------------------------------------------------------------------------------------------- grids


def grid_edges(height: int, width: int) -> Array:
    """Pairs of neighbours, nodes counted row by row: all horizontal ones first, then all vertical ones."""
    at = np.arange(height * width).reshape(height, width)
    right = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1)
    down = np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1)
    return np.concatenate([right, down])


def grid_scores(height: int, width: int, states: int, count: int = 10) -> tuple[Array, Array, Array]:
    """Edges, scores of ``count`` grids (count, nodes, states), and one table an edge, the same for all of them."""
    rng = np.random.default_rng(0)
    edges = grid_edges(height, width)
    tables = rng.normal(size=(len(edges), states, states))
    return edges, rng.normal(size=(count, height * width, states)), tables


def tied_grid_scores(count: int, height: int, width: int, states: int = 5) -> tuple[Array, Array]:
    """Scores of grids (count, nodes, states), and the two tables, across and down, that all of them share."""
    rng = np.random.default_rng(3)
    return rng.normal(size=(count, height * width, states)), 0.7 * rng.normal(size=(2, states, states))


def board(seed: int, side: int = 6, states: int = 4) -> tuple[Array, Array, Array, Array]:
    """A marginal MAP problem on a checkerboard: edges, scores, tables, and which fields are outputs (the even ones)."""
    edges = grid_edges(side, side)
    rng = np.random.default_rng(1000 + seed)
    unary = rng.normal(0, 0.1, (side * side, states))
    tables = rng.normal(0, 2.0, (len(edges), states, states))
    return edges, unary, tables, np.add.outer(np.arange(side), np.arange(side)).ravel() % 2 == 0


def board_value(edges: Array, unary: Array, tables: Array, output: Array, y: Array) -> float:
    """log sum over hidden fields at the outputs y (one state a field); edges join an output and a hidden field."""
    total = unary.copy()
    for table, (a, b) in zip(tables, edges, strict=True):
        if output[a]:
            total[b] += table[y[a]]
        else:
            total[a] += table[:, y[b]]
    fields = total[~output]
    top = fields.max(1)
    inside = unary[output, y[output]].sum()
    return float(inside + (top + np.log(np.exp(fields - top[:, None]).sum(1))).sum())


def regions(side: int, labels: int, rng: np.random.Generator) -> Array:
    """A picture (side, side) of smooth regions: the highest of ``labels`` blurred random fields."""
    fields = rng.normal(size=(labels, side, side))
    for _ in range(2):
        for axis in (1, 2):
            fields = sum(np.roll(fields, shift, axis) for shift in range(-3, 4))
    return np.asarray(fields.argmax(0))


def pictures(
    n: int, side: int, labels: int = 2, labelled: float = 0.15, seed: int = 4, noise: float = 0.8
) -> tuple[list[Array], list[Array], list[Array]]:
    """Features (side, side, labels), true labels, and which of them are seen."""
    rng = np.random.default_rng(seed)
    y = [regions(side, labels, rng) for _ in range(n)]
    x = [np.eye(labels)[t] + rng.normal(0, noise, (side, side, labels)) for t in y]
    return x, y, [rng.random((side, side)) < labelled for _ in y]
