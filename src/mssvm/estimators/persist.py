"""Models as files: one safetensors file, its metadata a JSON text and a digest of everything. Loading executes nothing.

The text holds versions, parameters, classes, feature names and the training summary; arrays are tensors. Objects among
the parameters are written as a name and their own parameters, and only names of a fixed list are read back.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
from safetensors.numpy import save as to_bytes

import mssvm
from mssvm.annotators import AnnotatorSummary, AnnotatorTable
from mssvm.annotators.confusion import Confusion
from mssvm.core import checks
from mssvm.core.arrays import AnyArray
from mssvm.core.errors import InputError, MssvmError, MssvmWarning
from mssvm.core.files import Reader, Writer, digest_of, replacing
from mssvm.core.registry import MEMBERS, RENAMED, ClassesInFiles
from mssvm.data.labels import MISSING, LabelVocabulary
from mssvm.optim.trace import HISTORY, Row
from mssvm.structures import Encoder, Schema

if TYPE_CHECKING:
    from mssvm.estimators.base import StructuredEstimator

FORMAT = 1
FORMER_NAMES = {"floored": "rescued"}  # figures of the training: present names, and those in older files
FORMER_DEFAULTS = {"decode": "map"}  # values of parameters that older files do not have
NEEDED = ("structure", "missing_label", "classes")  # parameters that a file must have: predictions depend on them


def save(estimator: StructuredEstimator, path: str | Path) -> None:
    """Write ``estimator`` to ``path``, replacing an older file only when the new one is complete."""
    target = checks.path(path, "path")
    tensors: dict[str, AnyArray] = {"coef": np.ascontiguousarray(estimator.coef_)}
    tensors.update({f"history/{name}": np.ascontiguousarray(estimator.history_[name]) for name in Row._fields})
    writer = Writer(tensors, ClassesInFiles(missing=MISSING))
    parameters, omitted = _parameters(estimator, writer)
    annotators = _annotators_to_file(estimator, writer, tensors) if hasattr(estimator, "confusion_") else None
    text = json.dumps(
        {
            "format": FORMAT,
            "mssvm": mssvm.__version__,
            "member": type(estimator).__name__,
            "parameters": parameters,
            "omitted": omitted,
            "structure": writer.encode(estimator.structure_, "structure"),
            "classes": [writer.encode(c, "a class") for c in estimator.labels_.classes],
            "missing_label": writer.encode(estimator.labels_.missing_label, "missing_label"),
            "space": estimator.schema_.to_json(),
            "training": estimator.training_,
            "status": estimator.status_,
            "n_iter": estimator.n_iter_,
            "temperatures": estimator.temperatures_,
            "feature_names": list(getattr(estimator, "feature_names_in_", ())),
            "annotators": annotators,
        },
        ensure_ascii=False,
    )
    with replacing(target) as file:
        file.write(to_bytes(tensors, {"model": text, "digest": digest_of(text, tensors)}))


def load(path: str | Path) -> StructuredEstimator:
    """The estimator that ``save`` wrote to ``path``; a damaged or newer file is an ``InputError``.

    >>> clf.save(folder / "m.safetensors")
    >>> type(ms.load(folder / "m.safetensors")).__name__
    'MSSVM'
    """
    path = checks.path(path, "path")
    if not path.is_file():
        raise InputError(f"{path} is not a file; give the path of a model written by save().")
    text, tensors = _read(path)
    try:
        data = json.loads(text)
        if data["format"] > FORMAT:
            raise InputError(
                f"{path.name} has file format {data['format']}, written by mssvm {data['mssvm']}; "
                f"this version reads up to format {FORMAT}: upgrade mssvm."
            )
        return _rebuild(data, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        if isinstance(error, MssvmError):
            raise
        raise InputError(f"{path.name} does not describe a model of this version of mssvm; save it again.") from None


def _read(path: Path) -> tuple[str, dict[str, AnyArray]]:
    """Metadata text and tensors of an undamaged file."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: np.asarray(file.get_tensor(name)) for name in sorted(file.keys())}
        text = metadata["model"]
        intact = metadata["digest"] == digest_of(text, tensors)
    except Exception:  # whatever error the parser raises, the message to the user is the same
        intact = False
    if not intact:
        raise InputError(f"{path.name} is damaged or not a model file; restore it from a copy or train again.")
    return text, tensors


def _rebuild(data: dict[str, Any], tensors: dict[str, AnyArray]) -> StructuredEstimator:
    from mssvm.estimators import members  # members import this module

    reader = Reader(tensors, ClassesInFiles(missing=MISSING), RENAMED)
    if data["member"] not in MEMBERS:
        raise InputError(f"the file holds a model called {data['member']!r}, which this version does not have.")
    parameters = dict[str, Any](FORMER_DEFAULTS)
    for name, value in data["parameters"].items():
        parameters[name] = reader.decode(value)
    model: StructuredEstimator = getattr(members, data["member"])(**parameters)
    classes = tuple(reader.decode(c) for c in data["classes"])
    vocabulary = LabelVocabulary(classes, reader.decode(data["missing_label"]))
    model._keep_encoder(Encoder(reader.decode(data["structure"]), Schema.from_json(data["space"]), vocabulary))
    model.coef_ = tensors["coef"]
    names = data.get("feature_names", [])
    model._keep_names(np.array(names, dtype=object) if names else None)
    if model.coef_.shape != (model.encoder_.layout.n_weights,):
        raise InputError(f"the file holds {model.coef_.shape} weights, which do not fit its structure; save it again.")
    columns = {}
    for key, tensor in tensors.items():
        if key.startswith("history/"):
            columns[key.removeprefix("history/")] = tensor
    model.history_ = np.rec.fromarrays([_by_name(columns, name) for name in Row._fields], HISTORY)
    training = data["training"]
    model.training_ = {**training, "exact": bool(training["exact"]), "floored": _by_name(training, "floored")}
    model.objective_ = training["objective"]
    model.temperatures_ = _temperatures(data.get("temperatures", (1.0, 1.0)))
    if data.get("annotators"):
        model.confusion_, model.annotators_ = _annotators_from_file(data["annotators"], tensors, reader, classes)
    model.status_ = data["status"]
    model.n_iter_ = data["n_iter"]
    return model


def _annotators_to_file(estimator: StructuredEstimator, writer: Writer, tensors: dict[str, AnyArray]) -> dict[str, Any]:
    """What was learned about annotators, as JSON; arrays are added to ``tensors``."""
    table = estimator.annotators_
    tensors["annotators/log_tables"] = np.ascontiguousarray(estimator.confusion_.log_tables)
    tensors["annotators/shared"] = np.ascontiguousarray(estimator.confusion_.shared)
    tensors["annotators/confusion"] = np.stack([row.confusion for row in table])
    tensors["annotators/bias"] = np.stack([row.bias for row in table])
    rows = []
    for row in table:
        name = writer.encode(row.name, "an annotator")
        rows.append([name, row.n_votes, row.coverage, row.accuracy, list(row.interval)])
    return {"sequential": estimator.confusion_.sequential, "rows": rows}


def _annotators_from_file(
    data: dict[str, Any], tensors: dict[str, AnyArray], reader: Reader, classes: tuple[Any, ...]
) -> tuple[Confusion, AnnotatorTable]:
    """The inverse of ``_annotators_to_file``."""
    confusion = Confusion(tensors["annotators/log_tables"], tensors["annotators/shared"], bool(data["sequential"]))
    rows = []
    for k, (name, n_votes, coverage, accuracy, interval) in enumerate(data["rows"]):
        rows.append(
            AnnotatorSummary(
                name=reader.decode(name),
                n_votes=int(n_votes),
                coverage=float(coverage),
                accuracy=float(accuracy),
                interval=(float(interval[0]), float(interval[1])),
                confusion=tensors["annotators/confusion"][k],
                bias=tensors["annotators/bias"][k],
            )
        )
    return confusion, AnnotatorTable(classes, tuple(rows))


def _temperatures(pair: Any) -> tuple[float, float]:
    eps_y, eps_h = pair
    return checks.temperature(eps_y, "eps_y"), checks.temperature(eps_h, "eps_h")


def _parameters(estimator: StructuredEstimator, writer: Writer) -> tuple[dict[str, Any], list[str]]:
    """Parameters as JSON, and the names of those left out: user-defined objects, which matter in training only."""
    out: dict[str, Any] = {}
    omitted = []
    for name, value in estimator.get_params(deep=False).items():
        try:
            out[name] = writer.encode(value, name)
        except InputError:
            if name in NEEDED:
                raise
            omitted.append(name)
    if omitted:
        warnings.warn(
            f"the file does not keep the parameters {', '.join(omitted)}: user-defined objects are not written; "
            "set them again after loading if you train further.",
            MssvmWarning,
            stacklevel=4,
        )
    return out, omitted


def _by_name(figures: Mapping[str, Any], name: str) -> Any:
    """A figure of the training by its present name or, in older files, its former one."""
    if name in figures:
        return figures[name]
    return figures[FORMER_NAMES[name]]
