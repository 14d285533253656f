"""Any encoder of transformers with a chain on top, trained by the unified objective."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from mssvm.core.errors import InputError
from mssvm.hf.config import StructuredConfig, chain_settings, member_settings
from mssvm.hf.head import ChainHead, Transitions
from mssvm.hf.pieces import Words
from mssvm.hf.tagging import TaggedSentence, tag_batch
from mssvm.hf.words import WordCollator
from mssvm.structures import Chain
from mssvm.torch import ChainDecoder, StructuredLoss
from mssvm.torch.decoder import PADDING
from mssvm.torch.onnx import BATCH, write

PIECES = "pieces"
NO_DECAY = ("bias", "norm.weight", "layernorm.weight", "layer_norm.weight")  # suffixes of names, in lower case


@dataclass
class StructuredOutput(ModelOutput):
    """What ``StructuredTokenClassifier`` returns.

    ``loss`` is the unified objective, if labels were given; ``logits`` (B, P, K) are the encoder's scores of the labels
    at the first piece of every word, zeros elsewhere; ``paths`` (B, P), in evaluation only, is the best labelling of
    the words at their first pieces, -100 elsewhere; ``hidden_states`` and ``attentions`` are the encoder's.

    >>> output = tagger(**ms.hf.WordCollator(tokenizer)(ms.hf.encode(tokenizer, [["the", "cat"]])))
    >>> output.logits.shape, output.paths.shape, output.loss is None
    (torch.Size([1, 4, 2]), torch.Size([1, 4]), True)
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    paths: torch.Tensor | None = None
    hidden_states: Any = None
    attentions: Any = None


class StructuredTokenClassifier(PreTrainedModel):
    """An encoder of transformers with a chain over the words, in the place of ``AutoModelForTokenClassification``.

    Made by ``from_encoder``, or by ``from_pretrained`` from a folder that ``save_pretrained`` wrote.

    Parameters
    ----------
    config : StructuredConfig
    encoder : a model of transformers
        By default one with random weights, made from ``config.encoder``.

    >>> tagger.config.labels, tagger.config.eps_h
    (('D', 'N'), 1.0)
    """

    config_class = StructuredConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flash_attn_2 = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: StructuredConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        chain = config.structure()
        self.encoder = AutoModel.from_config(config.encoder) if encoder is None else encoder
        _without_pooler(self.encoder)
        self.dropout = torch.nn.Dropout(config.head_dropout)
        self.head = ChainHead(chain, config.hidden_size, len(config.labels))
        self.objective = StructuredLoss(chain, config.eps_y, config.eps_h, config.loss)
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        if isinstance(module, Transitions):
            module.initialise()
            return
        super()._init_weights(module)

    @classmethod
    def from_encoder(
        cls,
        encoder: Any,
        labels: Sequence[str],
        *,
        structure: Chain | None = None,
        member: str = "HCRF",
        eps_y: float | None = None,
        eps_h: float | None = None,
        loss: str | None = None,
        pooling: str = "first",
        head_dropout: float = 0.1,
        **kwargs: Any,
    ) -> StructuredTokenClassifier:
        """A classifier on an ``encoder``: a name or folder, a model, or a configuration (then weights are random).

        ``labels`` are the names of the labels. ``structure`` is a ``Chain``, which may have hidden states and forbidden
        transitions. ``member`` chooses temperatures and loss ("HCRF", "MSSVM", "LSSVM", ...); ``eps_y``,
        ``eps_h`` and ``loss`` override them. ``pooling`` and ``head_dropout`` are those of ``StructuredConfig``;
        ``kwargs`` go to ``AutoModel.from_pretrained``. Weights are read from safetensors files only.

        >>> from transformers import BertConfig
        >>> small = BertConfig(vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
        >>> chain = ms.Chain(hidden=2, forbidden="bio")
        >>> classifier = ms.hf.StructuredTokenClassifier
        >>> model = classifier.from_encoder(small, ["O", "B-x", "I-x"], structure=chain, member="MSSVM")
        >>> model.config.eps_y, model.config.eps_h, model.config.loss
        (0.0, 1.0, 'hamming')
        """
        settings = member_settings(member)
        given = {"eps_y": eps_y, "eps_h": eps_h, "loss": loss}
        settings |= {name: value for name, value in given.items() if value is not None}
        if isinstance(encoder, PretrainedConfig):
            network = AutoModel.from_config(encoder)
        elif isinstance(encoder, PreTrainedModel):
            network = encoder
        else:
            network = AutoModel.from_pretrained(encoder, use_safetensors=True, **kwargs)
        names = dict(enumerate(labels))
        config = StructuredConfig(
            network.config,
            chain_settings(structure),
            pooling=pooling,
            head_dropout=head_dropout,
            id2label=names,
            label2id={label: k for k, label in names.items()},
            **settings,
        )
        return cls(config, network)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Read a classifier that ``save_pretrained`` wrote; weights are read from safetensors files only.

        ``pretrained_model_name_or_path`` is a folder or a name; ``args`` and ``kwargs`` are those of transformers.

        >>> tagger.save_pretrained(folder / "tagger")
        >>> ms.hf.StructuredTokenClassifier.from_pretrained(folder / "tagger").config.labels
        ('D', 'N')
        """
        if kwargs.setdefault("use_safetensors", True) is not True:
            raise InputError("weights are read from safetensors files only; leave out use_safetensors.")
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    # ------------------------------------------------------------------------------------- training

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        word_ids: torch.Tensor | None = None,
        special_tokens_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Loss, scores and, in evaluation, best labels.

        The sites of the chain are words: ``word_ids`` (B, P) has the word of every piece, below zero for none. Without
        it every piece is a site, except those in ``special_tokens_mask``. ``labels`` (B, P) are read at the first
        piece of every word; -100 there is a missing label, which is summed or maximised over. Booleans (B, P, K) mark
        candidates.
        """
        given = {"input_ids": input_ids, "token_type_ids": token_type_ids, "position_ids": position_ids}
        given |= {"inputs_embeds": inputs_embeds, "output_hidden_states": output_hidden_states}
        given |= {"output_attentions": output_attentions}
        encoded, words = self._encoded(attention_mask, word_ids, special_tokens_mask, given)
        scores = self._scores(encoded, words)
        loss = None
        if labels is not None:
            loss = self.objective(scores, words.labels_of_words(labels), lengths=words.lengths)
        paths = None
        if not self.training:
            paths = words.to_pieces(self.objective.decode(scores, lengths=words.lengths), PADDING)
        logits = words.to_pieces(scores["node"], 0.0)
        output = StructuredOutput(loss, logits, paths, encoded.get("hidden_states"), encoded.get("attentions"))
        return output.to_tuple() if return_dict is False else output

    def _encoded(self, attention_mask: Any, word_ids: Any, special: Any, given: dict[str, Any]) -> tuple[Any, Words]:
        """The encoder's output, and the words of its pieces."""
        pieces = given["input_ids"] if given["input_ids"] is not None else given.get("inputs_embeds")
        if pieces is None:
            raise InputError("give input_ids, or inputs_embeds.")
        if attention_mask is None:
            attention_mask = torch.ones(pieces.shape[:2], dtype=torch.int64, device=pieces.device)
        named = {name: value for name, value in given.items() if value is not None}
        encoded = self.encoder(attention_mask=attention_mask, return_dict=True, **named)
        trim = not torch.compiler.is_exporting()
        return encoded, Words.of(attention_mask, word_ids, special, trim)

    def _scores(self, encoded: Any, words: Words) -> dict[str, torch.Tensor]:
        vectors = words.pool(self.dropout(encoded.last_hidden_state), self.config.pooling)
        scores: dict[str, torch.Tensor] = self.head(vectors)
        return scores

    def parameter_groups(
        self, lr: float, transitions_lr: float = 1e-2, head_lr: float | None = None, weight_decay: float = 0.01
    ) -> list[dict[str, Any]]:
        """Groups of parameters for an optimiser of torch, each with its learning rate.

        The encoder has the rate ``lr``; the tables of transitions, which are not pretrained, have ``transitions_lr``;
        the rest of the head has ``head_lr`` (by default ``lr``). ``weight_decay`` leaves out biases, norms and
        transitions.

        >>> [group["lr"] for group in tagger.parameter_groups(3e-5, head_lr=1e-4)]
        [3e-05, 3e-05, 0.0001, 0.0001, 0.01]
        """
        rates = {"encoder": lr, "head": lr if head_lr is None else head_lr}
        groups: dict[tuple[str, bool], dict[str, Any]] = {
            (part, decays): {"params": [], "lr": rate, "weight_decay": weight_decay if decays else 0.0}
            for part, rate in rates.items()
            for decays in (True, False)
        }
        tables: dict[str, Any] = {"params": [], "lr": transitions_lr, "weight_decay": 0.0}
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad:
                continue
            group = groups["head" if name.startswith("head.") else "encoder", not name.lower().endswith(NO_DECAY)]
            if name.startswith("head.transitions."):
                group = tables
            group["params"].append(parameter)
        return [*groups.values(), tables]

    # ------------------------------------------------------------------------------------- inference

    @torch.no_grad()
    def tag(self, sentences: Any, tokenizer: Any, batch_size: int = 32) -> list[TaggedSentence]:
        """Labels, probabilities and spans of ``sentences``: texts, or lists of words.

        ``tokenizer`` is the one of training. It splits texts into words, and spans then have their positions in the
        text. ``batch_size`` sentences go through the encoder at a time.

        >>> tagged = tagger.tag([["the", "cat"]], tokenizer)[0]
        >>> tagged.words, len(tagged.labels), tagged.marginals.shape
        (['the', 'cat'], 2, (2, 2))
        """
        if isinstance(sentences, str):
            raise InputError("sentences must be a list of texts or of lists of words, got one text.")
        was_training = self.training
        self.eval()
        try:
            found: list[TaggedSentence] = []
            for start in range(0, len(sentences), batch_size):
                found += tag_batch(self, tokenizer, sentences[start : start + batch_size], start)
            return found
        finally:
            self.train(was_training)

    def scores(self, features: Sequence[Any], tokenizer: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Scores of the chain over words, as ``StructuredLoss`` takes them, and the number of words of each sentence.

        ``features`` are what ``encode`` returned for the ``tokenizer``.
        """
        unlabelled = [{name: value for name, value in feature.items() if name != "labels"} for feature in features]
        batch = WordCollator(tokenizer)(unlabelled)
        batch = {name: value.to(self.device) for name, value in batch.items()}
        encoded, words = self._encoded(batch.pop("attention_mask"), batch.pop("word_ids"), None, batch)
        return self._scores(encoded, words), words.lengths

    def to_onnx(self, path: str | Path) -> None:
        """Write encoder, head and decoding to the ONNX file ``path``, for any batch and length.

        Inputs are ``input_ids``, ``attention_mask`` and ``word_ids`` (batch, pieces); outputs are ``paths``
        (batch, pieces), -100 except at first pieces of words, and ``marginals`` with the probabilities of all labels.
        """
        rows = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]], device=self.device)
        example = {"input_ids": rows, "attention_mask": rows}
        example["word_ids"] = torch.tensor([[-1, 0, 0, -1], [-1, 0, -1, -1]], device=self.device)
        axes = dict.fromkeys(example, (BATCH, PIECES))
        was_training = self.training
        metadata = {"classes": "\n".join(self.config.labels)}
        try:
            write(_Exported(self), path, example, axes, ("paths", "marginals"), metadata)
        finally:
            self.train(was_training)


class _Exported(torch.nn.Module):
    """Encoder, head and the exportable decoder."""

    def __init__(self, model: StructuredTokenClassifier) -> None:
        super().__init__()
        self.model = model
        self.decoder = ChainDecoder(model.objective.structure, len(model.config.labels), model.config.eps_h)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, word_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        encoded, words = self.model._encoded(attention_mask, word_ids, None, {"input_ids": input_ids})
        paths, marginals = self.decoder(self.model._scores(encoded, words), words.lengths)
        return words.to_pieces(paths, PADDING), words.to_pieces(marginals, 0.0)


def _without_pooler(encoder: PreTrainedModel) -> None:
    """Drop the encoder's pooler if it is optional: nothing would train its parameters."""
    optional = "add_pooling_layer" in inspect.signature(type(encoder).__init__).parameters
    if optional and getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None


AutoConfig.register(StructuredConfig.model_type, StructuredConfig, exist_ok=True)
AutoModelForTokenClassification.register(StructuredConfig, StructuredTokenClassifier, exist_ok=True)
