"""A tokenizer trained on embedded sentences, a small encoder, and sentences about who wrote to whom, and where."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, PreTrainedTokenizerFast, set_seed

import mssvm as ms

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
PEOPLE = ["Ada Lovelace", "Charles Babbage", "Emmy Noether", "Kurt"]
PLACES = ["London", "New York", "Vienna"]
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


@cache
def tokenizer() -> Any:
    """Word pieces, most words in several."""
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    text = [" ".join(words) for words, _ in sentences()]
    trainer = trainers.WordPieceTrainer(vocab_size=70, special_tokens=list(SPECIAL.values()), show_progress=False)
    pieces.train_from_iterator(text, trainer)
    ends = [(name, pieces.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    pieces.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, model_max_length=48, **SPECIAL)


@cache
def sentences() -> list[tuple[list[str], list[str]]]:
    """Words and tags."""
    out = []
    for person, place, verb in product(PEOPLE, PLACES, ("wrote from", "lived in", "left")):
        words: list[str] = []
        tags: list[str] = []
        for text, kind in ((person, "PER"), (verb, ""), (place, "LOC")):
            for number, word in enumerate(text.split()):
                words.append(word)
                letter = "I" if number else "B"
                tags.append(f"{letter}-{kind}" if kind else "O")
        out.append((words, tags))
    return out


def config(**more: Any) -> BertConfig:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertConfig(vocab_size=len(tokenizer()), max_position_embeddings=48, **{**sizes, **more})


def tagger(chain: ms.Chain | None = None, **settings: Any) -> Any:
    """A classifier at random, in double precision and evaluation."""
    set_seed(0)
    model = ms.hf.StructuredTokenClassifier.from_encoder(config(), TAGS, structure=chain, **settings)
    for table in model.head.transitions.values():
        torch.nn.init.normal_(table)
    return model.double().eval()


def batch(n: int, labels: Any = None) -> dict[str, torch.Tensor]:
    """The first sentences, shortened to different lengths, with their tags or other labels."""
    words, tags = shortened(n)
    features = ms.hf.encode(tokenizer(), words, tags if labels is None else labels, classes=TAGS)
    return ms.hf.WordCollator(tokenizer())(features)


def shortened(n: int) -> tuple[list[list[str]], list[list[str]]]:
    chosen = sentences()[:n]
    return [w[: 1 + b] for b, (w, _) in enumerate(chosen)], [t[: 1 + b] for b, (_, t) in enumerate(chosen)]
