"""Inference: which plan answers which question, and what its answer promises.

``Exact`` refuses what does not fit, ``Propagate`` approximates by messages, ``Auto`` takes the first where it fits and
the second elsewhere, ``Enumerate`` is brute force; ``bounds`` certifies any of them from both sides. Each is a set of
settings that plans a batch on an engine (``base``): plan once, bind a query once, run on many potentials.
"""
