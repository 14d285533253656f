"""Marginal MAP of a model in a UAI file, against what joint MAP and marginals would answer."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from mssvm.core.potentials import Query
from mssvm.inference import Exact
from mssvm.uai import read_model

OUTPUTS = 6


def write(path: Path, coupling: float, rng: np.random.Generator) -> Path:
    """Six outputs, each tied to a hidden variable of three states; the hidden ones are a ring."""
    scopes = [(i, OUTPUTS + i) for i in range(OUTPUTS)]
    scopes += [(OUTPUTS + i, OUTPUTS + (i + 1) % OUTPUTS) for i in range(OUTPUTS)]
    cards = [2] * OUTPUTS + [3] * OUTPUTS
    lines = ["MARKOV", str(len(cards)), " ".join(map(str, cards)), str(len(scopes))]
    lines += [f"2 {a} {b}" for a, b in scopes]
    for a, b in scopes:
        table = np.exp(coupling * rng.normal(size=cards[a] * cards[b]))
        lines += [str(len(table)), " ".join(f"{v:.6f}" for v in table)]
    path.write_text("\n".join(lines), "utf-8")
    return path


def values(path: Path) -> dict[str, float]:
    """log sum_h p(y, h) of the y that each question answers with."""
    problem = read_model(path).problem()
    batch, theta, infer = problem.batch, problem.theta, Exact()
    query = problem.query(outputs=range(OUTPUTS), evidence={})
    everything = problem.query(outputs=range(2 * OUTPUTS), evidence={})
    answers = {
        "marginal MAP": infer(batch, theta, query, 0.0, 1.0),
        "joint MAP": infer(batch, theta, everything, 0.0, 0.0),
        "best of each marginal": infer(batch, theta, query, 1.0, 1.0),
    }
    out = {}
    for name, belief in answers.items():
        y = belief.decode(batch)[:OUTPUTS]
        held = query.allowed.copy()
        for i, state in enumerate(y):  # only this state of this output
            held[batch.unary_ptr[i] : batch.unary_ptr[i + 1]] = np.arange(2) == state
        out[name] = float(infer(batch, theta, Query(query.output, held), 0.0, 1.0).value[0])
    return out


def main(folder: Path) -> dict[str, float]:
    rng, couplings = np.random.default_rng(0), (0.5, 1.0, 2.0, 3.0, 4.0)
    behind: dict[str, list[float]] = {"joint MAP": [], "best of each marginal": []}
    for coupling in couplings:
        found = [values(write(folder / "ring.uai", coupling, rng)) for _ in range(20)]
        for name, gaps in behind.items():
            gaps.append(float(np.mean([f["marginal MAP"] - f[name] for f in found])))
    (folder / "ring.uai").unlink()
    figure, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
    for name, gaps in behind.items():
        ax.plot(couplings, gaps, "o-", label=name)
    ax.set(xlabel="size of the tables' logarithms", ylabel="nats behind (mean of 20)")
    ax.set_title("joint MAP and marginals against marginal MAP", fontsize=9)
    ax.legend(frameon=False)
    figure.savefig(folder / "marginal_map.png", dpi=90)
    return {name: max(gaps) for name, gaps in behind.items()} | {"least": min(min(gaps) for gaps in behind.values())}


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2])))
