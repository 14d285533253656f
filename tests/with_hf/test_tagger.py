"""Encoders with a chain on top: losses against the layer by hand, training, saving, tagging, and clumsy calls."""

from __future__ import annotations

import doctest
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import (
    AutoModelForTokenClassification,
    DistilBertConfig,
    ElectraConfig,
    RobertaConfig,
    Trainer,
    TrainingArguments,
)

import mssvm as ms
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.torch import StructuredLoss
from with_hf.small import TAGS, batch, config, sentences, shortened, tagger, tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import public_names

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAIRS = [("O", "I-PER"), (None, "I-LOC")]
CHAINS = {
    "plain": ms.Chain(),
    "bio, ends": ms.Chain(forbidden="bio", ends=True),
    "pairs": ms.Chain(forbidden=PAIRS, forced={"B-LOC": ["I-LOC", "O"]}),
    "hidden": ms.Chain(hidden=2, forbidden="bio"),
    "hidden, direct": ms.Chain(hidden=3, direct=True),
    "linked": ms.Chain(hidden=2, linked=True),
    "second order": ms.Chain(order=2, forbidden="bio"),
}


def by_hand(model: Any, given: dict[str, torch.Tensor], pooling: str) -> dict[str, list[torch.Tensor]]:
    """Scores of every sentence alone: words from pieces by a loop."""
    states = model.encoder(**{name: given[name] for name in ("input_ids", "attention_mask")}).last_hidden_state
    scores: dict[str, Any] = {}
    for b, ids in enumerate(given["word_ids"].tolist()):
        words = []
        for word in range(max(ids) + 1):
            mine = [states[b, p] for p, of in enumerate(ids) if of == word]
            words.append(mine[0] if pooling == "first" else torch.stack(mine).mean(dim=0))
        for name, value in model.head(torch.stack(words)[None]).items():
            if name in ("node", "hidden"):
                scores.setdefault(name, []).append(value[0])
            elif name == "between":
                scores.setdefault(name, []).append(value[0, :-1])
            else:
                scores[name] = value
    return scores


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("name", CHAINS)
def test_the_loss_is_the_layers(name: str, pooling: str) -> None:
    model = tagger(CHAINS[name], pooling=pooling, eps_y=0.5, eps_h=0.5, loss="hamming")
    tags = shortened(5)[1]
    labels = [[None if t == 1 else tag for t, tag in enumerate(row)] for row in tags]
    labels = [row if name != "pairs" else [None] * len(row) for row in labels]
    given = batch(5, labels)
    found = model(**given)
    numbers = [torch.tensor([-100 if tag is None else TAGS.index(tag) for tag in row]) for row in labels]
    layer = StructuredLoss(model.config.structure(), 0.5, 0.5)
    scores = by_hand(model, given, pooling)
    torch.testing.assert_close(found.loss, layer(scores, numbers))
    for b, path in enumerate(layer.decode(scores)):
        first = (given["word_ids"][b] >= 0) & (given["word_ids"][b] != given["word_ids"][b].roll(1))
        assert found.paths[b][first].tolist() == path.tolist()
        assert bool((found.paths[b][~first] == -100).all())
        torch.testing.assert_close(found.logits[b][first], scores["node"][b])


def test_candidates() -> None:
    model = tagger(ms.Chain(hidden=2))
    rows = [[{"B-PER", "O"}], ["B-PER", {"I-PER", "I-LOC"}]]
    given = batch(2, rows)
    assert given["labels"].dtype == torch.bool
    layer = StructuredLoss(ms.Chain(hidden=2), 1.0, 1.0, "zero")
    numbers = [[{1, 0}], [1, {2, 4}]]
    torch.testing.assert_close(model(**given).loss, layer(by_hand(model, given, "first"), numbers))


def test_sentences_with_and_without_candidates_in_one_batch() -> None:
    plain = ms.hf.encode(tokenizer(), [["Ada"]], [["B-PER"]], classes=TAGS)
    either = ms.hf.encode(tokenizer(), [["London"]], [[{"B-PER", "B-LOC"}]], classes=TAGS)
    labels = ms.hf.WordCollator(tokenizer())([*plain, *either])["labels"]
    assert labels[:, 1].tolist() == [[False, True, False, False, False], [False, True, False, True, False]]


def test_labels_of_pieces_as_everybody_has_them() -> None:
    """Without word ids every piece but the special ones is a site, and -100 a missing label."""
    model = tagger()
    given = batch(4)
    special = (given["word_ids"] < 0).long()
    names = ("input_ids", "attention_mask", "labels")
    found = model(**{name: given[name] for name in names}, special_tokens_mask=special)
    states = model.encoder(given["input_ids"], attention_mask=given["attention_mask"]).last_hidden_state
    scores = {"node": [], "edge": model.head.transitions["edge"]}
    labels = []
    for b in range(4):
        mine = special[b] == 0
        scores["node"].append(model.head.node(states[b, mine]))
        labels.append(given["labels"][b, mine])
    torch.testing.assert_close(found.loss, StructuredLoss(ms.Chain(), 1.0, 1.0, "zero")(scores, labels))
    assert torch.equal(found.paths >= 0, special == 0)


def test_padding_changes_nothing() -> None:
    model = tagger(ms.Chain(hidden=2, forbidden="bio"), pooling="mean")
    words, tags = shortened(5)
    features = ms.hf.encode(tokenizer(), words, tags, classes=TAGS)
    alone = [model(**ms.hf.WordCollator(tokenizer())([feature])) for feature in features]
    together = model(**ms.hf.WordCollator(tokenizer(), pad_to_multiple_of=16)(features))
    assert together.logits.shape[1] % 16 == 0
    torch.testing.assert_close(together.loss, torch.stack([one.loss for one in alone]).mean())
    for b, one in enumerate(alone):
        assert torch.equal(together.paths[b, : one.paths.shape[1]], one.paths[0])


def test_gradients_are_those_of_differences() -> None:
    model = tagger(ms.Chain(hidden=2, direct=True, ends=True), member="LossAugmentedCRF")
    given = batch(4)
    parameters = [p for p in model.parameters() if p.requires_grad]
    direction = [torch.randn_like(p) for p in parameters]
    model(**given).loss.backward()
    slope = sum(float((p.grad * d).sum()) for p, d in zip(parameters, direction, strict=True) if p.grad is not None)
    values = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p += step * d
            values.append(float(model(**given).loss))
    assert abs((values[0] - values[1]) / 2e-6 - slope) < 1e-4 * max(1.0, abs(slope))
    assert all(p.grad is not None for p in parameters)


@pytest.mark.parametrize("kind", [DistilBertConfig, ElectraConfig, RobertaConfig])
def test_other_encoders(kind: Any) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind is DistilBertConfig:
        sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}
    model = ms.hf.StructuredTokenClassifier.from_encoder(kind(vocab_size=len(tokenizer()), **sizes), TAGS)
    loss = model(**batch(3)).loss
    loss.backward()
    assert bool(torch.isfinite(loss)) and model.head.node.weight.grad.abs().sum() > 0


# ----------------------------------------------------------------------------------------- training and files


def test_a_trainer_trains_and_the_model_is_read_back(tmp_path: Path) -> None:
    words, tags = (list(part) for part in zip(*sentences(), strict=True))
    hidden = [[None if (b + t) % 3 == 0 else tag for t, tag in enumerate(row)] for b, row in enumerate(tags)]
    features = ms.hf.encode(tokenizer(), words, hidden, classes=TAGS)
    test = ms.hf.encode(tokenizer(), words, tags, classes=TAGS)
    torch.manual_seed(0)
    chain = ms.Chain(hidden=2, forbidden="bio")
    model = ms.hf.StructuredTokenClassifier.from_encoder(config(), TAGS, structure=chain, member="MSSVM")
    arguments = TrainingArguments(
        str(tmp_path / "run"),
        num_train_epochs=12,
        per_device_train_batch_size=6,
        report_to=[],
        use_cpu=True,
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )
    optimiser = torch.optim.AdamW(model.parameter_groups(lr=5e-3, transitions_lr=2e-2))
    trainer = Trainer(
        model,
        arguments,
        ms.hf.WordCollator(tokenizer()),
        train_dataset=features,
        eval_dataset=test,
        compute_metrics=ms.hf.span_metrics(TAGS),
        optimizers=(optimiser, None),
    )
    trainer.train()
    assert trainer.evaluate()["eval_f1"] == 1.0
    trainer.save_model(str(tmp_path / "saved"))
    assert sorted(path.suffix for path in (tmp_path / "saved").iterdir() if "model" in path.name) == [".safetensors"]
    for reader in (ms.hf.StructuredTokenClassifier, AutoModelForTokenClassification):
        same = reader.from_pretrained(tmp_path / "saved")
        assert same.config.structure().get_params() == model.config.structure().get_params()
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, same.get_parameter(name)), name
    tagged = same.tag(["Emmy Noether left New York"], tokenizer())[0]
    assert [(span.label, span.text) for span in tagged.spans] == [("PER", "Emmy Noether"), ("LOC", "New York")]


@pytest.mark.parametrize("name", CHAINS)
def test_configurations_survive_json(name: str, tmp_path: Path) -> None:
    model = tagger(CHAINS[name], eps_h=0.25, pooling="mean")
    model.config.save_pretrained(tmp_path)
    json.loads((tmp_path / "config.json").read_text("utf-8"))
    same = ms.hf.StructuredConfig.from_pretrained(tmp_path)
    assert same.structure().get_params() == model.config.structure().get_params()
    assert (same.labels, same.eps_y, same.eps_h, same.loss, same.pooling) == (tuple(TAGS), 1.0, 0.25, "zero", "mean")
    assert type(same.encoder) is type(model.config.encoder) and same.encoder.vocab_size == len(tokenizer())


def test_an_encoder_is_read_from_its_own_folder(tmp_path: Path) -> None:
    encoder = tagger().encoder.float()
    encoder.save_pretrained(tmp_path)
    model = ms.hf.StructuredTokenClassifier.from_encoder(str(tmp_path), TAGS)
    for name, parameter in encoder.named_parameters():
        assert torch.equal(parameter, model.encoder.get_parameter(name)), name
    assert bool((model.head.transitions["edge"].abs() < 1.0).all())


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    model = tagger()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        ms.hf.StructuredTokenClassifier.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="safetensors files only"):
        ms.hf.StructuredTokenClassifier.from_pretrained(tmp_path, use_safetensors=False)


def test_every_parameter_is_in_one_group() -> None:
    model = tagger(ms.Chain(hidden=2, ends=True))
    groups = model.parameter_groups(1e-5, transitions_lr=1e-2, head_lr=1e-3, weight_decay=0.1)
    rates = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters())) == len(rates)
    for name, parameter in model.named_parameters():
        part = name.split(".")[0]
        rate, decay = rates[id(parameter)]
        if "transitions" in name:
            assert (rate, decay) == (1e-2, 0.0)
            continue
        assert rate == {"encoder": 1e-5, "head": 1e-3}[part]
        assert decay == (0.0 if "bias" in name or "LayerNorm" in name else 0.1)


# ----------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("name", ["bio, ends", "hidden", "linked", "second order"])
def test_tags_and_the_probabilities_of_spans(name: str) -> None:
    """Probabilities of spans by all labellings of the sentence."""
    model = tagger(CHAINS[name], eps_h=0.0 if name == "linked" else 1.0)
    words = ["Ada", "Lovelace", "left", "London"]
    with torch.no_grad():
        model.head.node.bias[1] += 4.0  # so that there are spans
        scores, lengths = model.scores(ms.hf.encode(tokenizer(), [words]), tokenizer())
    values = {}
    for states in product(range(len(TAGS)), repeat=len(words)):
        given = torch.tensor([states])
        try:
            values[states] = float(model.objective.log_partition(scores, given=given, lengths=lengths).detach())
        except (ms.errors.InfeasibleError, InputError):
            continue
    weights = np.exp(np.array(list(values.values())) - max(values.values()))
    tagged = model.tag([words], tokenizer())[0]
    assert tagged.spans
    for span in tagged.spans:
        inside = [
            (span.start, span.stop, span.label) in ms.metrics.spans([TAGS[k] for k in states])
            and [TAGS[k] for k in states[span.start : span.stop]] == tagged.labels[span.start : span.stop]
            for states in values
        ]
        assert abs(weights[inside].sum() / weights.sum() - span.probability) < 1e-9
    for t, label in enumerate(tagged.labels):
        mine = [TAGS[states[t]] == label for states in values]
        assert abs(weights[mine].sum() / weights.sum() - tagged.probabilities[t]) < 1e-9


def test_texts_and_words_have_the_same_tags() -> None:
    model = tagger(ms.Chain(forbidden="bio"))
    words = [row for row, _ in sentences()[:7]]
    texts = [" ".join(row) for row in words]
    of_texts = model.tag(texts, tokenizer(), batch_size=3)
    for one, two, text in zip(of_texts, model.tag(words, tokenizer()), texts, strict=True):
        assert (one.words, one.labels) == (two.words, two.labels)
        np.testing.assert_allclose(one.marginals, two.marginals)
        for span in one.spans:
            assert text[span.first_char : span.last_char] == span.text
        assert [span.first_char for span in two.spans] == [None] * len(two.spans)


def test_words_without_pieces_are_tagged_and_no_sentences_too() -> None:
    model = tagger()
    assert len(model.tag([["Ada", "\u200b ", "left"]], tokenizer())[0].labels) == 3
    assert model.tag([], tokenizer()) == []
    model.train()
    model.tag(["Ada"], tokenizer())
    assert model.training


def test_the_classifier_as_onnx(tmp_path: Path) -> None:
    model = tagger(ms.Chain(hidden=2, forbidden="bio"), pooling="mean").float()
    model.to_onnx(tmp_path / "tagger.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(tmp_path / "tagger.onnx", options, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["classes"].split("\n") == TAGS
    words = [row for row, _ in sentences()]
    features = ms.hf.encode(tokenizer(), [*words, ["Ada"], words[0] * 2], None)
    for start, stop in ((0, 1), (1, 8), (30, 38)):
        given = ms.hf.WordCollator(tokenizer())(features[start:stop])
        inputs = {name: given[name].numpy() for name in ("input_ids", "attention_mask", "word_ids")}
        paths, marginals = session.run(None, inputs)
        assert np.array_equal(paths, model(**given).paths.numpy())
        assert np.abs(marginals.sum(axis=2) - (paths >= 0)).max() < 1e-5


# ----------------------------------------------------------------------------------------- clumsy calls, examples

CLUMSY: dict[str, tuple[Any, str]] = {
    "a text": (lambda: tagger().tag("Ada left", tokenizer()), "a list of texts"),
    "texts to encode": (lambda: ms.hf.encode(tokenizer(), ["Ada left"]), "lists of words"),
    "no classes": (lambda: ms.hf.encode(tokenizer(), [["Ada"]], [["O"]]), "need classes="),
    "unknown label": (lambda: ms.hf.encode(tokenizer(), [["Ada"]], [["X"]], classes=TAGS), "X"),
    "too few labels": (lambda: ms.hf.encode(tokenizer(), [["Ada", "left"]], [["O"]], classes=TAGS), "labels"),
    "labels in no list": (lambda: ms.hf.encode(tokenizer(), [["Ada"]], ["O"], classes=TAGS), "a list of labels"),
    "too long": (lambda: ms.hf.encode(tokenizer(), [["Lovelace"] * 60]), "split it"),
    "text too long": (lambda: tagger().tag(["Lovelace " * 60], tokenizer()), "split it"),
    "labels of words": (lambda: tagger()(**{**batch(3), "labels": torch.zeros(3, 2, dtype=torch.long)}), "first piece"),
    "nothing": (lambda: tagger()(), "give input_ids"),
    "a grid": (lambda: tagger(ms.Grid()), "tagged by chains"),
    "fixed": (lambda: tagger(ms.Chain(fixed={"transition": 0.0})), "no fixed weights"),
    "member": (lambda: tagger(member="SVM"), "member must be one of"),
    "objective": (lambda: tagger(member="M3E"), "objective of its own"),
    "pooling": (lambda: tagger(pooling="last"), "'first' or 'mean'"),
    "loss": (lambda: tagger(loss="spans"), "'zero' or 'hamming'"),
    "forbidden": (lambda: tagger(ms.Chain(forbidden=[("O", "X")])), "'X', which is not among"),
}


@pytest.mark.parametrize("name", CLUMSY)
def test_clumsy_calls_get_a_sentence(name: str) -> None:
    call, sentence = CLUMSY[name]
    with pytest.raises((InputError, UnsupportedError), match=sentence):
        call()


NAMES = public_names.public("hf")


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_its_parameters_and_an_example(name: str, tmp_path: Path) -> None:
    assert public_names.faults(name, NAMES[name], public_names.world(tmp_path)) == []


@pytest.mark.parametrize("page", ["transformers.md", "export.md"])
@pytest.mark.filterwarnings("ignore")
def test_examples_of_pages_run(page: str) -> None:
    assert doctest.testfile(str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS).failed == 0
