"""Small tensors: more than one thread of PyTorch's would only wait for each other."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
