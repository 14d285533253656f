"""Small tensors: more than one thread of PyTorch's would only wait for each other. Nothing is fetched from a hub."""

from __future__ import annotations

import os

import torch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
torch.set_num_threads(1)
