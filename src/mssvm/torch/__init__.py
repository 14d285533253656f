"""The family as a PyTorch layer: potentials from any network in, the unified objective out.

    loss = mssvm.torch.StructuredLoss(ms.Chain(), eps_y=0, eps_h=1)
    loss({"node": network(x), "edge": transitions}, y, lengths=lengths).backward()     # gradient: mu_plus - mu_minus
    loss.decode({"node": network(x), "edge": transitions}, lengths=lengths)

``layer`` is the module. Its general path lays tensors out as potentials of a batch (``scores`` by ``layouts``, with
``lengths``; ``site_labels``, on a GPU ``labels``) and has values whose gradients are marginals (``functions``); its
fast path takes padded chains (``padded``, ``constraints``, ``chain_operation``, ``reports``). ``sampling`` draws from
the model, ``linear`` is a fitted estimator as a module and back, ``decoder`` and ``recursions`` are best labels and
marginals of chains that can be exported, ``onnx`` writes them to a file. Tensors on the CPU go through the native
engine in float64 (float64 tensors without a copy, other types converted once per call), tensors on a GPU through the
torch engine in their own precision.
"""

from mssvm.core.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtraError('mssvm.torch needs PyTorch; run pip install "mssvm[torch]".') from None

from mssvm.torch.decoder import ChainDecoder
from mssvm.torch.layer import StructuredLoss
from mssvm.torch.linear import StructuredLinear

__all__ = ["ChainDecoder", "StructuredLinear", "StructuredLoss"]
