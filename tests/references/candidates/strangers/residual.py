"""Fused residual norms as kernel authors bring them, `(x, r, w, eps)` in PyTorch: right ones, and ones with one fault.

The rounding is gemma's. Each faulty one replaces one line of `Fused`.
"""

from __future__ import annotations

import torch
from torch import nn


class Fused(torch.autograd.Function):
    """S = R(X + R) and its norm; what a fault replaces are the methods below."""

    @classmethod
    def of(cls, x, r, w, eps):
        return cls.apply(x, r, w, eps)

    @classmethod
    def forward(cls, ctx, x, r, w, eps):
        s = cls.stream(x, r)
        h = cls.normed(x, r, s)
        rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, s, w, rstd)
        return cls.y(h * rstd * w.to(h.dtype), r).to(x.dtype), cls.returned(x, r, s)

    @classmethod
    def backward(cls, ctx, dy, ds):
        x, s, w, rstd = ctx.saved_tensors
        h, g, d = (wide(t) for t in (s, dy, ds))
        m = g * w.to(h.dtype)
        d_norm = rstd * (m - h * rstd**2 * (m * h).mean(-1, keepdim=True))
        dx = cls.added(d_norm, d, x.dtype).to(x.dtype)
        terms = g * cls.of_dw(x, s) * rstd
        return dx, cls.dr(dx), terms.reshape(-1, x.shape[-1]).sum(0).to(w.dtype), None

    stream = staticmethod(lambda x, r: x + r)
    normed = staticmethod(lambda x, r, s: wide(s))
    y = staticmethod(lambda y, r: y)
    returned = staticmethod(lambda x, r, s: s)
    added = staticmethod(lambda d_norm, ds, dtype: d_norm + ds)
    dr = staticmethod(lambda dx: dx)
    of_dw = staticmethod(lambda x, s: wide(s))


def wide(t):
    return t if t.dtype == torch.float64 else t.float()


def faulty(**methods):
    """`Fused` with other methods."""
    return type("Faulty", (Fused,), {name: staticmethod(method) for name, method in methods.items()}).of


right = Fused.of
s_unrounded = faulty(returned=lambda x, r, s: wide(x) + wide(r))
s_truncated = faulty(stream=lambda x, r: torch.nextafter(x + r, torch.zeros_like(x)))
s_is_x = faulty(returned=lambda x, r, s: x.clone())
s_loses_the_sign_of_zero = faulty(returned=lambda x, r, s: s + 0.0)
y_of_x = faulty(normed=lambda x, r, s: wide(x))
y_of_the_unrounded_sum = faulty(normed=lambda x, r, s: wide(x) + wide(r))
added_after_the_norm = faulty(normed=lambda x, r, s: wide(x), y=lambda y, r: y.to(r.dtype) + r)
ds_dropped = faulty(added=lambda d_norm, ds, dtype: d_norm)
ds_after_rounding = faulty(added=lambda d_norm, ds, dtype: d_norm.to(dtype) + ds.to(dtype))
dr_all_0 = faulty(dr=torch.zeros_like)
dr_missing = faulty(dr=lambda dx: None)
dw_of_x = faulty(of_dw=lambda x, s: wide(x))
norms_gradient_dropped = faulty(added=lambda d_norm, ds, dtype: ds.clone())


def x_overwritten(x, r, w, eps):  # as an in-place fused add does
    y, s = Fused.apply(x, r, w, eps)
    x.data.copy_(s.data)
    return y, s


def only_y(x, r, w, eps):
    return Fused.apply(x, r, w, eps)[0]


def s_detached(x, r, w, eps):
    y, s = Fused.apply(x, r, w, eps)
    return y, s.detach()


class NeedsBoth(Fused):
    """Wrong where nothing arrives at S."""

    @classmethod
    def forward(cls, ctx, x, r, w, eps):
        ctx.set_materialize_grads(False)
        return super().forward(ctx, x, r, w, eps)

    @classmethod
    def backward(cls, ctx, dy, ds):
        if ds is None:
            return (None,) * 4
        return super().backward(ctx, torch.zeros_like(ds) if dy is None else dy, ds)


class FusedAddRMSNorm(nn.Module):
    """The form of liger-kernel's LigerFusedAddRMSNorm."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states, residual):
        return Fused.apply(hidden_states, residual, self.weight, self.variance_epsilon)


def optional(x, weight, residual=None, eps=1e-6):
    """The form of quack's rmsnorm: (y, s) with a residual, y without."""
    y, s = Fused.apply(x, torch.zeros_like(x) if residual is None else residual, weight, eps)
    return y if residual is None else (y, s)
