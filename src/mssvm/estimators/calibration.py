"""The temperature at which the probabilities of a model have the least log loss on labelled data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mssvm.data.calibration import log_loss
from mssvm.data.labels import Labels
from mssvm.estimators.prediction import PredictionRequest

LOG_TEMPERATURES = tuple(0.5 * np.log(2.0) * k for k in range(-10, 11))  # a grid from 1/32 to 32


@dataclass(frozen=True)
class CalibratedTemperature:
    """The temperature of least log loss among those searched; ``at_edge``: the loss still falls at the end of the
    searched interval, so that a temperature outside it may be better."""

    temperature: float
    log_loss: float
    at_edge: bool


def best_temperature(request: PredictionRequest, labels: Labels, eps_h: float) -> CalibratedTemperature:
    """The T of least log loss of the labels under p(y | x) ~ exp(PS_h[eps_h] (theta / T)).

    The loss of structured marginals can have several minima in T. So it is evaluated on a grid first, and every local
    minimum of the grid is refined between its neighbours. Among equally good temperatures the one closest to 1 is kept.
    """
    from scipy.optimize import minimize_scalar  # takes longer to import than most calls of predict

    def loss(log_t: float) -> float:
        return log_loss(request.marginals(np.exp(log_t), eps_h * np.exp(log_t)), labels)

    evaluated = [(loss(log_t), log_t) for log_t in LOG_TEMPERATURES]
    padded = [np.inf, *(value for value, _ in evaluated), np.inf]
    last = len(LOG_TEMPERATURES) - 1
    for k in range(last + 1):
        before, value, after = padded[k : k + 3]
        if before > value <= after:
            bounds = LOG_TEMPERATURES[max(k - 1, 0)], LOG_TEMPERATURES[min(k + 1, last)]
            refined = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.03})
            evaluated.append((float(refined.fun), float(refined.x)))
    least, log_t = min(evaluated, key=lambda pair: (pair[0], abs(pair[1])))
    return CalibratedTemperature(float(np.exp(log_t)), least, bool(abs(log_t) == LOG_TEMPERATURES[-1]))
