"""Any encoder of ``transformers`` with the family of this package on top, for tagging words.

    chain = ms.Chain(forbidden="bio")
    model = mssvm.hf.StructuredTokenClassifier.from_encoder("bert-base-cased", tags, structure=chain)
    data = mssvm.hf.encode(tokenizer, sentences, labels, classes=tags)
    Trainer(model, arguments, mssvm.hf.WordCollator(tokenizer), train_dataset=data).train()
    model.tag(["Ada Lovelace wrote to Charles Babbage"], tokenizer)

``config`` is saved beside the weights, ``head`` turns vectors of words into scores, ``pieces`` maps word pieces to
words, ``model`` is the module, ``words`` prepares sentences and labels, ``tagging`` turns predictions into labelled
words and spans.
"""

from mssvm.core.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError:
    raise MissingExtraError('mssvm.hf needs transformers and PyTorch; run pip install "mssvm[hf]".') from None

from mssvm.hf.config import StructuredConfig
from mssvm.hf.model import StructuredOutput, StructuredTokenClassifier
from mssvm.hf.tagging import TaggedSentence, TaggedSpan
from mssvm.hf.words import WordCollator, encode, span_metrics

__all__ = [
    "StructuredConfig",
    "StructuredOutput",
    "StructuredTokenClassifier",
    "TaggedSentence",
    "TaggedSpan",
    "WordCollator",
    "encode",
    "span_metrics",
]
