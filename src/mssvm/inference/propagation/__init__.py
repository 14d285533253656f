"""Belief propagation: settings (``propagate``), resolved for a query (``plan``), run on any engine's messages.

A call (``call``) answers sums at positive eps_y itself; at eps_y = 0 it hands blocks of instances to a search over
starts (``search``) that judges every decoded y by its evaluated Q. ``merging`` sums hidden components out into factors
over the outputs around them, ``effort`` says what may be tried. Everything numerical is the engine's.
"""

from mssvm.inference.propagation.propagate import Propagate

__all__ = ["Propagate"]
