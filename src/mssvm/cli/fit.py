"""``mssvm fit``: from a data file to a model file."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from sklearn.exceptions import ConvergenceWarning

from mssvm.cli import options as o
from mssvm.cli.interrupt import last_words
from mssvm.cli.output import check_target
from mssvm.cli.scoring import scores
from mssvm.core.errors import InputError
from mssvm.core.files import exclusive_lock, left_behind
from mssvm.core.progress import ProgressLine
from mssvm.core.text import printable
from mssvm.data.dataset import Dataset
from mssvm.data.readers import Options
from mssvm.data.readers.images import palette_of
from mssvm.estimators.hooks import HeldOut, TrainingLine
from mssvm.optim.checkpoint import Checkpoint, checkpoints_of

SAVED_EVERY = 1.0  # seconds


def fit(
    data: o.Data,
    model: Annotated[Path, typer.Option("-o", "--output", help="Model file to write.")],
    structure: o.Structure = None,
    method: o.Method = "mssvm",
    hidden: o.Hidden = None,
    edges: o.Edges = None,
    cost: o.Cost = 1.0,
    solver: o.Solver = "auto",
    inference: o.Inference = "auto",
    decode: o.Decode = "auto",
    classes: o.Classes = None,
    valid: Annotated[Path | None, typer.Option(help="Data for early stopping, read like DATA.")] = None,
    patience: Annotated[int, typer.Option(min=1, help="Scores without a new best before stopping early.")] = 20,
    calibrate: Annotated[Path | None, typer.Option(help="Held-out data to calibrate probabilities on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    max_iter: o.MaxIter = None,
    tol: Annotated[float | None, typer.Option(help="Tolerance of the solver; else its own.")] = None,
    n_init: Annotated[int, typer.Option(min=1, help="Random starts; the lowest objective wins.")] = 1,
    balanced: Annotated[bool, typer.Option("--balanced", help="Weigh classes by how rare they are.")] = False,
    seed: o.Seed = 0,
    jobs: o.Jobs = -1,
    form: o.Format = None,
    missing_colour: o.MissingColour = "#ffffff",
    limit: o.Limit = 1,
    cluster: o.Cluster = None,
) -> None:
    """Learn a model from labelled data; labels may be missing (null) or one of several.

    Example: mssvm fit train.jsonl -o model.safetensors --structure chain --hidden 2

    Ctrl-C keeps a checkpoint beside the model file; the same command with --resume goes on from it.

    Example: mssvm fit 'corpus/part-*.jsonl' -o model.safetensors --cluster tcp://scheduler:8786
    """
    check_target(model)
    with exclusive_lock(model):
        checkpoint = model.with_name(model.name + ".checkpoint")
        _check_resume(checkpoint, resume)
        reading = o.reading(form, structure, colour=missing_colour, limit=limit)
        train = o.read_data(data, reading) if cluster is None else o.first_part(data, reading)
        estimator = o.make_estimator(
            method, o.make_structure(train, hidden, edges), C=cost, solver=solver, max_iter=max_iter, tol=tol,
            inference=inference, decode=decode, classes=o.classes_of(classes, train), n_init=n_init,
            class_weight="balanced" if balanced else None, random_state=seed, n_jobs=jobs,
        )  # fmt: skip
        alike = replace(reading, structure=train.kind)
        held = None if valid is None else o.read_data(valid, alike)
        with last_words(lambda: _kept(checkpoint)), o.shards(cluster, data, reading) as sharded:
            _train(estimator, train, sharded, held, patience, checkpoint)
        _calibrate(estimator, calibrate, alike)
        _keep(estimator, train, model, checkpoint)
        _tell(estimator, model, train if cluster is None else None, held)


def _check_resume(checkpoint: Path, resume: bool) -> None:
    found = checkpoints_of(checkpoint)
    if found and not resume:
        raise InputError(
            f"{found[0]} is left from an interrupted run; add --resume to go on with it, or delete it to start anew."
        )


def _train(estimator: Any, train: Dataset, sharded: Any, held: Dataset | None, patience: int, checkpoint: Path) -> None:
    """Fit, to the shards where there are some, with a line of progress and a checkpoint."""
    title = f"Training {type(estimator).__name__}"
    quiet = 0.5 if sys.stderr.isatty() else 2.0
    with ProgressLine(title, quiet=quiet) as line, train.places():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what is told of the model says so too
        estimator.fit(
            *((train.X, train.labels) if sharded is None else (sharded,)),
            callback=TrainingLine(line),
            validation=held and HeldOut(held.X, held.labels, held.hidden, patience, naming=held.places),
            checkpoint=Checkpoint(checkpoint, SAVED_EVERY),
        )
    if estimator.training_["outcome"] == "interrupted":
        raise KeyboardInterrupt


def _calibrate(estimator: Any, data: Path | None, reading: Options) -> None:
    """On held-out data, where they are given."""
    if data is not None:
        fresh = o.read_data(data, reading)
        with fresh.places():
            estimator.calibrate(fresh.X, fresh.labels)


def _keep(estimator: Any, train: Dataset, model: Path, checkpoint: Path) -> None:
    """The model, with the colours of masks, and no checkpoint any more, nor what killed runs left of one."""
    if train.unit == "image":
        estimator.training_["palette"] = palette_of(Path(train.name))
    estimator.save(model)
    for file in (*checkpoints_of(checkpoint), *left_behind(model)):
        file.unlink(missing_ok=True)


def _kept(checkpoint: Path) -> str:
    found = checkpoints_of(checkpoint)
    return f"kept {found[-1]}; the same command with --resume goes on" if found else "before the first checkpoint"


def _against_majority(accuracy: float, estimator: Any) -> str:
    """What is added to an accuracy below that of the most frequent class."""
    counts = estimator.training_["class_counts"]
    majority = max(counts, default=0) / max(sum(counts), 1)
    if accuracy >= majority:
        return ""
    return f", less than the {majority:.2%} of the most frequent class: try other inference, --n-init or --method crf"


def _tell(estimator: Any, model: Path, train: Dataset | None, held: Dataset | None) -> None:
    with last_words(lambda: f"{model} is complete"):
        print(printable(estimator.diagnose()))
        if train is not None:
            with train.places():
                accuracy = scores(estimator, train).accuracy
            print(f"Accuracy on the training labels: {accuracy:.2%}{_against_majority(accuracy, estimator)}")
        if held is not None:
            print(f"Accuracy on {held.name}: {scores(estimator, held).accuracy:.2%}")
        print(f"Wrote {model}")
