"""Figure 4: segmentation of weakly labelled images as the share of missing labels grows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from mssvm.core.arrays import Floats
from mssvm.experiments.collect import (
    Comparisons,
    Experiment,
    Trials,
    at,
    claim,
    comparisons,
    member_accuracy,
    member_curves,
    over,
)
from mssvm.experiments.members import MEMBERS, NAMES
from mssvm.experiments.protocol import Params, Protocol
from mssvm.experiments.segmentation import COLUMNS, N_LABELS, N_WEIGHTS, ROWS, filtered_accuracy, noisy_images, picture
from mssvm.experiments.simulate import PartlyLabelled
from mssvm.experiments.statistics import Estimate, pool
from mssvm.experiments.trials import Result, cross
from mssvm.report import Claim, Figure, Section, Series, Table, Text, label_picture, legend, line_chart, scalar_picture
from mssvm.structures import GraphModel

NAME = "figure4"
QUERIES = {"accuracy": "the same share hidden at test", "all": "all pixels predicted"}
DECODED = {"accuracy": ("accuracy", "marginals"), "all": ("all", "all marginals")}
"""Names in a trial's result of each query's accuracies: by marginal MAP, and by the largest marginals."""


def run(protocol: Protocol, params: Params) -> Result:
    """Every member by the same solver, its rate chosen by validation; pictures are kept of the first trial."""
    settings = protocol.settings(NAME)
    rng = protocol.generator(NAME, params["trial"])
    train, validation, test = _images(settings, params, rng)
    w0 = protocol.initial_std * rng.standard_normal(N_WEIGHTS)
    result: Result = {}
    for member in settings["members"]:
        candidates = [(rate, fit(protocol, settings, member, train, rate, w0)) for rate in settings["rates"]]
        rate, fitted = max(candidates, key=lambda pair: validation.accuracy(pair[1], protocol.decode))
        result[member] = {"rate": rate, **_scores(fitted, test, protocol.decode)}
        if params["trial"] == 0:
            result[member]["pictures"] = _pictures(fitted, test, protocol.decode)
    if params["trial"] == 0:
        result["input"] = np.round(test.X[0].nodes[:, 0], 2).tolist()
        result["hidden"] = np.flatnonzero(test.hidden[0]).tolist()
    return result


def _images(settings: Params, params: Params, rng: np.random.Generator) -> list[PartlyLabelled]:
    """Training, validation and test images."""
    n = settings["n_images"]
    variance = settings["noise_variance"]
    labels = picture(params["image"])
    return [noisy_images(labels, n, variance, params["share"], stream) for stream in rng.spawn(3)]


def with_filter(protocol: Protocol, trials: Trials) -> Trials:
    """The trials with the accuracies of a Gaussian filter on the same images, which follow from the seeds."""
    settings = protocol.settings(NAME)
    extended = []
    for trial in trials.where():
        rng = protocol.generator(NAME, trial.params["trial"])
        _, validation, test = _images(settings, trial.params, rng)
        extended.append(replace(trial, result=trial.result | {"filter": filtered_accuracy(validation, test)}))
    return Trials(extended, trials.confidence)


def fit(protocol: Protocol, settings: Params, member: str, train: PartlyLabelled, rate: float, w0: Floats) -> Any:
    """The member trained at one rate, and ready to decode with the effort of the protocol."""
    epochs = settings["epochs"]
    tolerance = settings["tolerance"]
    solver = protocol.descent("adam", rate, max_iter=epochs, evaluate_every=epochs)
    inference = protocol.inference(settings["effort"], tolerance=tolerance)
    decoder = protocol.inference(settings["decode"], tolerance=tolerance)
    common: dict[str, Any] = {"C": protocol.C, "init": w0, "classes": range(N_LABELS)}
    fitted = MEMBERS[member](GraphModel(), solver=solver, inference=inference, **common).fit(train.X, train.y)
    return fitted.set_params(inference=decoder)


def _scores(fitted: Any, test: PartlyLabelled, decode: str) -> Result:
    """Accuracy of the labelled pixels when the same share is hidden; of all pixels; and both by largest marginals."""
    everything = test.revealed()
    return {
        "accuracy": test.accuracy(fitted, decode),
        "all": everything.accuracy(fitted, decode),
        "marginals": test.accuracy(fitted, "marginal"),
        "all marginals": everything.accuracy(fitted, "marginal"),
    }


def _pictures(fitted: Any, test: PartlyLabelled, decode: str) -> Result:
    """The first test image, all pixels predicted, and the entropy of its pixels' marginals."""
    p = fitted.predict_marginals(test.X[:1])[0]
    entropy = np.sum(-p * np.log(np.where(p > 0, p, 1.0)), axis=1)
    return {"labels": fitted.predict(test.X[:1], decode=decode)[0].tolist(), "entropy": np.round(entropy, 3).tolist()}


def section(protocol: Protocol, trials: Trials) -> Section:
    settings = protocol.settings(NAME)
    trials = with_filter(protocol, trials)
    items: list[Text | Table | Figure] = [
        Text(
            "Images of 20x40 pixels, five labels, x = label + N(0, variance 5). All members: Adam on the "
            "objective per labelled pixel with averaging, rate by validation, belief propagation. The first "
            "protocol hides the same share of the labels at test and scores the rest; the second predicts all "
            "pixels. Members decide by marginal MAP, as they learned, or by the largest marginal of every pixel. The "
            "Gaussian filter learns nothing: its width is chosen on the validation images, and the nearest label is "
            "taken. The paper gives its accuracies as curves only."
        ),
        _by_marginals(settings, trials),
    ]
    for image in trials.present("image", settings["images"]):
        items += [_chart(settings, trials, image), *_tables(settings, trials, image), _gallery(settings, trials, image)]
    return Section(NAME, "Figure 4: weakly labelled segmentation", items, claims(protocol, trials))


def _by_marginals(settings: Params, trials: Trials) -> Text:
    """MSSVM's lead over LSSVM by the other decoder, on which claim 7e depends."""
    found = []
    for image in trials.present("image", settings["images"]):
        compared = []
        for where in cross(image=[image], share=settings["shares"]):
            compared += trials.compare("", at("M", "all marginals"), at("L", "all marginals"), where)
        found.append(f"{image} {pool(compared, trials.confidence).interval()}")
    return Text(
        "Claims 7e and 7f are by marginal MAP. By the largest marginals MSSVM - LSSVM over all shares, all pixels "
        f"predicted, is {', '.join(found)} points."
    )


def _chart(settings: Params, trials: Trials, image: str) -> Figure:
    charts = []
    shares = trials.present("share", settings["shares"], image=image)
    for name, title in QUERIES.items():
        percentages = [100 * share for share in shares]

        def estimates(method: str, name: str = name) -> list[Estimate]:
            return [trials.estimate(at(method, name), image=image, share=share) for share in shares]

        series = member_curves(settings["members"], percentages, estimates)
        filtered = [estimate.mean for estimate in estimates("filter")]
        series.append(Series("Gaussian filter", percentages, filtered, [0.0] * len(shares), len(series)))
        charts.append(line_chart(f"{image}: {title}", "missing labels (%)", "accuracy (%)", series))
    return Figure(f"Accuracy against missing labels, image '{image}'; bars are standard errors", charts)


def _tables(settings: Params, trials: Trials, image: str) -> list[Table]:
    """Both queries, each with both decoders and the filter."""
    tables = []
    for name, title in QUERIES.items():
        rows = []
        for share in trials.present("share", settings["shares"], image=image):
            where = {"image": image, "share": share}
            row = [f"{100 * share:g}%", str(len(trials.where(**where)))]
            row.append(trials.estimate(at("filter", name), **where).show())
            for decoded_name in DECODED[name]:
                row += [trials.estimate(at(m, decoded_name), **where).show() for m in settings["members"]]
            rows.append(row)
        names = [NAMES[m] for m in settings["members"]]
        decoded = [*names, *(f"{name}, marg." for name in names)]
        note = "Marg.: the largest marginal of every pixel decides."
        tables.append(Table(f"Image '{image}', {title}", ["missing", "trials", "filter", *decoded], rows, note))
    return tables


def _gallery(settings: Params, trials: Trials, image: str) -> Figure:
    """Truth, input and observed labels, then prediction and uncertainty of every member, at a middle share."""
    shares = trials.present("share", settings["shares"], image=image, trial=0)
    first = trials.where(image=image, share=shares[len(shares) // 2], trial=0)[0]
    shape = (ROWS, COLUMNS)
    labels = picture(image)
    observed = labels.copy().ravel()
    observed[first.result["hidden"]] = -1
    drawings = [
        label_picture("ground truth", labels),
        scalar_picture("noisy input", np.array(first.result["input"]).reshape(shape)),
        label_picture("observed labels", observed.reshape(shape)),
    ]
    pictures = {NAMES[m]: first.result[m]["pictures"] for m in settings["members"]}
    for name, own in pictures.items():
        drawings.append(label_picture(name, np.array(own["labels"]).reshape(shape)))
    for name, own in pictures.items():
        entropy = np.array(own["entropy"]).reshape(shape)
        drawings.append(scalar_picture(f"{name}: uncertainty", entropy, 0.0, float(np.log(N_LABELS))))
    note = "Uncertainty is the entropy of each pixel's marginal: black none, white uniform."
    caption = f"A test image, {100 * first.params['share']:g}% of the labels missing"
    return Figure(caption, drawings, note, columns=3, key=legend([f"label {k}" for k in range(N_LABELS)]))


def claims(protocol: Protocol, trials: Trials) -> list[Claim]:
    settings = protocol.settings(NAME)
    place = "Section 7.2, Figure 4"
    shares = settings["shares"]
    low = min(shares)
    high = max(shares)
    images = trials.present("image", settings["images"])
    fall = f"LSSVM at {100 * low:g}% - at {100 * high:g}% missing"
    value = member_accuracy("L")
    pairs = {image: cross(image=[image], share=[low, high]) for image in images}
    degrades = {f"image {i}": trials.compare(fall, value, value, *both) for i, both in pairs.items()}

    def best(other: str, name: str, chosen: list[float]) -> Comparisons:
        cells = {f"image {image}": cross(image=[image], share=chosen) for image in images}
        ends = at("M", name), at(other, name)
        label = f"% missing, MSSVM - {NAMES[other]}"
        return comparisons(cells, lambda w: trials.compare(f"{100 * w['share']:g}{label}", *ends, w))

    below = f"LSSVM is below MSSVM at {100 * high:g}% missing."
    out = [
        *claim(protocol, "7a", "LSSVM degrades as labels go missing.", place, degrades),
        *claim(protocol, "7b", below, place, best("L", "accuracy", [high])),
    ]
    for letter, (name, other) in zip("cdef", product(QUERIES, ("L", "H")), strict=True):
        text = f"MSSVM is above {NAMES[other]} over all shares, {QUERIES[name]}."
        out += claim(protocol, f"7{letter}", text, place, best(other, name, shares))
    return out


EXPERIMENT = Experiment(NAME, over(NAME, "image", "share"), run, section)
