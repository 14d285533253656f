"""The configuration that is saved beside the weights: that of the encoder, labels, chain and temperatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transformers import AutoConfig, PretrainedConfig

from mssvm.core.checks import temperature
from mssvm.core.errors import InputError, UnsupportedError
from mssvm.core.registry import MEMBERS
from mssvm.structures import Chain
from mssvm.structures.tags import illegal_pairs

POOLINGS = ("first", "mean")
LOSSES = ("zero", "hamming")
OWN_OBJECTIVES = ("M3E", "ModLat")  # not available in the layer


class StructuredConfig(PretrainedConfig):
    """Configuration of a ``StructuredTokenClassifier``.

    Parameters
    ----------
    encoder : a configuration of transformers, or its dictionary
    chain : mapping
        Parameters of ``ms.Chain``; labels in ``forbidden`` and ``forced`` are those of ``id2label``.
    eps_y, eps_h : float
        Temperatures of outputs and of hidden variables; missing labels are hidden variables.
    loss : "zero" or "hamming"
        What a wrong word costs in training: nothing for likelihoods, one for margins.
    pooling : "first" or "mean"
        The vector of a word: the vector of its first piece, or the mean over all its pieces.
    head_dropout : float
    kwargs : mapping
        Parameters of every configuration of transformers, such as ``id2label``.

    >>> from transformers import BertConfig
    >>> config = ms.hf.StructuredConfig(BertConfig(), {"forbidden": "bio"}, id2label={0: "O", 1: "B-x", 2: "I-x"})
    >>> config.structure().forbidden                                 # by the numbers of the classes
    [(None, 2), (0, 2)]
    """

    model_type = "mssvm-structured"
    sub_configs: ClassVar[dict[str, Any]] = {"encoder": AutoConfig}
    has_no_defaults_at_init = True
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["hidden_states", "attentions"]

    def __init__(
        self,
        encoder: PretrainedConfig | Mapping[str, Any] | None = None,
        chain: Mapping[str, Any] | None = None,
        eps_y: float = 1.0,
        eps_h: float = 1.0,
        loss: str = "zero",
        pooling: str = "first",
        head_dropout: float = 0.1,
        **kwargs: Any,
    ) -> None:
        if isinstance(encoder, Mapping):
            encoder = AutoConfig.for_model(**encoder)
        if loss not in LOSSES:
            raise InputError(f"loss must be 'zero' or 'hamming', got {loss!r}.")
        if pooling not in POOLINGS:
            raise InputError(f"pooling must be 'first' or 'mean', got {pooling!r}.")
        self.chain = dict(chain or {})
        self.eps_y = temperature(eps_y, "eps_y")
        self.eps_h = temperature(eps_h, "eps_h")
        self.loss = loss
        self.pooling = pooling
        self.head_dropout = head_dropout
        super().__init__(**kwargs)
        self.encoder: Any = encoder  # last, since super().__init__ would override its choice of attention

    @property
    def hidden_size(self) -> int:
        """Length of the encoder's vectors."""
        return int(self.encoder.hidden_size)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of the scores."""
        return tuple(self.id2label[k] for k in range(len(self.id2label)))

    def structure(self) -> Chain:
        """The chain, with numbers in the place of labels."""
        settings = dict(self.chain)
        number: dict[str | None, int | None] = {label: k for k, label in enumerate(self.labels)}
        number[None] = None
        forbidden = settings.get("forbidden")
        if isinstance(forbidden, str):
            forbidden = illegal_pairs(forbidden, self.labels)
        if forbidden is not None:
            settings["forbidden"] = [(_numbered(a, number), _numbered(b, number)) for a, b in forbidden]
        if settings.get("forced") is not None:
            settings["forced"] = {
                _numbered(label, number): [_numbered(after, number) for after in _listed(successors)]
                for label, successors in settings["forced"].items()
            }
        return Chain(**settings)


def chain_settings(structure: Chain | None) -> dict[str, Any]:
    """The parameters of a chain that differ from the defaults, in types that JSON has."""
    chain = Chain() if structure is None else structure
    if type(chain) is not Chain:
        raise UnsupportedError(f"words are tagged by chains; the structure is {type(chain).__name__}.")
    if chain.fixed is not None:
        raise UnsupportedError("a network has no fixed weights; leave out fixed=.")
    chain.check()
    settings = {name: value for name, value in chain.get_params(deep=False).items() if value != getattr(Chain, name)}
    if settings.get("forbidden") is not None and not isinstance(settings["forbidden"], str):
        settings["forbidden"] = [list(pair) for pair in settings["forbidden"]]
    if settings.get("forced") is not None:
        settings["forced"] = {label: _listed(after) for label, after in settings["forced"].items()}
    return settings


def member_settings(member: str) -> dict[str, Any]:
    """Temperatures and loss of a member of the family, by its name."""
    if member not in MEMBERS:
        raise InputError(f"member must be one of {', '.join(MEMBERS)}, got {member!r}.")
    found = MEMBERS[member]
    if member in OWN_OBJECTIVES:
        raise UnsupportedError(f"{member} has an objective of its own, which the layer does not have.")
    named = {"eps_y": found.eps_y, "eps_h": found.eps_h, "loss": found.loss}
    return {name: value for name, value in named.items() if value is not None}


def _listed(successors: Any) -> list[Any]:
    if isinstance(successors, (list, tuple, set, frozenset)):
        return list(successors)
    return [successors]


def _numbered(label: Any, number: Mapping[Any, int | None]) -> int | None:
    if label not in number:
        raise InputError(f"the chain names the label {label!r}, which is not among {_names(number)}.")
    return number[label]


def _names(labels: Mapping[Any, Any] | Sequence[Any]) -> str:
    return ", ".join(repr(label) for label in labels if label is not None)
