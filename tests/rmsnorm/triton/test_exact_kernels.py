"""The kernels equal the specification's table in every element, with no tolerance: in the exact world of the field.

Every cell of the matrix through the public function; every layout; every structure of tile, chunk and split that the
tuned table holds, shrunk to eight columns a chunk.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.interpret]
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from references import arrays  # noqa: E402
from references.candidates import memory  # noqa: E402
from references.cells.cell import Case, Inputs  # noqa: E402
from references.cells.levels import MATRIX  # noqa: E402
from references.exact import draw, table, torch_world, triton_world  # noqa: E402
from references.exact.field import PRIMES, Field  # noqa: E402
from references.exact.program import Result, differing  # noqa: E402
from rmsnorm import liger_rms_norm  # noqa: E402
from rmsnorm.fused import launch, plans, tiles  # noqa: E402
from rmsnorm.fused.tiles import (  # noqa: E402
    BackwardConfig,
    ForwardConfig,
    Processors,
    SplitConfig,
    WeightGradientConfig,
)

LAYOUTS = {  # x, dy, w
    "rows apart": ("row_strided", "row_strided", "column_strided"),
    "columns apart": ("column_strided", "contiguous", "misaligned"),
    "transposed": ("transposed", "column_strided", "contiguous"),
    "misaligned": ("misaligned", "misaligned", "contiguous"),
    "heads": ("heads", "transposed", "contiguous"),
    "one row seen often": ("contiguous", "expanded", "contiguous"),
    "one row of x": ("expanded", "heads", "contiguous"),
}
SETTINGS = (("llama", "bfloat16"), ("none", "float16"), ("gemma", "float32"), ("llama", "float64"))
GPU = Processors(count=132, shared_memory=227 * 1024, cooperative=True)  # the tuned table's


@dataclass(frozen=True)
class Exact:
    """A case with patterns for numbers, what the table makes of them, and the field that it happens in."""

    case: Case
    field: Field
    problem: table.Problem
    wanted: dict[str, np.ndarray]
    arguments: memory.Arguments

    def differing(self, **tensors: Any) -> dict[str, int]:
        got: dict[str, Result] = {
            name: (torch_world.to_patterns(tensor), arrays.dtype_name(tensor))
            for name, tensor in tensors.items()
            if tensor is not None
        }
        assert set(got) == set(self.wanted) - ({"rstd"} - set(got)), "a result is missing"
        return differing(self.field, self.problem, self.wanted, got)


def exact(case: Case) -> Exact:
    """The case's problem, drawn from a prime and a rounding function of its own."""
    number = case.seed + sum(map(ord, case.id))
    field = Field(PRIMES[number % len(PRIMES)], number, splits=case.dtype == "float64")
    formula = table.formula(case.casting_mode)
    shape = (case.n_rows, case.shape[-1])
    about = {"eps": case.eps, "offset": case.offset, "formulas": [formula], "seed": number}
    problem = draw.draw(field, shape, case.dtype, case.w_dtype, **about)
    if case.x_layout == "expanded":
        problem.x[:] = problem.x[0]
    if case.dy_layout == "expanded":
        problem.dy[:] = problem.dy[0]

    def real(patterns: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        return patterns.view(arrays.numpy_dtype(dtype)).reshape(shape)

    w = None if problem.w is None else real(problem.w, str(case.w_dtype), problem.w.shape)
    inputs = Inputs(real(problem.x, case.dtype, case.shape), w, real(problem.dy, case.dtype, case.shape))
    arguments = memory.Arguments(case, inputs, "torch", "cpu")
    return Exact(case, field, problem, table.evaluate(field, problem, formula), arguments)


def assert_function_is_the_table(case: Case) -> None:
    it = exact(case)
    x, w, dy = (it.arguments.views[name] for name in ("x", "w", "dy"))
    leaves = [x.requires_grad_()] if w is None else [x.requires_grad_(), w.requires_grad_()]
    with torch_world.world(it.field):
        y = liger_rms_norm(x, w, case.eps, case.offset, case.casting_mode, case.in_place, case.row_mode)
        dx, *dw = torch.autograd.grad(y, leaves, dy)
    assert it.differing(y=y, dx=dx, dw=dw[0] if dw else None) == {}
    contract = it.arguments.observe({}, {})
    assert set(contract.changed) <= ({"dy"} if case.in_place else set())
    assert contract.changed_outside == ()


def assert_launch_is_the_table(case: Case, forward: ForwardConfig, backward: BackwardConfig | SplitConfig) -> None:
    it = exact(case)
    x, w, dy = (it.arguments.views[name] for name in ("x", "w", "dy"))
    about = {"offset": case.offset, "casting_mode": str(case.casting_mode)}
    with triton_world.world(it.field):
        y, rstd = launch.rms_norm_forward(x, w, eps=case.eps, config=forward, **about)
        dx = torch.full_like(y, torch.nan)
        dw = launch.rms_norm_backward(dy, x, w, rstd, dx=dx, needs_dw=True, config=backward, **about)
    assert it.differing(y=y, rstd=rstd, dx=dx, dw=dw) == {}
    contract = it.arguments.observe({}, {})
    assert contract.changed == contract.changed_outside == ()


@pytest.mark.parametrize("case", MATRIX, ids=lambda case: case.id)
def test_every_cell_of_the_matrix(case: Case) -> None:
    assert_function_is_the_table(replace(case, shape=(1, 3, 5)))


@pytest.mark.parametrize("row_mode", [None, True, False])
@pytest.mark.parametrize(("mode", "dtype"), SETTINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_variant(layout: str, mode: str, dtype: str, row_mode: bool | None) -> None:
    x, dy, w = LAYOUTS[layout]
    case = Case(mode, 0.7, dtype, "same", False, (2, 3, 5), 0.3, "normal", x, dy, w, row_mode)
    assert_function_is_the_table(case)


def tuned() -> set[tuple[str, Any]]:
    """The structures of the tuned table: tiles and splits with their chunks, whatever the width of a chunk."""
    structures: set[tuple[str, Any]] = set()
    for entry in json.loads(resources.files("rmsnorm.fused").joinpath("tuned.json").read_text())["entries"]:
        n_cols, itemsize, row_wise = entry["n_cols"], entry["itemsize"], entry["row_wise"]
        if entry["direction"] == "forward":
            for mode in ("llama", "none"):
                c = tiles.forward_config(n_cols, itemsize, row_wise, mode)
                structures.add(("forward", (c.block_rows, -(-n_cols // c.block_cols), c.n_held)))
        elif entry["direction"] == "backward":
            b = tiles.backward_config(1 << 16, n_cols, itemsize, row_wise, GPU)
            n_chunks = -(-n_cols // b.block_cols)
            structures.add(("backward", (b.block_rows, n_chunks, min(b.num_stages, 2), b.reload_weight)))
        else:
            s = tiles.split_config(n_cols, itemsize, GPU)
            assert s is not None
            structures.add(("split", (s.n_splits, s.reload_rows)))
    return structures


@pytest.mark.parametrize(
    ("structure", "setting"),
    list(zip(sorted(tuned(), key=str), itertools.cycle(SETTINGS), strict=False)),
    ids=lambda value: "-".join(str(value).replace("(", "").replace(")", "").replace("'", "").split(", ")),
)
def test_every_tuned_structure(structure: tuple[str, Any], setting: tuple[str, str]) -> None:
    direction, parts = structure
    forward, backward = ForwardConfig(1, 16, 1, 1), BackwardConfig(1, 16, 1, 1, 2, False)
    block_cols, block_rows = 8, 1
    if direction == "forward":
        block_rows, n_chunks, n_held = parts
        forward = ForwardConfig(block_rows, block_cols, n_held, 1)
    elif direction == "backward":
        block_rows, n_chunks, num_stages, reload_weight = parts
        backward = BackwardConfig(block_rows, block_cols, 1, num_stages, 2, reload_weight)
    else:
        n_chunks, reload_rows = parts
        block_cols = 2
        backward = SplitConfig(n_chunks, block_cols, 1, 2, reload_rows)
    n_cols = n_chunks * block_cols - block_cols // 2 + 1  # the last chunk is not full
    if direction != "forward":
        forward = ForwardConfig(1, 1 << math.ceil(math.log2(n_cols)), 1, 1)
    if direction == "forward":
        backward = BackwardConfig(1, 1 << math.ceil(math.log2(n_cols)), 1, 1, 2, False)
    n_rows = 2 * block_rows + 1  # nor is the last tile
    mode, dtype = setting
    case = Case(mode, 0.7, dtype, "float32", False, (n_rows, n_cols), 0.3, "normal", "row_strided", "row_strided")
    assert_launch_is_the_table(case, forward, backward)


@pytest.mark.parametrize("w_dtype", ["bfloat16", "float16", "float32"])
def test_partial_rows_are_summed_and_rounded_once(w_dtype: str) -> None:
    field = Field(seed=5)
    n_cols = 21
    partials = draw.patterns(field, np.random.default_rng(0), (9, n_cols), "float32")
    given = torch_world.to_tensor(partials, "float32")
    dw = torch.full((n_cols,), torch.nan, dtype=getattr(torch, w_dtype))
    with triton_world.world(field):
        variant = plans._weight_gradient_variant(WeightGradientConfig(4, 8, 1), torch.float32, dw.dtype, n_cols)
        variant.launch(-(-n_cols // 8), (given, dw), (9,))
    wanted = field.encode(field.sum(field.decode(partials, "float32"), axis=0), w_dtype)
    assert np.array_equal(torch_world.to_patterns(dw), wanted)
