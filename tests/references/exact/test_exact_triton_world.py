"""Triton kernels of other kinds in the exact world: what is refused by name, and sums in 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.interpret]
torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.language.extra import libdevice  # noqa: E402
from triton.language.extra.libdevice import rsqrt  # noqa: E402

from references.exact import draw, torch_world, triton_world  # noqa: E402
from references.exact.field import Field, NotAlgebraic  # noqa: E402
from references.exact.program import Program, run  # noqa: E402

tl = triton.language


@triton.jit
def maximum_kernel(x_ptr, y_ptr, n: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.load(x_ptr + tl.arange(0, n))
    tl.store(y_ptr + tl.arange(0, n), x / tl.max(x, axis=0))


@triton.jit
def narrow_sum_kernel(x_ptr, y_ptr, n: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.load(x_ptr + tl.arange(0, n)).to(tl.float16)
    tl.store(y_ptr, tl.sum(x, axis=0).to(tl.float32))


@triton.jit
def exp_kernel(x_ptr, y_ptr, n: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(y_ptr + tl.arange(0, n), tl.exp(tl.load(x_ptr + tl.arange(0, n))))


@triton.jit
def undefined_kernel(x_ptr, y_ptr, n: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, 8)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n))


@triton.jit
def libdevice_rsqrt_kernel(x_ptr, y_ptr, n: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.load(x_ptr + tl.arange(0, n))
    tl.store(y_ptr + tl.arange(0, n), rsqrt(x * x * x * x))


@triton.jit
def libdevice_exp_kernel(x_ptr, y_ptr, n: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(y_ptr + tl.arange(0, n), libdevice.exp(tl.load(x_ptr + tl.arange(0, n))))


@triton.jit
def less_kernel(x_ptr, y_ptr, n: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.load(x_ptr + tl.arange(0, n))
    tl.store(y_ptr + tl.arange(0, n), tl.where(x < 0.0, x, -x))


@pytest.mark.parametrize(
    ("kernel", "named"),
    [
        (maximum_kernel, "reduction"),
        (exp_kernel, "exp"),
        (less_kernel, "fcmpOLT"),
        (libdevice_exp_kernel, "libdevice's exp"),
    ],
)
def test_a_kernel_that_is_no_algebra_is_refused_by_name(kernel: Any, named: str) -> None:
    def forward(x: Any, w: Any, s: Any) -> Any:
        y = torch.empty_like(x)
        kernel[(1,)](x, y, 4)
        return y

    field = Field()
    problem = draw.draw(field, (2, 4), "float32", "float32", eps=0.3, offset=0.0, formulas=[])
    with pytest.raises(NotAlgebraic, match=f"not algebraic: .*{named}"):
        run(field, Program("it", "torch", forward), problem)


def test_libdevice_is_what_the_field_has_of_it() -> None:
    """To the interpreter its functions are empty: a kernel that holds one, as other people's do, would not run."""
    field = Field()
    patterns = draw.patterns(field, np.random.default_rng(0), (8,), "float32")
    x, y = torch_world.to_tensor(patterns, "float32"), torch.zeros(8)
    with triton_world.world(field):
        libdevice_rsqrt_kernel[(1,)](x, y, 8)
    a = field.decode(patterns, "float32")
    assert (field.multiply(field.decode(torch_world.to_patterns(y), "float32"), field.multiply(a, a)) == 1).all()
    assert rsqrt(1.0) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_mask_leaves_out_is_undefined(dtype: str) -> None:
    """The plain interpreter has zeros there, which many a fault needs to go unseen."""
    field = Field()
    patterns = draw.patterns(field, np.random.default_rng(0), (8,), dtype)
    x = torch_world.to_tensor(patterns, dtype)
    y = torch.zeros_like(x)
    with triton_world.world(field):
        undefined_kernel[(1,)](x, y, 5)
    got = torch_world.to_patterns(y)
    assert (got[:5] == patterns[:5]).all() and (got[5:] != 0).all() and (got[5:] != patterns[5:]).all()


def test_a_sum_in_float16_is_no_sum_that_is_rounded_once() -> None:
    field = Field()
    patterns = draw.patterns(field, np.random.default_rng(0), (8,), "float16")
    x, y = torch_world.to_tensor(field.cast(patterns, "float16", "float32"), "float32"), torch.zeros(1)
    with triton_world.world(field):
        narrow_sum_kernel[(1,)](x, y, 8)
    got = field.decode(torch_world.to_patterns(y), "float32")
    elements = field.decode(patterns, "float16")
    assert got != field.round(field.sum(elements), "float16")
    assert got == field.decode(field.accumulate(patterns, "float16", 0), "float16")
