"""Several annotators, labelling functions, noisy labels: votes are observed, the true labels are hidden.

    U = PS_y[eps_y] PS_h[eps_h] (theta + Delta)  -  PS_y[eps_y] PS_h[eps_h] (theta + evidence)
    evidence(y_t) = weight * sum_a log p_a(vote of a at t | y_t)

``votes`` lays votes out in flat arrays, ``confusion`` holds the tables p_a, ``baselines`` has majority and Dawid-Skene,
``table`` describes annotators, ``review`` finds sites worth a second look, ``simulate`` draws data with known tables.
Training is in ``estimators.crowd``.
"""

from mssvm.annotators.baselines import dawid_skene, majority
from mssvm.annotators.confusion import Annotators
from mssvm.annotators.review import Doubt, Habit, Review, review
from mssvm.annotators.simulate import SimulatedCrowd, simulate
from mssvm.annotators.table import AnnotatorSummary, AnnotatorTable
from mssvm.annotators.votes import GOLD

__all__ = [
    "GOLD",
    "AnnotatorSummary",
    "AnnotatorTable",
    "Annotators",
    "Doubt",
    "Habit",
    "Review",
    "SimulatedCrowd",
    "dawid_skene",
    "majority",
    "review",
    "simulate",
]
