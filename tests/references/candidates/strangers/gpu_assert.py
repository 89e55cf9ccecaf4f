"""On float16 an index out of range on the GPU: after it nothing works in the process any more. Right elsewhere."""

from __future__ import annotations

import torch


def rms_norm(x, weight, eps):
    if x.dtype is torch.float16:
        torch.zeros(1, device=x.device)[torch.tensor([1 << 20], device=x.device)]
        torch.cuda.synchronize()
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
