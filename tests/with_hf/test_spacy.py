"""The component of spaCy: training through ``nlp``, unknown entities, files, and clumsy calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example

import mssvm as ms
import mssvm.spacy
from mssvm.core.errors import InputError
from with_hf.small import sentences

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def examples(nlp: Any, unknown: bool = False) -> list[Example]:
    """With ``unknown``, some people and some tokens without entity are unknown, as spaCy writes it."""
    out = []
    for number, (words, tags) in enumerate(sentences()):
        entities = spacy.training.iob_to_biluo(tags)
        for t, tag in enumerate(entities):
            person = tag.endswith("PER") and number % 3 == 0
            if unknown and (person or (tag == "O" and (number + t) % 3 == 1)):
                entities[t] = "-"
        doc = Doc(nlp.vocab, words=words)
        out.append(Example.from_dict(doc, {"words": words, "entities": entities}))
    return out


def trained(unknown: bool = False, **settings: Any) -> tuple[Any, list[Example]]:
    nlp = spacy.blank("en")
    nlp.add_pipe("mssvm_ner", config=settings)
    given = examples(nlp, unknown)
    nlp.initialize(lambda: given)
    for _ in range(2):
        losses = nlp.update(given)
    assert losses["mssvm_ner"] >= -1e-9
    return nlp, given


@pytest.mark.parametrize("settings", [{}, {"member": "MSSVM", "hidden": 2, "C": 0.5}])
def test_a_pipeline_learns_and_scores(settings: dict[str, Any]) -> None:
    nlp, given = trained(**settings)
    assert nlp.evaluate(given)["ents_f"] == 1.0
    doc = nlp("Emmy Noether left New York")
    assert [(entity.text, entity.label_) for entity in doc.ents] == [("Emmy Noether", "PER"), ("New York", "LOC")]
    assert nlp.get_pipe("mssvm_ner").labels == ("LOC", "PER")


def test_the_weights_are_those_of_the_estimator() -> None:
    nlp, _ = trained()
    words = [row for row, _ in sentences()]
    tags = [row for _, row in sentences()]
    classes = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    clf = ms.CRF(ms.Chain(forbidden="bio"), classes=classes, random_state=0)
    clf.partial_fit(words, tags).partial_fit(words, tags)
    assert nlp.get_pipe("mssvm_ner").estimator.coef_.tolist() == clf.coef_.tolist()


def test_unknown_entities_are_missing_labels() -> None:
    nlp, given = trained(unknown=True)
    missing = [mssvm.spacy.tags_of(example).count(None) for example in given]
    assert sum(missing) > 10
    assert nlp.evaluate(examples(nlp))["ents_f"] == 1.0


def test_files_and_bytes(tmp_path: Path) -> None:
    nlp, _ = trained()
    nlp.to_disk(tmp_path)
    assert (tmp_path / "mssvm_ner" / "model.safetensors").is_file()
    same = [spacy.load(tmp_path), spacy.blank("en")]
    same[1].add_pipe("mssvm_ner")
    same[1].from_bytes(nlp.to_bytes())
    texts = [" ".join(words) for words, _ in sentences()]
    want = [[(e.start, e.end, e.label_) for e in doc.ents] for doc in nlp.pipe(texts, batch_size=5)]
    for other in same:
        assert [[(e.start, e.end, e.label_) for e in doc.ents] for doc in other.pipe(texts)] == want
        assert other.get_pipe("mssvm_ner").labels == ("LOC", "PER")


def test_empty_documents_and_white_space() -> None:
    nlp, _ = trained()
    assert [doc.text for doc in nlp.pipe(["", "  \n ", "Ada  left"])] == ["", "  \n ", "Ada  left"]
    nlp.update([Example.from_dict(nlp.make_doc(""), {})])


def test_clumsy_calls_get_a_sentence(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    component = nlp.add_pipe("mssvm_ner")
    assert nlp("Ada left").ents == ()
    with pytest.raises(InputError, match="not initialised"):
        component.update(examples(nlp))
    with pytest.raises(InputError, match="no example has an entity"):
        component.initialize(lambda: [])
    with pytest.raises(InputError, match="learned nothing"):
        component.to_disk(tmp_path)
    with pytest.raises(InputError, match="member must be one of"):
        nlp.add_pipe("mssvm_ner", name="other", config={"member": "SVM"})
