"""``mssvm fit``: from a data file to a model file."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from sklearn.exceptions import ConvergenceWarning

from mssvm.annotators import Annotators
from mssvm.annotators.votes import with_gold
from mssvm.cli import options as o
from mssvm.cli.interrupt import on_interruption
from mssvm.cli.output import check_target
from mssvm.cli.scoring import scores
from mssvm.core.errors import InputError
from mssvm.core.files import exclusive_lock, left_behind
from mssvm.core.progress import ProgressLine
from mssvm.core.text import printable
from mssvm.data.dataset import Dataset
from mssvm.data.readers.images import palette_of
from mssvm.data.readers.stream import STDIN
from mssvm.data.shards import ShardedDataset
from mssvm.estimators.hooks import HeldOut, TrainingLine
from mssvm.optim.checkpoint import Checkpoint, checkpoints_of

SAVED_EVERY = 1.0  # seconds
MOST_ANNOTATORS = 12  # rows of their table


def fit(
    data: o.Data,
    model: Annotated[Path, typer.Option("-o", "--output", help="Model file to write.")],
    structure: o.Structure = None,
    method: o.Method = "mssvm",
    hidden: o.Hidden = None,
    edges: o.Edges = None,
    constraints: o.Constraints = None,
    max_length: o.MaxLength = None,
    cost: o.Cost = 1.0,
    solver: o.Solver = "auto",
    inference: o.Inference = "auto",
    decode: o.Decode = "auto",
    classes: o.Classes = None,
    missing_label: o.MissingLabel = None,
    valid: Annotated[Path | None, typer.Option(help="Data for early stopping, read like DATA.")] = None,
    patience: Annotated[int, typer.Option(min=1, help="Scores without a new best before stopping early.")] = 20,
    calibrate: Annotated[Path | None, typer.Option(help="Held-out data to calibrate probabilities on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    max_iter: o.MaxIter = None,
    tol: Annotated[float | None, typer.Option(help="Tolerance of the solver; else its own.")] = None,
    n_init: Annotated[int, typer.Option(min=1, help="Random starts; the lowest objective wins.")] = 1,
    balanced: Annotated[bool, typer.Option("--balanced", help="Weigh classes by how rare they are.")] = False,
    annotators: Annotated[
        bool, typer.Option("--annotators", help="Learn from the votes of several annotators; 'y' is then the truth.")
    ] = False,
    vote_columns: o.VoteColumns = None,
    context: o.Context = "auto",
    seed: o.Seed = 0,
    jobs: o.Jobs = -1,
    form: o.Format = None,
    columns: o.Columns = None,
    missing_colour: o.MissingColour = "#ffffff",
    limit: o.Limit = 1,
    cluster: o.Cluster = None,
) -> None:
    """Learn a model from labelled data; a label may be missing (null) or a list of candidates.

    Example: mssvm fit train.jsonl -o model.safetensors --structure chain --hidden 2

    Example: mssvm fit votes.jsonl -o model.safetensors --method hcrf --annotators

    Ctrl-C leaves a checkpoint beside the model file; the same command with --resume continues from it.

    Example: mssvm fit 'corpus/part-*.jsonl' -o model.safetensors --cluster tcp://scheduler:8786
    """
    if str(model) == STDIN:
        raise InputError("a model cannot go to standard output; name a file after -o.")
    check_target(model, data, valid, calibrate)
    with exclusive_lock(model):
        checkpoint = model.with_name(model.name + ".checkpoint")
        _check_resume(checkpoint, resume)
        missing = o.label_of(missing_label)
        reading = o.reading(
            form,
            structure,
            colour=missing_colour,
            limit=limit,
            vote_columns=vote_columns,
            missing_label=missing,
            columns=columns,
        )
        if annotators and cluster is not None:
            raise InputError("--annotators is for data in memory; leave --cluster out.")
        train = o.read_data(data, reading) if cluster is None else o.first_part(data, reading)
        estimator = o.make_estimator(
            method,
            o.make_structure(train, hidden, edges, constraints, structure, max_length),
            C=cost,
            solver=solver,
            max_iter=max_iter,
            tol=tol,
            inference=inference,
            decode=decode,
            classes=o.classes_of(classes, train, annotators),
            missing_label=missing,
            n_init=n_init,
            annotators=Annotators(context=context) if annotators else None,
            class_weight="balanced" if balanced else None,
            random_state=seed,
            n_jobs=jobs,
        )
        same_reading = replace(reading, structure=train.kind)
        validation = None if valid is None else o.read_data(valid, same_reading)
        held_out = None if calibrate is None else o.read_data(calibrate, same_reading)
        with on_interruption(lambda: _checkpoint_message(checkpoint)), o.shards(cluster, data, reading) as sharded:
            _train(estimator, train, sharded, validation, patience, checkpoint)
        if held_out is not None:
            with held_out.places():
                estimator.calibrate(held_out.X, held_out.labels)
        _save(estimator, train, model, checkpoint)
        _print_summary(estimator, model, train if cluster is None else None, validation)


def _check_resume(checkpoint: Path, resume: bool) -> None:
    checkpoints = checkpoints_of(checkpoint)
    if checkpoints and not resume:
        reason = f"{checkpoints[0]} is left from an interrupted run"
        raise InputError(f"{reason}; add --resume to go on with it, or delete it to start anew.")


def _train(
    estimator: Any,
    train: Dataset,
    sharded: ShardedDataset | None,
    validation: Dataset | None,
    patience: int,
    checkpoint: Path,
) -> None:
    """Fit to the shards of a cluster, or else to ``train``, with a line of progress and a checkpoint."""
    title = f"Training {type(estimator).__name__}"
    quiet_seconds = 0.5 if sys.stderr.isatty() else 2.0
    held_out = None
    if validation is not None:
        held_out = HeldOut(validation.X, validation.labels, validation.hidden, patience, naming=validation.places)
    examples = (train.X, _targets(estimator, train)) if sharded is None else (sharded,)
    with ProgressLine(title, quiet=quiet_seconds) as line, train.places():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the summary at the end says so too
        estimator.fit(
            *examples,
            callback=TrainingLine(line),
            validation=held_out,
            checkpoint=Checkpoint(checkpoint, SAVED_EVERY),
        )
    if estimator.training_["outcome"] == "interrupted":
        raise KeyboardInterrupt


def _targets(estimator: Any, train: Dataset) -> list[Any]:
    """The targets of training: labels, or votes together with the labels that are known."""
    if estimator.annotators is None:
        return train.labels
    return with_gold(o.votes_of(train), train.y if train.y is not None else train.unlabelled())


def _save(estimator: Any, train: Dataset, model: Path, checkpoint: Path) -> None:
    """Write the model, with the colours of masks, then delete checkpoints and the temporary files of killed runs."""
    if train.unit == "image":
        estimator.training_["palette"] = palette_of(Path(train.name))
    estimator.save(model)
    for file in (*checkpoints_of(checkpoint), *left_behind(model)):
        file.unlink(missing_ok=True)


def _checkpoint_message(checkpoint: Path) -> str:
    checkpoints = checkpoints_of(checkpoint)
    if not checkpoints:
        return "before the first checkpoint"
    return f"kept {checkpoints[-1]}; the same command with --resume goes on"


def _against_majority(accuracy: float, estimator: Any) -> str:
    """A remark if the accuracy is below that of the most frequent class, else the empty string."""
    counts = estimator.training_["class_counts"]
    majority = max(counts, default=0) / max(sum(counts), 1)
    if accuracy >= majority:
        return ""
    return f", less than the {majority:.2%} of the most frequent class: try other inference, --n-init or --method crf"


def _print_summary(estimator: Any, model: Path, train: Dataset | None, validation: Dataset | None) -> None:
    with on_interruption(lambda: f"{model} is complete"):
        print(printable(estimator.diagnose()))
        if estimator.annotators is not None:
            print(printable(estimator.annotators_.to_text(MOST_ANNOTATORS)))
        elif train is not None:
            with train.places():
                accuracy = scores(estimator, train).accuracy
            print(f"Accuracy on the training labels: {accuracy:.2%}{_against_majority(accuracy, estimator)}")
        if validation is not None:
            print(f"Accuracy on {validation.name}: {scores(estimator, validation).accuracy:.2%}")
        print(f"Wrote {model}")
