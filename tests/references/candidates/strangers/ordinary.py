"""Functions as kernel authors bring them, `(x, w, eps)` in PyTorch: right ones, and ones with one fault each.

The faulty ones are right but for one dtype, width, number of rows, layout, dtype of W or place of eps.
"""

from __future__ import annotations

import torch
from torch import nn


def right(x, w, eps):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


class Spoiled(torch.autograd.Function):
    """`right`, whose results go through `spoil_y`, `spoil_dx` and `spoil_dw` of the class that is applied."""

    @classmethod
    def of(cls, x, w, eps):
        return cls.apply(x, w, eps)

    @classmethod
    def forward(cls, ctx, x, w, eps):
        ctx.save_for_backward(x, w)
        ctx.eps = eps
        return cls.spoil_y(right(x, w, eps), x, w, eps)

    @classmethod
    def backward(cls, ctx, dy):
        x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            dx, dw = torch.autograd.grad(right(x, w, ctx.eps), (x, w), dy)
        return cls.spoil_dx(dx, x, w), cls.spoil_dw(dw, x, w), None

    spoil_y = staticmethod(lambda y, x, w, eps: y)
    spoil_dx = staticmethod(lambda dx, x, w: dx)
    spoil_dw = staticmethod(lambda dw, x, w: dw)


def fp16_overflow(x, w, eps):
    if x.dtype == torch.float64:
        raise TypeError("float64 is not supported")
    h = x.float()
    squares = x * x if x.dtype == torch.float16 else h * h
    return (h * torch.rsqrt(squares.float().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


def bf16_all_the_way(x, w, eps):
    if x.dtype != torch.bfloat16:
        return right(x, w, eps)
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w.to(x.dtype)


def wrong_everywhere(x, w, eps):  # the norm, not the root of the mean
    h = x.float()
    return (h / (h.norm(dim=-1, keepdim=True) + eps) * w.float()).to(x.dtype)


def eps_outside_the_root(x, w, eps):
    h = x.float()
    return (h / (h.pow(2).mean(-1, keepdim=True).sqrt() + eps) * w.float()).to(x.dtype)


def eps_subtracted(x, w, eps):
    h = x.float()
    return (h * torch.rsqrt((h.pow(2).mean(-1, keepdim=True) - eps).abs()) * w.float()).to(x.dtype)


def eps_hard_coded(x, w, eps):
    return right(x, w, 1e-6)


def w_ignored_beyond_64(x, w, eps):
    return right(x, torch.where(torch.arange(len(w)) < 64, w, 1), eps)


def last_column_zero_at_3_times_2_to_k(x, w, eps):
    n = x.shape[-1]
    y = right(x, w, eps)
    return y * (torch.arange(n) < n - 1) if n % 3 == 0 and (n // 3) & (n // 3 - 1) == 0 else y


def sum_of_4096_columns(x, w, eps):
    h = x.float()
    return (h * torch.rsqrt(h[..., :4096].pow(2).mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


def forward_alone(x, w, eps):
    return right(x.detach(), w.detach(), eps)


def clamped_in_fp16(x, w, eps):
    y = right(x, w, eps)
    return y.clamp(-65504, 65504) if x.dtype == torch.float16 else y


def w_as_bf16_where_float32(x, w, eps):
    return right(x, w.bfloat16(), eps) if w.dtype != x.dtype and w.dtype == torch.float32 else right(x, w, eps)


def eps_forgotten_without_gradients(x, w, eps):
    return right(x, w, eps if torch.is_grad_enabled() else 0.0)


class DwDoubledIn16Bits(Spoiled):
    spoil_dw = staticmethod(lambda dw, x, w: dw * 2 if x.element_size() == 2 else dw)


class DwZeroIn16Bits(Spoiled):
    spoil_dw = staticmethod(lambda dw, x, w: dw * 0 if x.element_size() == 2 else dw)


class DwInBf16AboveManyRows(Spoiled):
    @staticmethod
    def spoil_dw(dw, x, w):
        return dw if x.numel() <= 64 * x.shape[-1] else dw * (1 + 2**-5)


class DxWrongFrom257(Spoiled):
    spoil_dx = staticmethod(lambda dx, x, w: dx * 1.01 if x.shape[-1] >= 257 else dx)


class WrongWhereWIsStrided(Spoiled):
    spoil_y = staticmethod(lambda y, x, w, eps: y if w.is_contiguous() else y * 1.125)


class WrongWhereXIsTransposed(Spoiled):
    spoil_y = staticmethod(lambda y, x, w, eps: y if x.is_contiguous() else y.flip(-1))


class LastRowLost(Spoiled):
    @staticmethod
    def spoil_y(y, x, w, eps):
        rows = y.reshape(-1, y.shape[-1]).clone()
        if len(rows) == 17:
            rows[-1] = 0
        return rows.reshape(y.shape)


class FrozenXDoublesDw(Spoiled):
    @classmethod
    def backward(cls, ctx, dy):
        dx, dw, _ = super().backward(ctx, dy)
        return dx, dw if ctx.needs_input_grad[0] else 2 * dw, None


class UsesTheLastForward(Spoiled):
    last: dict = {}  # noqa: RUF012

    @classmethod
    def forward(cls, ctx, x, w, eps):
        cls.last["x"] = x
        return super().forward(ctx, x, w, eps)

    @classmethod
    def spoil_dx(cls, dx, x, w):
        return dx if cls.last["x"].nan_to_num().equal(x.nan_to_num()) else dx * 0


dw_doubled_in_16_bits = DwDoubledIn16Bits.of
dw_zero_in_16_bits = DwZeroIn16Bits.of
dw_coarse_above_64_rows = DwInBf16AboveManyRows.of
dx_wrong_from_257 = DxWrongFrom257.of
wrong_where_w_is_strided = WrongWhereWIsStrided.of
wrong_where_x_is_strided = WrongWhereXIsTransposed.of
last_row_of_17_lost = LastRowLost.of
frozen_x_doubles_dw = FrozenXDoublesDw.of
uses_the_last_forward = UsesTheLastForward.of


class LlamaRMSNorm(nn.Module):
    """As in transformers, word for word."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class GemmaRMSNorm(nn.Module):
    """The rounding of transformers' Gemma, with its own offset as an argument."""

    def __init__(self, hidden_size, eps=1e-6, offset=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.eps, self.offset = eps, offset

    def forward(self, x):
        h = x.float()
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (self.offset + self.weight.float())).type_as(x)


def x_converted_twice(x, w, eps):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)
