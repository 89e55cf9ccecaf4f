"""Division and reciprocal square root of the kernels, against IEEE's over every float32 mantissa.

On a GPU all 2^24 numbers of [1, 4), of which every other positive one is a multiple by a power of four; in the
interpreter some. What CUDA's own approximations lose is measured beside them: the profile for unknown candidates,
`references.bounds.rounding.SEQUENTIAL`, must grant it. For the figures:

    python3 -m pytest tests/rmsnorm/triton/test_exhaustive.py -m gpu -rP
"""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from references.bounds.rounding import SEQUENTIAL, Arithmetic  # noqa: E402
from rmsnorm.fused.kernels import _divide, _reciprocal_sqrt  # noqa: E402
from tests.support import DEVICES  # noqa: E402

ONE, FOUR = 0x3F800000, 0x40800000  # bit patterns
BLOCK = 1024
UNIT_ROUNDOFF = 2.0**-24
COLUMNS = (1, 3, 7, 1000, 4095, 4104, 5120, 65535)


@triton.jit
def reciprocal_sqrt_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, _reciprocal_sqrt(tl.load(x_ptr + offsets), tl.float32))


@triton.jit
def divide_kernel(x_ptr, y_ptr, n_cols: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, _divide(tl.load(x_ptr + offsets), n_cols, tl.float32))


@triton.jit
def approximate_rsqrt_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.rsqrt(tl.load(x_ptr + offsets)))


@triton.jit
def approximate_divide_kernel(x_ptr, y_ptr, n_cols: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets) / n_cols)


def mantissas(device: str) -> np.ndarray:
    """float32 numbers of [1, 4), a multiple of BLOCK of them: all, or every 2049th."""
    step = 1 if device == "cuda" else 2049  # odd: every bit of the mantissa varies
    numbers = np.arange(ONE, FOUR, step, dtype=np.uint32).view(np.float32)
    return numbers[: len(numbers) // BLOCK * BLOCK]


def other_exponents() -> np.ndarray:
    """Subnormal numbers, every exponent, infinity and zero."""
    bits = np.arange(0, 0x7F800000, 0x7F800000 // (64 * BLOCK), dtype=np.uint32)[: 64 * BLOCK]
    bits[-1] = 0x7F800000
    bits[1:100] = np.arange(1, 100)
    return bits.view(np.float32)


@np.errstate(all="ignore")  # the interpreter is NumPy
def run(kernel: triton.JITFunction, x: np.ndarray, device: str, *constants: int) -> np.ndarray:
    source = torch.from_numpy(x).to(device)
    target = torch.empty_like(source)
    kernel[(len(x) // BLOCK,)](source, target, *constants, BLOCK=BLOCK)
    return target.cpu().numpy()


@np.errstate(all="ignore")
def rounded_reciprocal_sqrt(x: np.ndarray) -> np.ndarray:
    """1 / √x, each step rounded once: 53 bits are enough for the way over float64 to be harmless (2·24 + 2)."""
    root = np.sqrt(x.astype(np.float64)).astype(np.float32)
    return (1 / root.astype(np.float64)).astype(np.float32)


def unit_roundoffs(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest relative error in units of 2^-24."""
    return float((np.abs(got.astype(np.float64) - exact) / np.abs(exact)).max() / UNIT_ROUNDOFF)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("numbers", ["mantissas", "other exponents"])
def test_reciprocal_square_root_is_two_correctly_rounded_steps(numbers: str, device: str) -> None:
    x = mantissas(device) if numbers == "mantissas" else other_exponents()
    got = run(reciprocal_sqrt_kernel, x, device)
    assert np.array_equal(got.view(np.uint32), rounded_reciprocal_sqrt(x).view(np.uint32))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_cols", COLUMNS)
def test_division_is_correctly_rounded(n_cols: int, device: str) -> None:
    for x in (mantissas(device), other_exponents()):
        got = run(divide_kernel, x, device, n_cols)
        with np.errstate(under="ignore"):
            wanted = (x.astype(np.float64) / n_cols).astype(np.float32)
        assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("device", DEVICES)
def test_the_profiles_grant_what_division_and_root_lose(device: str) -> None:
    x = mantissas(device)
    exact = x.astype(np.float64)
    lost = {
        "1/√x of the kernels": (unit_roundoffs(run(reciprocal_sqrt_kernel, x, device), exact**-0.5), Arithmetic().c_rs),
        "tl.rsqrt": (unit_roundoffs(run(approximate_rsqrt_kernel, x, device), exact**-0.5), SEQUENTIAL.c_rs),
    }
    for n_cols in COLUMNS:
        quotients = {
            "x/N of the kernels": (divide_kernel, Arithmetic().c_div),
            "x / N": (approximate_divide_kernel, SEQUENTIAL.c_div),
        }
        for name, (kernel, granted) in quotients.items():
            lost[f"{name}, N = {n_cols}"] = unit_roundoffs(run(kernel, x, device, n_cols), exact / n_cols), granted
    for name, (units, granted) in lost.items():
        print(f"{name}: {units:.3f} unit roundoffs at most, granted {granted}")
    assert {name: units for name, (units, granted) in lost.items() if units > granted} == {}
