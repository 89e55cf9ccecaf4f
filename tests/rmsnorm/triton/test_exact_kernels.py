"""The kernels equal the specification's table in every element, with no tolerance: in the exact world of the field.

Every cell of the matrix through the public function; every layout; every structure of tile, chunk, split and few rows
that the tuned table holds, shrunk to eight columns a chunk; every kernel with what may be left out of it.
"""

from __future__ import annotations

import itertools
import json
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
    FewRowsConfig,
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
SETTINGS = (
    ("llama", "bfloat16"),
    ("none", "float16"),
    ("gemma", "bfloat16"),
    ("gemma", "float32"),
    ("llama", "float64"),
)
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
        """How many elements are not the table's, of each of the tensors; what is None or left out is not looked at."""
        got: dict[str, Result] = {
            name: (torch_world.to_patterns(tensor), arrays.dtype_name(tensor))
            for name, tensor in tensors.items()
            if tensor is not None
        }
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
    assert len(dw) == (w is not None)
    assert it.differing(y=y, dx=dx, dw=dw[0] if dw else None) == {}
    contract = it.arguments.observe({}, {})
    assert set(contract.changed) <= ({"dy"} if case.in_place else set())
    assert contract.changed_outside == ()


Backward = BackwardConfig | FewRowsConfig | SplitConfig


def assert_launch_is_the_table(
    case: Case,
    forward: ForwardConfig,
    backward: Backward,
    *,
    needs_dx: bool = True,
    needs_dw: bool = True,
    dx_is_dy: bool = False,
) -> None:
    it = exact(case)
    x, w, dy = (it.arguments.views[name] for name in ("x", "w", "dy"))
    about = {"offset": case.offset, "casting_mode": str(case.casting_mode)}
    with triton_world.world(it.field):
        y, rstd = launch.rms_norm_forward(x, w, eps=case.eps, config=forward, **about)
        dx = dy if dx_is_dy else torch.full_like(y, torch.nan) if needs_dx else None
        dw = launch.rms_norm_backward(dy, x, w, rstd, dx=dx, needs_dw=needs_dw, config=backward, **about)
    assert (dw is not None) == (needs_dw and w is not None)
    assert it.differing(y=y, rstd=rstd, dx=dx, dw=dw) == {}
    contract = it.arguments.observe({}, {})
    assert contract.changed == (("dy",) if dx_is_dy else ())
    assert contract.changed_outside == ()


@pytest.mark.parametrize("shape", [(1, 3, 5), (2, 3, 3)], ids=["few rows", "more rows"])
@pytest.mark.parametrize("case", MATRIX, ids=lambda case: case.id)
def test_every_cell_of_the_matrix(case: Case, shape: tuple[int, ...]) -> None:
    assert_function_is_the_table(replace(case, shape=shape))


@pytest.mark.parametrize("row_mode", [None, True, False])
@pytest.mark.parametrize(("mode", "dtype"), SETTINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_variant(layout: str, mode: str, dtype: str, row_mode: bool | None) -> None:
    x, dy, w = LAYOUTS[layout]
    n_cols = 5 if row_mode else 8  # rows whose strides vectors fit or do not
    case = Case(mode, 0.7, dtype, "same", False, (2, 3, n_cols), 0.3, "normal", x, dy, w, row_mode)
    assert_function_is_the_table(case)


def tuned() -> set[tuple[str, Any]]:
    """The structures of the tuned table: tiles and splits with their chunks, whatever the width of a chunk.

    Of few rows also whether dw takes several programs, and each of them several reads.
    """
    structures: set[tuple[str, Any]] = set()
    for entry in json.loads(resources.files("rmsnorm.fused").joinpath("tuned.json").read_text())["entries"]:
        n_cols, itemsize, row_wise = entry["n_cols"], entry["itemsize"], entry["row_wise"]
        if entry["direction"] in ("forward", "residual"):
            for mode in ("llama", "none"):
                c = tiles.forward_config(n_cols, itemsize, row_wise, mode, entry["direction"] == "residual")
                structures.add(("forward", (c.block_rows, -(-n_cols // c.block_cols), c.n_held)))
        elif entry["direction"] == "backward":
            b = tiles.backward_config(1 << 16, n_cols, itemsize, row_wise, GPU)
            n_chunks = -(-n_cols // b.block_cols)
            structures.add(("backward", (b.block_rows, n_chunks, min(b.num_stages, 2), b.reload_weight)))
            for n_rows in (1, 16, GPU.count):
                if plans.are_few(n_rows, n_cols, GPU):
                    f = tiles.few_rows_config(n_rows, n_cols, itemsize, row_wise, GPU)
                    of_tiles = f.tiles.block_rows, n_chunks, min(f.tiles.num_stages, 2), f.tiles.reload_weight
                    structures.add(("few rows", (*of_tiles, f.sum_cols < n_cols, f.sum_rows < n_rows)))
        else:
            s = tiles.split_config(n_cols, itemsize, GPU)
            assert s is not None
            structures.add(("split", (s.n_splits, s.reload_rows)))
    return structures


def one_chunk(n_cols: int) -> tuple[ForwardConfig, BackwardConfig]:
    """Rows of n_cols columns, each one chunk: what is not the structure in question."""
    block_cols = tiles.next_power_of_two(n_cols)
    return ForwardConfig(1, block_cols, 1, 1), BackwardConfig(1, block_cols, 1, 1, 2, False)


@pytest.mark.parametrize(
    ("structure", "setting"),
    list(zip(sorted(tuned(), key=str), itertools.cycle(SETTINGS), strict=False)),
    ids=lambda value: "-".join(str(value).replace("(", "").replace(")", "").replace("'", "").split(", ")),
)
def test_every_tuned_structure(structure: tuple[str, Any], setting: tuple[str, str]) -> None:
    direction, parts = structure
    block_rows, n_chunks = (1, parts[0]) if direction == "split" else parts[:2]
    block_cols = 2 if direction == "split" else 8
    n_cols = n_chunks * block_cols - block_cols // 2 + 1  # the last chunk is not full
    n_rows = 2 * block_rows + 1  # nor is the last tile
    forward, backward = one_chunk(n_cols)
    config: Backward = backward
    if direction == "forward":
        forward = ForwardConfig(block_rows, block_cols, parts[2], 1)
    elif direction == "backward":
        config = BackwardConfig(block_rows, block_cols, 1, *parts[2:3], 2, *parts[3:])
    elif direction == "split":
        config = SplitConfig(n_chunks, block_cols, 1, 2, parts[1])
    else:
        *_, num_stages, reload_weight, several_programs, several_reads = parts
        of_tiles = BackwardConfig(block_rows, block_cols, 1, num_stages, -(-n_rows // block_rows), reload_weight)
        widest, most_rows = tiles.next_power_of_two(n_cols), tiles.next_power_of_two(n_rows)
        config = FewRowsConfig(
            of_tiles,
            sum_rows=most_rows // 2 if several_reads else most_rows,
            sum_cols=widest // 4 if several_programs else widest,
        )
    mode, dtype = setting
    case = Case(mode, 0.7, dtype, "float32", False, (n_rows, n_cols), 0.3, "normal", "row_strided", "row_strided")
    assert_launch_is_the_table(case, forward, config)


KERNELS: dict[str, Backward] = {
    "tiles": BackwardConfig(2, 8, 1, 2, 2, False),
    "tiles, w again": BackwardConfig(2, 8, 1, 1, 2, True),
    "few rows": FewRowsConfig(BackwardConfig(2, 8, 1, 2, 3, False), 2, 8),
    "split": SplitConfig(3, 8, 1, 2, False),
    "split, rows again": SplitConfig(3, 8, 1, 2, True),
}
LEFT_OUT: dict[str, dict[str, Any]] = {
    "no dw": {"needs_dw": False},
    "no dx": {"needs_dx": False},
    "no weight": {},
    "dx is dy": {"dx_is_dy": True},
}


@pytest.mark.parametrize(("mode", "dtype"), SETTINGS)
@pytest.mark.parametrize(
    ("kernel", "left_out"),
    # Without dx there is nothing to exchange: rows are not split.
    [pair for pair in itertools.product(KERNELS, LEFT_OUT) if not (pair[0][:5] == "split" and pair[1] == "no dx")],
)
def test_what_may_be_left_out(kernel: str, left_out: str, mode: str, dtype: str) -> None:
    w_dtype = "none" if left_out == "no weight" else "same"
    case = Case(mode, 0.7, dtype, w_dtype, False, (5, 21), 0.3, "normal", "row_strided")
    assert_launch_is_the_table(case, one_chunk(21)[0], KERNELS[kernel], **LEFT_OUT[left_out])


@pytest.mark.parametrize(("mode", "dtype"), SETTINGS)
@pytest.mark.parametrize("n_held", [0, 1, 3])
def test_forward_without_rstd(n_held: int, mode: str, dtype: str) -> None:
    case = Case(mode, 0.7, dtype, "same", False, (5, 21), 0.3, "normal", "row_strided")
    it = exact(case)
    x, w = it.arguments.views["x"], it.arguments.views["w"]
    about = {"eps": case.eps, "offset": case.offset, "casting_mode": mode, "config": ForwardConfig(2, 8, n_held, 1)}
    with triton_world.world(it.field):
        y, _ = launch.rms_norm_forward(x, w, **about, needs_rstd=False)
    assert it.differing(y=y) == {}


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
