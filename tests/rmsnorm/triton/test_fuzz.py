"""Hypothesis over shapes, strides, dtypes, modes, offsets, eps and raw bit patterns, each example judged in full.

RMSNORM_FUZZ_EXAMPLES sets how many examples are tried, of which CI takes few, always the same.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from references import arrays  # noqa: E402
from references.candidates.outputs import Outputs  # noqa: E402
from references.cells.cell import Case, Inputs  # noqa: E402
from references.judge.verdict import compare  # noqa: E402
from references.spec import DTYPES  # noqa: E402
from rmsnorm.fused import launch  # noqa: E402
from rmsnorm.fused.tiles import BackwardConfig, FewRowsConfig, ForwardConfig, SplitConfig  # noqa: E402
from tests.support import DEVICES  # noqa: E402

EXAMPLES = int(os.environ.get("RMSNORM_FUZZ_EXAMPLES", "25"))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Case, Inputs, dict[str, tuple[int, int]], Any, Any]:
    """A case, its values, (row stride, column stride) of x and dy, and tiles that fit or not."""
    dtype, w_dtype = draw(st.sampled_from(DTYPES)), draw(st.sampled_from((*DTYPES, "none")))
    n_rows, n_cols = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    case = Case(
        casting_mode=draw(st.sampled_from(("llama", "gemma", "none"))),
        offset=draw(st.sampled_from((0.0, 1.0, 0.5, -0.3))),
        dtype=dtype,
        weight=w_dtype,
        in_place=False,
        shape=(n_rows, n_cols),
        eps=draw(st.sampled_from((0.0, 1e-12, 1e-6, 2.0**-10, 0.25, 1e3))),
        data=draw(st.sampled_from(("normal", "bits"))),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def values(name: str, *shape: int) -> np.ndarray:
        kind = arrays.numpy_dtype(name)
        if case.data == "bits":  # any pattern: NaN, infinities, subnormal numbers, the whole range
            return rng.integers(0, 256, (*shape, kind.itemsize), dtype=np.uint8).view(kind)[..., 0]
        return rng.standard_normal(shape).astype(kind)

    w = None if w_dtype == "none" else values(w_dtype, n_cols)
    inputs = Inputs(values(dtype, n_rows, n_cols), w, values(dtype, n_rows, n_cols))
    strides = {}
    for name in ("x", "dy"):
        columns = draw(st.sampled_from((1, 1, 2)))
        strides[name] = (n_cols * columns + draw(st.integers(0, 9)), columns)
    block_cols = draw(st.sampled_from((4, 16, 64)))
    block_rows = draw(st.sampled_from((1, 2, 4)))
    n_chunks = -(-n_cols // block_cols)
    forward = ForwardConfig(block_rows, block_cols, draw(st.integers(0, n_chunks)), 1)
    backward = BackwardConfig(block_rows, block_cols, 1, 1, draw(st.integers(1, 3)), draw(st.booleans()))
    n_tiles = -(-n_rows // block_rows)
    backward = BackwardConfig(block_rows, block_cols, 1, 1, min(backward.n_programs, n_tiles), backward.reload_weight)
    kind = draw(st.sampled_from(("tiles", "few rows", "split")))
    if kind == "few rows":
        tiles = replace(backward, n_programs=n_tiles)
        backward = FewRowsConfig(tiles, draw(st.sampled_from((1, 2, 8))), draw(st.sampled_from((4, 16, 64))))
    elif kind == "split":
        slice_cols = draw(st.sampled_from((4, 8, 32)))
        backward = SplitConfig(-(-n_cols // slice_cols), slice_cols, 1, draw(st.integers(1, 3)), draw(st.booleans()))
    return case, inputs, strides, forward, backward


@pytest.mark.parametrize("device", DEVICES)
@settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
@given(problem=problems())
def test_any_input_is_judged_right(device: str, problem: Any) -> None:
    case, inputs, strides, forward, backward = problem
    with np.errstate(all="ignore"):
        tensors = {name: arrays.to_torch(getattr(inputs, name), device) for name in ("x", "dy")}
        for name, (row, column) in strides.items():
            n_rows = case.n_rows
            base = torch.full((n_rows * row + 1,), torch.nan, dtype=tensors[name].dtype, device=device)
            tensors[name] = base.as_strided(case.shape, (row, column), 1).copy_(tensors[name])
        w = None if inputs.w is None else arrays.to_torch(inputs.w, device)
        about = {"offset": case.offset, "casting_mode": case.casting_mode}
        y, rstd = launch.rms_norm_forward(tensors["x"], w, eps=case.eps, config=forward, **about)
        dx = torch.full_like(y, torch.nan)
        dw = launch.rms_norm_backward(
            tensors["dy"], tensors["x"], w, rstd, dx=dx, needs_dw=w is not None, config=backward, **about
        )
        outputs = Outputs(*(None if t is None else arrays.to_numpy(t) for t in (y, rstd, dx, dw)))
        findings = [str(f) for c in compare(case, inputs, outputs) for f in c.findings()]
    assert not findings, "\n".join(findings)
