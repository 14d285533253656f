"""Inference on loopy graphs by a convergent upper bound: a sum over monotone chains, made tight by messages.

``decompose`` has the settings, ``plan`` says which instances are exact and which are bounded, ``answer`` runs sweeps
and reads marginals off the messages, ``labelling`` searches for a labelling whose score is close to the bound of a
maximum. ``product`` and ``mean_field`` bound from below, ``certified`` subtracts that bound in training, and
``consistent`` proves how small the bound by chains can become.
"""

from mssvm.inference.decomposition.decompose import Decompose

__all__ = ["Decompose"]
