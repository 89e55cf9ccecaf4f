"""Crossing between NumPy, torch and jax changes no bit, and distances count representable numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from references import arrays
from references.spec import DTYPES, FLOATS, compute_dtype

HUGE = 2**63 - 1


def every_pattern(dtype: str) -> np.ndarray:
    """All bit patterns of a 16-bit dtype, or a seeded sample of a wider one."""
    kind = arrays.numpy_dtype(dtype)
    if kind.itemsize == 2:
        return np.arange(2**16, dtype=np.uint16).view(kind)
    words = np.random.default_rng(0).integers(0, 2 ** (8 * kind.itemsize), 5000, dtype=f"u{kind.itemsize}")
    return words.view(kind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "library",
    [pytest.param("torch", marks=pytest.mark.torch), pytest.param("jax", marks=pytest.mark.jax), "numpy"],
)
def test_a_round_trip_keeps_every_bit(dtype, library):
    there = {"torch": arrays.to_torch, "jax": arrays.to_jax, "numpy": np.asarray}[library]
    values = every_pattern(dtype)
    crossed = there(values)
    back = arrays.to_numpy(crossed)
    assert arrays.dtype_name(crossed) == arrays.dtype_name(back) == dtype
    np.testing.assert_array_equal(arrays.bits(back), arrays.bits(values))


@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions_own_their_memory(dtype):
    values = np.ones((2, 3), arrays.numpy_dtype(dtype))
    tensor = arrays.to_torch(values)
    back = arrays.to_numpy(tensor)
    tensor.zero_()
    assert (values == 1).all() and (back == 1).all()
    again = arrays.to_numpy(values)
    again[:] = 2
    assert (values == 1).all()


@pytest.mark.torch
def test_strided_and_zero_dimensional_arrays_cross():
    values = np.arange(12, dtype=np.float32).reshape(3, 4).astype(ml_dtypes.bfloat16)[:, ::2]
    np.testing.assert_array_equal(arrays.to_numpy(arrays.to_torch(values)), values)
    np.testing.assert_array_equal(arrays.to_numpy(arrays.to_torch(values).T), values.T)
    assert arrays.to_numpy(arrays.to_torch(np.float32(2.0))).shape == ()
    assert arrays.bits(np.float32(2.0)).shape == ()


@pytest.mark.torch
@pytest.mark.jax
def test_names_of_dtypes():
    import jax.numpy as jnp
    import torch

    for name in DTYPES:
        kind = arrays.numpy_dtype(name)
        for value in (kind, kind.type, np.zeros(1, kind), getattr(torch, name), getattr(jnp, name), name):
            assert arrays.dtype_name(value) == name, value
    with pytest.raises(ValueError, match="'int8'"):
        arrays.numpy_dtype("int8")
    with pytest.raises(ValueError, match="'int8'"):
        compute_dtype("int8")


@pytest.mark.parametrize("dtype", DTYPES)
def test_float_table_is_the_format(dtype):
    info, kind = ml_dtypes.finfo(arrays.numpy_dtype(dtype)), FLOATS[dtype]
    assert (kind.unit_roundoff, kind.smallest_subnormal, kind.smallest_normal, kind.max) == (
        float(info.eps) / 2,
        float(info.smallest_subnormal),
        float(info.smallest_normal),
        float(info.max),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_distances_count_representable_numbers(dtype):
    kind = arrays.numpy_dtype(dtype)

    def apart(a: float, b: float) -> int:
        return int(arrays.ulp_distance(np.array(a, kind), np.array(b, kind)))

    unit, tiny, top = FLOATS[dtype].unit_roundoff, FLOATS[dtype].smallest_subnormal, FLOATS[dtype].max
    assert apart(1, 1) == 0 and apart(0.0, -0.0) == 0
    assert apart(1, 1 + 2 * unit) == 1 and apart(1, 1 - unit) == 1
    assert apart(tiny, -tiny) == 2 and apart(-tiny, 0) == 1
    assert apart(top, np.inf) == 1
    assert apart(np.nan, np.nan) == 0
    assert apart(np.nan, 1) == apart(1, np.nan) == apart(np.nan, np.inf) == HUGE
    assert apart(top, -top) == min(2 * int(arrays.bits(np.array(top, kind))), HUGE)


def test_neighbours_are_one_apart_everywhere():
    values = np.sort(every_pattern("float16")[np.isfinite(every_pattern("float16"))])
    values = values[values != 0]
    steps = arrays.ulp_distance(values[1:], values[:-1])
    assert (steps == np.where((values[1:] > 0) & (values[:-1] < 0), 2, 1)).all()


def test_distances_need_one_dtype():
    with pytest.raises(TypeError, match="float32 and float64"):
        arrays.ulp_distance(np.zeros(1, np.float32), np.zeros(1))
