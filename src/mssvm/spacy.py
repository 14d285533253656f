"""A trainable component of spaCy that finds entities with a chain of this package: ``nlp.add_pipe("mssvm_ner")``.

Importing this module registers the component. Tokens whose entity is unknown ("-" in spaCy) are missing labels.
``nlp.initialize`` collects the entity labels, ``nlp.update`` continues training on a batch (``partial_fit``), and
``nlp.to_disk`` writes a safetensors file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from mssvm import estimators
from mssvm.core.checks import count, number
from mssvm.core.errors import InputError, MissingExtraError
from mssvm.core.registry import MEMBERS
from mssvm.data.chunks import spans
from mssvm.structures import Chain

try:
    from spacy.language import Language
    from spacy.pipeline import Pipe
    from spacy.scorer import get_ner_prf
    from spacy.tokens import Span
    from spacy.util import minibatch
except ImportError:
    raise MissingExtraError('mssvm.spacy needs spaCy; run pip install "mssvm[spacy]".') from None

__all__ = ["EntityChain"]

FILE = "model.safetensors"
BIO = {"B": "B", "I": "I", "L": "I", "U": "B"}  # spaCy's BILUO letters as BIO
SETTINGS = {"member": "CRF", "hidden": 0, "C": 1.0}


class EntityChain(Pipe):
    """Entities as BIO tags of a chain, on the features of words (``ms.features.words``).

    Parameters
    ----------
    name : str
        Of the component: the key of its loss, and its folder on disk.
    member : str
        A member of the family: "CRF", "MSSVM", "HCRF", ...
    hidden : int
        Hidden states between tokens.
    C : float
        The weight of the data against the regulariser; for small batches choose a small one.
    """

    def __init__(self, name: str = "mssvm_ner", member: str = "CRF", hidden: int = 0, C: float = 1.0) -> None:
        if member not in MEMBERS:
            raise InputError(f"member must be one of {', '.join(MEMBERS)}, got {member!r}.")
        self.name = name
        self._kind = getattr(estimators, member)
        self._hidden = count(hidden, "hidden", 0)
        self._C = number(C, "C", above=0.0)
        self._entities: tuple[str, ...] = ()
        self.estimator: Any = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The entity labels."""
        return self._entities

    # ------------------------------------------------------------------------------------- learning

    def initialize(self, get_examples: Callable[[], Iterable[Any]], *, nlp: Any = None, labels: Any = None) -> None:
        """Start from scratch; the entity labels are ``labels``, or those of the examples."""
        found = set(labels or ())
        for example in () if labels else get_examples():
            found |= {tag.partition("-")[2] for tag in tags_of(example) if tag not in (None, "O")}
        if not found:
            raise InputError("no example has an entity; give labels=, or examples with entities.")
        self._entities = tuple(sorted(found))
        classes = ["O", *(f"{letter}-{entity}" for entity in self._entities for letter in "BI")]
        structure = Chain(hidden=self._hidden, forbidden="bio")
        self.estimator = self._kind(structure, C=self._C, classes=classes, random_state=0)

    def update(self, examples: Iterable[Any], *, drop: float = 0.0, sgd: Any = None, losses: Any = None) -> Any:
        """Continue training on a batch of examples; its objective is added to ``losses``."""
        listed = [example for example in examples if len(example.predicted)]
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        if self.estimator is None:
            raise InputError("the component was not initialised; call nlp.initialize(get_examples) first.")
        if listed:
            self.estimator.partial_fit([words_of(e.predicted) for e in listed], [tags_of(e) for e in listed])
            losses[self.name] += self.estimator.objective_
        return losses

    # ------------------------------------------------------------------------------------- answers

    def __call__(self, doc: Any) -> Any:
        """The document with its entities."""
        return next(iter(self.pipe([doc])))

    def pipe(self, stream: Iterable[Any], *, batch_size: int = 128) -> Iterator[Any]:
        """The documents with their entities, in batches."""
        for docs in minibatch(stream, size=batch_size):
            tagged = [doc for doc in docs if len(doc)]
            if tagged and hasattr(self.estimator, "coef_"):
                found = self.estimator.predict([words_of(doc) for doc in tagged])
                for doc, tags in zip(tagged, found, strict=True):
                    entities = spans(tags.tolist())
                    doc.set_ents([Span(doc, start, stop, label=entity) for start, stop, entity in entities])
            yield from docs

    def score(self, examples: Iterable[Any], **settings: Any) -> dict[str, Any]:
        """Precision, recall and F1 of entities, by spaCy's own scorer."""
        scores: dict[str, Any] = get_ner_prf(examples, **settings)
        return scores

    # ------------------------------------------------------------------------------------- files

    def to_disk(self, path: Any, *, exclude: Any = ()) -> None:
        """Write the model into the folder ``path``."""
        if not hasattr(self.estimator, "coef_"):
            raise InputError("the component has learned nothing that could be written; train it first.")
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        self.estimator.save(folder / FILE)

    def from_disk(self, path: Any, *, exclude: Any = ()) -> EntityChain:
        """Read what ``to_disk`` wrote."""
        self.estimator = estimators.load(Path(path) / FILE)
        kinds = {label.partition("-")[2] for label in self.estimator.labels_.classes if label != "O"}
        self._entities = tuple(sorted(kinds))
        return self

    def to_bytes(self, *, exclude: Any = ()) -> bytes:
        """The model file as bytes."""
        with tempfile.TemporaryDirectory() as folder:
            self.to_disk(folder)
            return (Path(folder) / FILE).read_bytes()

    def from_bytes(self, data: bytes, *, exclude: Any = ()) -> EntityChain:
        """Read what ``to_bytes`` wrote."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / FILE).write_bytes(data)
            return self.from_disk(folder)


def words_of(doc: Any) -> list[str]:
    """The tokens of a document as words, with "_" for white space, which has no features."""
    return [token.text if token.text.strip() else "_" for token in doc]


def tags_of(example: Any) -> list[str | None]:
    """BIO tags of an example's tokens, None where the entity is unknown."""
    tags: list[str | None] = []
    for tag in example.get_aligned_ner():
        letter, _, entity = (tag or "").partition("-")
        tags.append(f"{BIO[letter]}-{entity}" if letter in BIO and entity else tag)
    return tags


@Language.factory("mssvm_ner", default_config=SETTINGS, assigns=["doc.ents"], default_score_weights={"ents_f": 1.0})
def make(nlp: Any, name: str, member: str, hidden: int, C: float) -> EntityChain:
    """The component, as ``nlp.add_pipe`` makes it."""
    return EntityChain(name, member, hidden, C)
