"""pytorch-crf with torch's L-BFGS on tagged chains."""

import torch
from serve import serve, w
from torchcrf import CRF


class Tagger(torch.nn.Module):
    def __init__(self, symbols, labels):
        super().__init__()
        self.scores = torch.nn.Embedding(symbols, labels)
        torch.nn.init.zeros_(self.scores.weight)
        self.crf = CRF(labels, batch_first=True)

    def objective(self, x, y):
        penalty = sum((p**2).sum() for p in self.parameters())
        return penalty - self.crf(self.scores(x), y, reduction="sum")


def fit(quick, iterations=50):
    x, y = (torch.tensor(a) for a in w.tagged_chains(**w.sizes("tagged", quick)))
    cut = len(x) * 4 // 5
    x = x[:cut]
    y = y[:cut]

    def run():
        torch.manual_seed(0)
        model = Tagger(int(x.max()) + 1, int(y.max()) + 1)
        settings = {"max_iter": iterations, "history_size": 10, "line_search_fn": "strong_wolfe"}
        solver = torch.optim.LBFGS(model.parameters(), **settings)

        def closure():
            solver.zero_grad()
            value = model.objective(x, y)
            value.backward()
            return value

        solver.step(closure)
        return {"answer": {"objective": model.objective(x, y).item()}}

    return run


serve({"fit": fit})
