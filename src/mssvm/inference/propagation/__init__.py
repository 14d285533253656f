"""Belief propagation: settings (``propagate``), resolved for a query (``plan``), run on any engine's messages.

A call (``call``) answers sums at positive eps_y itself; at eps_y = 0 it hands groups of instances to a search
(``search``): starts (``starts``, and ``cut_starts`` by minimum ``cuts``) propose outputs y, ``judge`` evaluates their
Q, ``polish`` improves the best. ``merging`` sums hidden components out into factors over the outputs around them,
``effort`` limits what is tried, ``uniforms`` are its random numbers. The engine does all numerical work.
"""

from mssvm.inference.propagation.propagate import Propagate

__all__ = ["Propagate"]
