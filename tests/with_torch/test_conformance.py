"""The conformance table of exact inference with the torch engine: on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import torch

from builders import On
from conformance import methods
from mssvm.engines.torch import TorchEngine
from mssvm.inference.exact import Exact

methods.METHODS.clear()
methods.METHODS["torch"] = lambda threads: On(Exact(), TorchEngine())
if torch.cuda.is_available():
    methods.METHODS["torch, cuda"] = lambda threads: On(Exact(), TorchEngine("cuda"))
    methods.METHODS["torch, cuda, plain"] = lambda threads: On(Exact(), TorchEngine("cuda", plain=True))

from conformance import test_exact  # noqa: E402
from conformance.test_exact import (  # noqa: E402, F401
    test_equals_brute_force,
    test_ties_change_the_decode_but_not_the_value,
)
from conformance.test_marginals import (  # noqa: E402, F401
    test_an_infeasible_instance_spoils_only_itself,
    test_nothing_at_all_is_answered_too,
    test_one_query_serves_batches_of_other_shapes,
    test_status_says_exact,
    test_what_cannot_be_computed_is_refused,
)

test_exact.TOLERANCE = 1e-10
