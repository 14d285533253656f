"""Plans of elimination, under their former name (``mssvm.engines.elimination``)."""

from mssvm.engines.elimination import CLAMPED, HIDDEN, OUTPUT, Cost, EliminationPlan, describe

__all__ = ["CLAMPED", "HIDDEN", "OUTPUT", "Cost", "EliminationPlan", "describe"]
