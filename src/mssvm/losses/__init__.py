"""Losses Delta(truth, prediction) as tables to add to the potentials."""

from mssvm.losses.losses import Hamming, Loss, TableLoss, WeightedHamming, Zero

__all__ = ["Hamming", "Loss", "TableLoss", "WeightedHamming", "Zero"]
