"""Models: weights and inputs to potentials, theta = Phi(x) w (paper eq. 1), and the transpose of that map.

``base`` is the protocol: ``model.bind(inputs, engine)`` resolves everything but the numbers and gives ``forward(w)``
and ``adjoint(mu)``. ``linear`` holds the inputs (terms of features on a batch, ``core.terms``), the names of weights
and the linear model; ``partial`` are models with some weights known or left out, ``symmetric`` those with undirected
edges, both as maps of the weights of another model (``mapped``).
"""

from mssvm.models.base import Inputs, Model
from mssvm.models.linear import LinearInputs, LinearModel, WeightLayout
from mssvm.models.partial import ActiveWeights, FixedWeights

__all__ = ["ActiveWeights", "FixedWeights", "Inputs", "LinearInputs", "LinearModel", "Model", "WeightLayout"]
