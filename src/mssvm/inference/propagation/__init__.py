"""Belief propagation."""

from mssvm.inference.propagation.propagate import Propagate

__all__ = ["Propagate"]
