"""A Llama-style RMSNorm in Triton as other people write it: `x_hat` is rounded and multiplied by W in X's dtype."""

import torch
import triton
import triton.language as tl


@triton.jit
def forward_kernel(x_ptr, w_ptr, y_ptr, rstd_ptr, n, eps, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = columns < n
    x = tl.load(x_ptr + row * n + columns, mask=mask, other=0.0).to(tl.float32)
    rstd = 1 / tl.sqrt(tl.sum(x * x, axis=0) / n + eps)
    tl.store(rstd_ptr + row, rstd)
    x_hat = (x * rstd).to(x_ptr.dtype.element_ty)
    w = tl.load(w_ptr + columns, mask=mask, other=0.0)
    tl.store(y_ptr + row * n + columns, x_hat * w, mask=mask)


@triton.jit
def backward_kernel(dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, n, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mask = columns < n
    dy = tl.load(dy_ptr + row * n + columns, mask=mask, other=0.0).to(tl.float32)
    x_in = tl.load(x_ptr + row * n + columns, mask=mask, other=0.0)
    x, w = x_in.to(tl.float32), tl.load(w_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + row)
    m = dy * w
    dx = rstd * (m - x * rstd * rstd * (tl.sum(m * x, axis=0) / n))
    tl.store(dx_ptr + row * n + columns, dx.to(x_in.dtype), mask=mask)
    x_hat = (x * rstd).to(x_in.dtype).to(tl.float32)
    tl.store(dw_ptr + row * n + columns, dy * x_hat, mask=mask)


class LlamaNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        if x.dtype == torch.float64 or w.dtype != x.dtype:
            raise TypeError("X and W must have one dtype, and not float64")
        shape, n = x.shape, x.shape[-1]
        x, w = x.reshape(-1, n).contiguous(), w.contiguous()
        y, rstd = torch.empty_like(x), torch.empty(len(x), dtype=torch.float32, device=x.device)
        if len(x):
            forward_kernel[(len(x),)](x, w, y, rstd, n, eps, BLOCK=triton.next_power_of_2(n))
        ctx.save_for_backward(x, w, rstd)
        return y.reshape(shape)

    @staticmethod
    def backward(ctx, dy):
        x, w, rstd = ctx.saved_tensors
        n = x.shape[-1]
        dx, partial = torch.empty_like(x), torch.empty(x.shape, dtype=torch.float32, device=x.device)
        if len(x):
            rows = dy.reshape(-1, n).contiguous()
            backward_kernel[(len(x),)](rows, x, w, rstd, dx, partial, n, BLOCK=triton.next_power_of_2(n))
        return dx.reshape(dy.shape), partial.sum(0).to(w.dtype), None


def llama_norm(x, w, eps):
    return LlamaNorm.apply(x, w, eps)


def no_mask_fill(x, w, eps):
    """Right but for widths that are no power of two, whose mean divides by the padded width."""
    padded = triton.next_power_of_2(x.shape[-1])
    return llama_norm(x, w, eps) * (padded / x.shape[-1]) ** 0.5
