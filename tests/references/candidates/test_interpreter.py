"""The interpreter casts to bfloat16 and from it as a GPU does, and runs loops with bounds in scalars."""

from __future__ import annotations

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")
triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")

import triton.language as tl  # noqa: E402

from references.candidates import interpreter  # noqa: E402

pytestmark = pytest.mark.interpret


@triton.jit
def cast_kernel(source_ptr, target_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(target_ptr + offsets, tl.load(source_ptr + offsets).to(target_ptr.dtype.element_ty))


def bit_patterns() -> np.ndarray:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**32, 2**16, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ties = (np.arange(2**15, dtype=np.uint32) << 17 | 0x8000).view(np.float32)
    return np.concatenate([values, ties, np.array([3.4e38, 1e-38, 1e-40, -1e-40], np.float32)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rounds_to_nearest_even(dtype: torch.dtype) -> None:
    values = bit_patterns()
    values = values[~np.isnan(values)]
    values = values[: 2 ** int(np.log2(len(values)))]
    source = torch.from_numpy(values).to(dtype)
    target = torch.empty(len(values), dtype=torch.bfloat16)
    cast_kernel[(1,)](source, target, BLOCK=len(values))
    with np.errstate(over="ignore"):
        wanted = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(target.view(torch.int16).numpy().view(np.uint16), wanted)


def test_every_bfloat16_is_widened_exactly() -> None:
    patterns = np.arange(2**16, dtype=np.uint16)
    source = torch.from_numpy(patterns.view(np.int16)).view(torch.bfloat16)
    target = torch.empty(len(patterns), dtype=torch.float32)
    cast_kernel[(1,)](source, target, BLOCK=len(patterns))
    np.testing.assert_array_equal(target.numpy(), patterns.view(ml_dtypes.bfloat16).astype(np.float32))


def test_the_probe_sees_a_truncating_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    right = InterpreterBuilder.cast_impl

    def truncate(builder: object, src: TensorHandle, dst_type: object) -> TensorHandle:
        if dst_type.scalar == tl.float32:
            return right(builder, src, dst_type)
        return TensorHandle((src.data.view(np.uint32) >> 16).astype(np.uint16), dst_type.scalar)

    assert not interpreter.miscasts_bfloat16()
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", truncate)
    assert interpreter.miscasts_bfloat16()


def test_the_probe_sees_subnormal_numbers_go_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    right = InterpreterBuilder.cast_impl

    def flush(builder: object, src: TensorHandle, dst_type: object) -> TensorHandle:
        cast = right(builder, src, dst_type)
        return TensorHandle(np.zeros_like(cast.data), tl.float32) if dst_type.scalar == tl.float32 else cast

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", flush)
    assert interpreter.miscasts_bfloat16()


@triton.jit
def loop_kernel(target_ptr, n, BLOCK: tl.constexpr):
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        tl.store(target_ptr + i * BLOCK + tl.arange(0, BLOCK), i)


def test_loops_over_scalars() -> None:
    target = torch.zeros(5, 2, dtype=torch.int32)
    loop_kernel[(2,)](target, 5, BLOCK=2)
    assert target[:, 0].tolist() == target[:, 1].tolist() == [0, 1, 2, 3, 4]


def test_the_probe_sees_a_refused_loop_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter as of_triton

    def patch(tensor: object, scope: object) -> None:
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data))  # Triton 3.6

    assert not interpreter.refuses_loop_bounds()
    monkeypatch.setattr(of_triton, "_patch_lang_tensor", patch)
    assert interpreter.refuses_loop_bounds()
    interpreter._take_loop_bounds()
    assert not interpreter.refuses_loop_bounds()


@triton.jit
def arithmetic_kernel(a_ptr, b_ptr, sums_ptr, products_ptr, ratios_ptr, others_ptr, larger_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)
    tl.store(sums_ptr + offsets, a - b + a)
    tl.store(products_ptr + offsets, a * b)
    tl.store(ratios_ptr + offsets, (a / b).to(a_ptr.dtype.element_ty))
    tl.store(others_ptr + offsets, tl.max(a * b, axis=0).to(tl.bfloat16) + tl.abs(-a))
    tl.store(larger_ptr + offsets, tl.where(a > b, 3, 5).to(tl.bfloat16))


def test_arithmetic_of_bfloat16_is_pytorchs() -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(256).bfloat16() for _ in range(2))
    got = [torch.empty(256, dtype=torch.bfloat16) for _ in range(5)]
    arithmetic_kernel[(1,)](a, b, *got, BLOCK=256)
    assert torch.equal(got[0], a - b + a)
    assert torch.equal(got[1], a * b)
    assert torch.equal(got[2], a / b)
    assert torch.equal(got[3], (a * b).max() + a.abs())
    assert torch.equal(got[4], torch.where(a > b, 3, 5).bfloat16())


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    at = rows * N + columns
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


def test_a_dot_product_of_bfloat16() -> None:
    torch.manual_seed(0)
    a, b = (torch.randint(-4, 5, (16, 16)).bfloat16() for _ in range(2))
    out = torch.empty(16, 16)
    dot_kernel[(1,)](a, b, out, N=16)
    assert torch.equal(out, a.float() @ b.float())


@triton.jit
def atomic_kernel(out_ptr, value_ptr):
    tl.atomic_add(out_ptr, tl.load(value_ptr))


def test_what_the_interpreter_cannot_do_is_said() -> None:
    values = torch.ones(2, dtype=torch.bfloat16)
    with pytest.raises(Exception, match="cannot add bfloat16 numbers atomically"):
        atomic_kernel[(1,)](values, values[1:])


def test_the_probe_sees_products_of_bit_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    assert not interpreter.multiplies_bit_patterns()
    monkeypatch.setattr(
        InterpreterBuilder,
        "create_fmul",
        lambda builder, a, b: InterpreterBuilder.binary_op(builder, a, b, np.multiply),
    )
    assert interpreter.multiplies_bit_patterns()
