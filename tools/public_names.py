"""Every public name: whether its docstring names all parameters and has an example that runs, and its result a type.

    python tools/public_names.py            # one line a name that lacks something, and the coverage

Public is what ``__all__`` of ``mssvm`` and of its doors (``ms.solvers``, ``ms.losses``, ...) holds, and the methods of
estimators and of their inputs. In the examples ``np`` is NumPy, ``ms`` this package, ``X`` and ``y`` are two short
chains, ``clf`` is a model fitted to them and ``folder`` an empty folder. PyTorch's names are counted where it is
installed; ``layer`` is a ``StructuredLoss`` there, and ``scores`` are those of one chain of two sites. So are those of
``mssvm.hf`` where transformers is; ``tokenizer`` knows the words "the" and "cat" there, and ``tagger`` is at random.
"""

from __future__ import annotations

import doctest
import inspect
import re
import sys
import tempfile
import warnings
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import mssvm as ms
from mssvm.estimators.availability import AvailableMethod

METHODS = {
    "UnifiedSSVM": (
        "fit",
        "predict",
        "predict_marginals",
        "predict_proba",
        "predict_hidden",
        "predict_topk",
        "predict_segments",
        "predict_boundaries",
        "sample_segments",
        "decision_gap",
        "score",
        "calibrate",
        "aggregate",
        "diagnose",
        "weights_table",
        "save",
    ),
    "Graph": ("from_adjacency",),
    "FactorInput": ("with_features",),
}
PROTOCOLS = (ms.losses.Loss, ms.engines.Engine)
EXTRAS: dict[str, dict[str, tuple[str, ...]]] = {
    "torch": {
        "StructuredLoss": (
            "decode",
            "marginals",
            "log_partition",
            "entropy",
            "sample",
            "topk",
            "segments",
            "check",
        )
    },
    "hf": {"StructuredTokenClassifier": ("from_encoder", "from_pretrained", "parameter_groups", "tag")},
}
PACKAGES = {"torch": "torch", "hf": "transformers"}  # that the extras need
EVERYWHERE = {  # said once
    "self",
    "cls",
    "X",
    "y",
    "y_true",
    "y_pred",
    "votes",
    "hidden",
    "given",
    "allowed",
    "sample_weight",
    "scores",
    "shape",
}


def public(extra: str = "") -> dict[str, Any]:
    """Every public name and its object; of ``extra`` ("torch", "hf") those of that door instead."""
    names: dict[str, Any] = {}
    doors = [extra] if extra else ["", *(name for name in ms.__all__ if inspect.ismodule(getattr(ms, name)))]
    for door in doors:
        module = getattr(ms, door) if door else ms
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, (ModuleType, str)) and getattr(value, "__module__", "").startswith("mssvm"):
                names[f"{door}.{name}".lstrip(".")] = value
    methods = {f"{extra}.{owner}": own for owner, own in EXTRAS[extra].items()} if extra else METHODS
    for owner, own in methods.items():
        for name in own:
            names[f"{owner}.{name}"] = inspect.getattr_static(names[owner], name)
    return names


def documented(value: Any) -> Any:
    """The function or class behind a descriptor."""
    if isinstance(value, AvailableMethod):
        return value.method
    return getattr(value, "__func__", value)


def unsaid(value: Any) -> list[str]:
    """Parameters that the docstring does not name."""
    value = documented(value)
    without = inspect.isclass(value) and (issubclass(value, (tuple, Enum, Warning)) or value in PROTOCOLS)
    if without or not callable(value):
        return []
    given = {p.name for p in inspect.signature(value).parameters.values()} - EVERYWHERE
    bases = [base for base in getattr(value, "__mro__", (value,)) if base.__module__.startswith("mssvm")]
    text = " ".join(inspect.getdoc(base) or "" for base in bases)
    return sorted(name for name in given if not re.search(rf"\b{name}\b", text))


def world(folder: Path) -> dict[str, Any]:
    """The variables that the examples use."""
    X = [np.eye(3)[[0, 1, 2]], np.eye(3)[[2, 0, 1, 1]]]
    y = [["B", "I", "O"], ["O", "B", "I", "I"]]
    clf = ms.MSSVM(ms.Chain(hidden=2), random_state=0).fit(X, y)
    given = {"np": np, "ms": ms, "X": X, "y": y, "clf": clf, "folder": folder, "warnings": warnings}
    if find_spec("torch"):
        import torch

        scores = {"node": torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), "edge": torch.zeros(2, 2)}
        given |= {"torch": torch, "scores": scores, "layer": ms.torch.StructuredLoss(ms.Chain(), eps_y=0.0, eps_h=1.0)}
    if find_spec("transformers"):
        given |= tagging_world()
    return given


def tagging_world() -> dict[str, Any]:
    """A tokenizer of two words, and a tagger at random."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    vocabulary = {word: number for number, word in enumerate((*special.values(), "the", "cat"))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    encoder = BertConfig(vocab_size=len(vocabulary), **sizes)
    tagger = ms.hf.StructuredTokenClassifier.from_encoder(encoder, ["D", "N"]).eval()
    return {"tokenizer": PreTrainedTokenizerFast(tokenizer_object=words, **special), "tagger": tagger}


def faults(name: str, value: Any, given: dict[str, Any]) -> list[str]:
    """The defects of a public name's docstring."""
    text = inspect.getdoc(documented(value) if callable(documented(value)) else type(value)) or ""
    examples = doctest.DocTestParser().get_doctest(text, {**given}, name, None, None)
    out = []
    missing = unsaid(value)
    if missing:
        out.append(f"does not name {', '.join(missing)}")
    if inspect.isfunction(documented(value)) and "return" not in documented(value).__annotations__:
        out.append("does not say what it returns")
    if not examples.examples:
        return [*out, "has no example"]
    failures: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        runner.run(examples, out=failures.append)
    return [*out, *failures]


def main() -> int:
    lacking = {}
    names = public()
    for extra, package in PACKAGES.items():
        if find_spec(package):
            names |= public(extra)
    with tempfile.TemporaryDirectory() as folder:
        given = world(Path(folder))
        for name, value in names.items():
            defects = faults(name, value, given)
            if defects:
                lacking[name] = defects
                print(f"{name}: {'; '.join(defects)}")
    n = len(names)
    print(f"{n - len(lacking)} of {n} public names say what they take and return, and have an example that runs")
    return bool(lacking)


if __name__ == "__main__":
    sys.exit(main())
