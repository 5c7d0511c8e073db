"""Without a GPU the kernels run through Triton's interpreter, chosen before they are made."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
