"""A network in front of a chain, trained through it: half of the labels are missing."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import mssvm as ms


def sample(n: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Sticky labels of 20 sites; a site shows a point on one of two rings, which no linear score tells apart."""
    y = torch.zeros((n, 20), dtype=torch.int64)
    for t in range(1, 20):
        y[:, t] = torch.where(torch.rand(n, generator=rng) < 0.85, y[:, t - 1], 1 - y[:, t - 1])
    angle, radius = 6.283 * torch.rand((n, 20), generator=rng), 1.0 + y + 0.5 * torch.randn((n, 20), generator=rng)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1), y


def train(x: torch.Tensor, y: torch.Tensor, chained: bool) -> tuple[torch.nn.Module, torch.Tensor, list[float]]:
    """Sixty steps of Adam on the objective of the chain, or of every site alone (a table of zeros that stays so)."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    edge = torch.nn.Parameter(torch.zeros(2, 2), requires_grad=chained)
    loss = ms.torch.StructuredLoss(ms.Chain(), eps_y=1.0, eps_h=1.0, loss="zero")
    optimiser = torch.optim.Adam([*network.parameters(), *([edge] if chained else [])], lr=0.03)
    values = []
    for _ in range(60):
        optimiser.zero_grad()
        value = loss({"node": network(x), "edge": edge}, y)
        value.backward()
        optimiser.step()
        values.append(float(value.detach()))
    return network, edge.detach(), values


def main(folder: Path) -> dict[str, float]:
    rng = torch.Generator().manual_seed(0)
    (x, y), (x_test, y_test) = sample(60, rng), sample(100, rng)
    given = torch.where(torch.rand(y.shape, generator=rng) < 0.5, -100, y)  # negative: missing
    loss, found = ms.torch.StructuredLoss(ms.Chain(), eps_y=1.0, eps_h=1.0, loss="zero"), {}
    figure, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
    for name, chained in (("network and chain", True), ("network alone", False)):
        network, edge, values = train(x, given, chained)
        with torch.no_grad():
            labels = loss.decode({"node": network(x_test), "edge": edge})
        found[name] = float((labels == y_test).double().mean())
        ax.plot(values, label=f"{name}: {found[name]:.1%} of test labels right")
    ax.set(xlabel="step", ylabel="objective per chain")
    ax.legend(frameon=False)
    figure.savefig(folder / "deep_chain.png", dpi=90)
    return found


if __name__ == "__main__":
    print(main(Path(*sys.argv[1:2])))
