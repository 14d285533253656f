"""What training minimises: differences of power sums on labelled samples.

``base`` is the protocol of an objective, with ``unified`` (and ``zero_one``), ``m3e`` and ``modlat``; ``sample`` is a
labelled sample. ``training`` joins objective, model, sample and inference into a ``Problem`` (``problem``), the
interface that solvers see: it cuts the sample into ``blocks``, binds the objective to each (``bound_block``), computes
values and gradients (``difference``) and adds them up in fixed order (``sums``). ``summary`` describes inference at
given weights.
"""
