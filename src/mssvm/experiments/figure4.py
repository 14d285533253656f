"""Figure 4: segmentation of weakly labelled images as the share of missing labels grows."""

from __future__ import annotations

from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.experiments.collect import Experiment, Trials, Value, claim, member_accuracy, member_cells, member_header
from mssvm.experiments.members import NAMES, UNIFIED
from mssvm.experiments.protocol import Protocol
from mssvm.experiments.segmentation import COLUMNS, N_LABELS, ROWS, Images, model, truth
from mssvm.experiments.simulate import accuracy, decoded_accuracy
from mssvm.experiments.statistics import Estimate
from mssvm.experiments.trials import Params, Result
from mssvm.inference.propagation.propagate import Propagate
from mssvm.objectives.sample import Sample
from mssvm.objectives.training import TrainingProblem
from mssvm.optim.subgradient import Scaling, Subgradient
from mssvm.report import Claim, Figure, Section, Series, Table, Text, label_picture, line_chart, scalar_picture

NAME = "figure4"


def tasks(protocol: Protocol) -> list[Params]:
    settings = protocol.settings(NAME)
    return [
        {"image": image, "share": share, "trial": trial}
        for trial in range(protocol.n_trials(NAME))
        for image in settings["images"]
        for share in settings["shares"]
    ]


def run(protocol: Protocol, params: Params) -> Result:
    """Every member by the same solver, its rate chosen by validation; pictures are kept of the first trial."""
    settings = protocol.settings(NAME)
    rng = protocol.generator(NAME, params["trial"])
    labels = truth(params["image"])
    train, validation, test = (
        Images.draw(labels, settings["n_images"], settings["noise_variance"], params["share"], stream)
        for stream in rng.spawn(3)
    )
    w0 = protocol.initial_std * rng.standard_normal(model().n_weights)
    decoder = Propagate(effort=settings["decode"], tolerance=settings["tolerance"])
    result: Result = {}
    for member in settings["members"]:
        w, rate = _train(settings, member, train.sample(), validation.sample(), decoder, w0, protocol.C)
        result[member] = {"rate": rate, **_scores(member, w, test, decoder)}
        if params["trial"] == 0:
            result[member]["pictures"] = _pictures(member, w, test, decoder)
    if params["trial"] == 0:
        result["input"] = np.round(test.x[0], 2).tolist()
        result["hidden"] = np.flatnonzero(test.hidden[0]).tolist()
    return result


def solver_of(epochs: int, rate: float) -> Subgradient:
    """The solver of all members; the objective is evaluated at the end only."""
    return Subgradient(n_epochs=epochs, rate=rate, batch_size=1, scaling=Scaling.ADAM, evaluate_every=epochs)


def _train(
    settings: dict[str, Any], member: str, train: Sample, held_out: Sample, decoder: Propagate, w0: Floats, C: float
) -> tuple[Floats, float]:
    """Weights and rate with the highest accuracy on the held-out images."""
    objective = UNIFIED[member]()
    inference = Propagate(effort=settings["effort"], tolerance=settings["tolerance"])
    problem = TrainingProblem(objective, model(), train, inference, C)
    found = []
    for rate in settings["rates"]:
        w = solver_of(settings["epochs"], rate).minimize(problem, w0).w
        found.append((decoded_accuracy(model(), w, held_out, decoder, objective.eps_h), rate, w))
    _, rate, w = max(found, key=lambda f: f[0])
    return w, rate


def _scores(member: str, w: Floats, test: Images, inference: Propagate) -> Result:
    """Accuracy on the pixels with labels when the same share is hidden; of all pixels; and both by max-marginals."""
    some, everything = test.sample(), test.sample(all_outputs=True)
    eps_h = UNIFIED[member]().eps_h
    return {
        "accuracy": 100 * decoded_accuracy(model(), w, some, inference, eps_h),
        "all": 100 * decoded_accuracy(model(), w, everything, inference, eps_h),
        "marginals": 100 * _by_marginals(w, some, inference),
        "all marginals": 100 * _by_marginals(w, everything, inference),
    }


def _by_marginals(w: Floats, sample: Sample, inference: Propagate) -> float:
    theta = model().forward(w, sample.inputs)
    belief = inference(sample.batch, theta, sample.query, 1.0, 1.0)
    return accuracy(sample, belief.decode(sample.batch))


def _pictures(member: str, w: Floats, test: Images, inference: Propagate) -> Result:
    """The first test image, all pixels predicted, and the entropy of its pixels' marginals."""
    sample = test.sample(all_outputs=True).select([0])
    theta = model().forward(w, sample.inputs)
    decoded = inference(sample.batch, theta, sample.query, 0.0, UNIFIED[member]().eps_h).decode(sample.batch)
    entropy = inference(sample.batch, theta, sample.query, 1.0, 1.0).mu.entropies(sample.batch)
    return {"labels": decoded.tolist(), "entropy": np.round(entropy, 3).tolist()}


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    items: list[Text | Table | Figure] = [
        Text(
            "Images of 20x40 pixels, five labels, x = label + N(0, variance 5). All members: Adam on the "
            "objective per labelled pixel with averaging, rate by validation, belief propagation. The first "
            "protocol hides the same share of the labels at test and scores the rest; the second predicts all "
            "pixels."
        )
    ]
    for image in settings["images"]:
        if trials.where(image=image):
            items += [
                _chart(settings, trials, image),
                _table(settings, trials, image),
                _gallery(settings, trials, image),
            ]
    return Section(NAME, "Figure 4: weakly labelled segmentation", items, claims(protocol, trials))


def _field(member: str, name: str) -> Value:
    return lambda result: float(result[member][name])


def _chart(settings: dict[str, Any], trials: Trials, image: str) -> Figure:
    charts = []
    shares = [s for s in settings["shares"] if trials.where(image=image, share=s)]
    for name, title in (("accuracy", "same share hidden at test"), ("all", "all pixels predicted")):
        series = []
        for style, m in enumerate(settings["members"]):
            found = [trials.estimate(_field(m, name), image=image, share=s) for s in shares]
            errors = [e.se if e.n > 1 else 0.0 for e in found]
            series.append(Series(NAMES[m], [100 * s for s in shares], [e.mean for e in found], errors, style))
        charts.append(line_chart(f"{image}: {title}", "missing labels (%)", "accuracy (%)", series))
    return Figure(f"Accuracy against missing labels, image '{image}'; bars are standard errors", charts)


def _table(settings: dict[str, Any], trials: Trials, image: str) -> Table:
    rows = []
    for share in settings["shares"]:
        where = {"image": image, "share": share}
        if trials.where(**where):
            marginals = trials.estimate(_field("H", "marginals"), **where).show()
            rows.append([f"{100 * share:g}", *member_cells(trials, settings["members"], **where), marginals])
    header = ["missing %", *member_header(settings["members"]), "HCRF by max-marginals"]
    return Table(f"Image '{image}', same share hidden at test", header, rows)


def _gallery(settings: dict[str, Any], trials: Trials, image: str) -> Figure:
    """Truth, input and observed labels, then prediction and uncertainty of every member, at a middle share."""
    shares = [s for s in settings["shares"] if trials.where(image=image, share=s, trial=0)]
    first = trials.where(image=image, share=shares[len(shares) // 2], trial=0)[0]
    shape, labels = (ROWS, COLUMNS), truth(image)
    observed = labels.copy().ravel()
    observed[first.result["hidden"]] = -1
    drawings = [
        label_picture("ground truth", labels),
        scalar_picture("noisy input", np.array(first.result["input"]).reshape(shape)),
        label_picture("observed labels", observed.reshape(shape)),
    ]
    found = {NAMES[m]: first.result[m]["pictures"] for m in settings["members"]}
    drawings += [label_picture(name, np.array(p["labels"]).reshape(shape)) for name, p in found.items()]
    drawings += [
        scalar_picture(f"{name}: uncertainty", np.array(p["entropy"]).reshape(shape), 0.0, float(np.log(N_LABELS)))
        for name, p in found.items()
    ]
    note = "Uncertainty is the entropy of each pixel's marginal: black none, white uniform."
    caption = f"A test image, {100 * first.params['share']:g}% of the labels missing"
    return Figure(caption, drawings, note, columns=3)


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    low, high = min(settings["shares"]), max(settings["shares"])
    found: dict[str, list[tuple[str, Estimate]]] = {}
    for image in settings["images"]:
        ends = ({"image": image, "share": s} for s in (low, high))
        change = trials.change(member_accuracy("L"), *ends)
        if change is not None:
            label = f"LSSVM at {100 * low:g}% - at {100 * high:g}% missing"
            found[f"image {image}"] = [(label, change)]
            found[f"image {image}"].append(
                (f"MSSVM - LSSVM at {100 * high:g}%", trials.gap("M", "L", image=image, share=high))
            )
    return [claim(protocol, 7, "LSSVM degrades as labels go missing, and falls below MSSVM.", found)]


EXPERIMENT = Experiment(NAME, tasks, run, section)
