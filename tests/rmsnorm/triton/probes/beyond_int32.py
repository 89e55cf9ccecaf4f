"""Run in a process of its own: strides and offsets beyond 2^31 elements, in virtual memory of which few pages exist.

An int32 on the way to an address ends the process with SIGSEGV, or gives wrong results and a message.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from references.candidates import interpreter

interpreter.install()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime.interpreter import TensorHandle, interpreter_builder  # noqa: E402

from rmsnorm.fused import kernels, launch, split_kernels  # noqa: E402
from rmsnorm.fused.tiles import BackwardConfig, FewRowsConfig, ForwardConfig, SplitConfig  # noqa: E402

N_ROWS, N_COLS = 3, 24
TILES: list[tuple[Any, Any]] = [
    (ForwardConfig(1, 32, 1, 1), BackwardConfig(1, 32, 1, 1, 2, False)),
    (ForwardConfig(2, 32, 0, 1), BackwardConfig(2, 32, 1, 1, 2, False)),
    (ForwardConfig(1, 32, 1, 1), FewRowsConfig(BackwardConfig(1, 32, 1, 1, 3, False), 2, 16)),
    (ForwardConfig(1, 16, 1, 1), SplitConfig(2, 16, 1, 2, True)),
    (ForwardConfig(4, 32, 1, 1), SplitConfig(2, 16, 1, 2, False)),
]


def nothing(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory for n elements, of which the pages exist that are written."""
    return torch.empty(n, dtype=dtype)


def sparse(values: torch.Tensor, row_stride: int) -> torch.Tensor:
    """The values, in rows that lie so many elements apart, in the middle of nothing."""
    n_rows, n_cols = values.shape
    storage = nothing((n_rows - 1) * row_stride + n_cols, values.dtype)  # never touched as a whole
    return storage.as_strided(values.shape, (row_stride, 1)).copy_(values)


def far_rows() -> None:
    """X, R, dY and dS with rows far apart: over several steps of 2^30 elements, and in one step beyond 2^31."""
    torch.manual_seed(0)
    near = [torch.randn(N_ROWS, N_COLS).half() for _ in range(4)]
    w = torch.randn(N_COLS).half()
    about: dict[str, Any] = {"offset": 0.5, "casting_mode": "llama"}
    # Aligned for 16 bytes, and not at all: another step count, and another multiplication.
    for row_stride, n_rows in ((2**30 + 8, 3), (2**30 + 7, 3), (2**31 + 8, 2), (2**31 + 7, 2)):
        operands = [t[:n_rows] for t in near]
        given = [operands, *([*operands[:i], sparse(operands[i], row_stride), *operands[i + 1 :]] for i in range(4))]
        for forward, backward in TILES:
            found = []
            for x, r, dy, ds in given:
                s, dx = (torch.full_like(operands[0], torch.nan) for _ in range(2))
                y, rstd = launch.rms_norm_forward(x, w, eps=0.7, config=forward, r=r, s=s, **about)
                dw = launch.rms_norm_backward(dy, x, w, rstd, dx=dx, needs_dw=True, config=backward, ds=ds, **about)
                assert dw is not None
                found.append((y, s, rstd, dx, dw))
            for far, operand in zip(found[1:], ("x", "r", "dy", "ds"), strict=True):
                for name, got, wanted in zip(("y", "s", "rstd", "dx", "dw"), far, found[0], strict=True):
                    where = f"{operand} has rows {row_stride} elements apart: {forward}, {backward}"
                    assert torch.equal(got, wanted), f"{name} is wrong where {where}"


def one_program(kernel: Any, program: int, n_programs: int, *arguments: Any) -> None:
    """One program of a launch, which the interpreter would reach in hours."""

    def number(value: int) -> Any:
        return lambda axis: TensorHandle(np.array([value], dtype=np.int32), tl.int32)

    with (
        mock.patch.object(interpreter_builder, "create_get_program_id", number(program)),
        mock.patch.object(interpreter_builder, "create_get_num_programs", number(n_programs)),
    ):
        kernel[(1,)](*arguments)


def last_rows() -> None:
    """Rows of Y, dX, dW's partial sums and the exchange beyond 2^31 elements: only their programs run."""
    n_cols, n_rows = 64, 2**25 + 2
    last = n_rows - 1
    torch.manual_seed(0)
    x, r, dy, ds, w = (torch.randn(shape).half() for shape in (*[(1, n_cols)] * 4, (n_cols,)))
    about: dict[str, Any] = {"offset": 0.5, "casting_mode": "llama"}
    s, dx = torch.empty_like(x), torch.empty_like(x)
    y, rstd = launch.rms_norm_forward(x, w, eps=0.7, r=r, s=s, **about)
    dw = launch.rms_norm_backward(dy, s, w, rstd, dx=dx, needs_dw=True, ds=ds, **about)
    assert dw is not None
    names = ("x", "r", "dy", "ds", "y", "s", "dx")
    far = {name: nothing(n_rows * n_cols, torch.float16).view(n_rows, n_cols) for name in names}
    for name, operand in (("x", x), ("r", r), ("dy", dy), ("ds", ds)):
        far[name][last] = operand[0]
    far_rstd, partial = nothing(n_rows, torch.float32), nothing(n_rows * n_cols, torch.float32).view(n_rows, n_cols)
    mode = kernels.LLAMA.value

    given = (far["x"], far["r"], w, far["y"], far["s"], far_rstd, n_cols, n_cols, n_rows, n_cols, 0.7, 0.5, mode)
    one_program(kernels.rms_norm_forward_kernel, last, n_rows, *given, True, True, True, 1, n_cols, 1, 1)
    assert torch.equal(far["y"][last], y[0]), "y"
    assert torch.equal(far["s"][last], s[0]), "s"
    assert far_rstd[last] == rstd[0], "rstd"

    tensors = (far["dy"], far["ds"], far["s"], w, far_rstd, far["dx"], partial)
    sizes = (n_cols, n_cols, n_cols, n_rows, n_cols, 0.5, mode, True, True)
    one_program(kernels.rms_norm_backward_kernel, last, n_rows, *tensors, *sizes, True, True, False, 1, n_cols, 1, 1)
    assert torch.equal(far["dx"][last], dx[0]), "dx"
    assert torch.equal(partial[last].half(), dw), "a partial row of dw"

    kernel = split_kernels.rms_norm_backward_split_kernel
    # A group a row: partial rows of dW beyond 2^31 elements. Two rows a group: slots of the exchange.
    for n_splits, n_groups in ((2, n_rows), (64, n_rows // 2)):
        exchange = nothing(n_rows * n_splits, torch.int32)
        far["dx"][last], group = torch.nan, last % n_groups
        options = (True, False, n_splits, n_splits, n_cols // n_splits, 1)
        for passes in ((True, False), (False, True)):  # to publish, and to collect
            for split in range(n_splits):
                place = (group * n_splits + split, n_groups * n_splits)
                one_program(kernel, *place, *tensors, exchange, *sizes, *options, *passes)
        # Another order of additions than that of the tile above: within two roundings of the sum.
        assert torch.allclose(far["dx"][last], dx[0], rtol=2**-9, atol=2**-12), f"dx of {n_splits} splits"
        assert torch.equal(partial[group].half(), dw), f"a partial row of dw of {n_splits} splits"

    n_cols, n_partials = 2**30 + 16, 3
    wide = nothing(n_partials * n_cols, torch.float32).view(n_partials, n_cols)
    wide[:, -16:] = torch.arange(48.0).view(3, 16)
    total = nothing(n_cols, torch.float32)
    place = (n_cols // 16 - 1, n_cols // 16)
    one_program(kernels.rms_norm_weight_gradient_kernel, *place, wide, total, n_partials, n_cols, 4, 16)
    assert torch.equal(total[-16:], wide[:, -16:].sum(0)), "dw"


if __name__ == "__main__":
    far_rows()
    last_rows()
    print("ok")
