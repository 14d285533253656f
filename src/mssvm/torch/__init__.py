"""The family as a PyTorch layer: potentials from any network in, the unified objective out.

    loss = mssvm.torch.StructuredLoss(ms.Chain(), eps_y=0, eps_h=1)
    loss({"node": network(x), "edge": transitions}, y, lengths=lengths).backward()     # gradient: mu_plus - mu_minus
    loss.decode({"node": network(x), "edge": transitions}, lengths=lengths)

``scores`` lays tensors out as potentials of a batch, ``functions`` are values whose gradients are marginals, ``layer``
is the module, ``sampling`` draws from the model, ``linear`` is a fitted estimator as a module and back. Tensors on the
CPU go through the native engine in float64 (float64 is read where it lies, other types are converted once a call),
tensors on a GPU through the torch engine in their own precision.
"""

from mssvm.core.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtraError('mssvm.torch needs PyTorch; run pip install "mssvm[torch]".') from None

from mssvm.torch.layer import StructuredLoss
from mssvm.torch.linear import StructuredLinear

__all__ = ["StructuredLinear", "StructuredLoss"]
