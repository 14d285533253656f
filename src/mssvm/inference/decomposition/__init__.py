"""Inference on loopy graphs by a convergent upper bound: a sum over monotone chains, made tight by messages.

``decompose`` has the settings, ``plan`` says which instances are exact and which are bounded, ``answer`` sweeps and
reads, ``labelling`` turns a bound of a maximum into a labelling with a score of its own, ``product`` bounds from below.
"""

from mssvm.inference.decomposition.decompose import Decompose

__all__ = ["Decompose"]
