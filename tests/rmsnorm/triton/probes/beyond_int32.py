"""Run in a process of its own: strides and offsets beyond 2^31 elements, in virtual memory of which few pages exist.

An int32 on the way to an address ends the process with SIGSEGV, or gives wrong results and a message.
"""

from __future__ import annotations

from typing import Any

from references.candidates import interpreter

interpreter.install()

import torch  # noqa: E402

from rmsnorm.fused import launch  # noqa: E402
from rmsnorm.fused.tiles import BackwardConfig, ForwardConfig, SplitConfig  # noqa: E402

N_ROWS, N_COLS = 3, 24
TILES: list[tuple[Any, Any]] = [
    (ForwardConfig(1, 32, 1, 1), BackwardConfig(1, 32, 1, 1, 2, False)),
    (ForwardConfig(2, 32, 0, 1), BackwardConfig(2, 32, 1, 1, 2, False)),
    (ForwardConfig(1, 16, 1, 1), SplitConfig(2, 1, 16, 1, 1, 2, True, True)),
    (ForwardConfig(4, 32, 1, 1), SplitConfig(2, 1, 16, 1, 1, 2, False, False)),
]


def sparse(values: torch.Tensor, row_stride: int) -> torch.Tensor:
    """The values, in rows 2^30 or more elements apart, in the middle of nothing."""
    storage = torch.empty(N_ROWS * row_stride, dtype=values.dtype)  # never touched as a whole
    return storage.as_strided(values.shape, (row_stride, 1)).copy_(values)


def main() -> None:
    torch.manual_seed(0)
    x, dy, w = (torch.randn(shape).half() for shape in ((N_ROWS, N_COLS), (N_ROWS, N_COLS), (N_COLS,)))
    about: dict[str, Any] = {"offset": 0.5, "casting_mode": "llama"}
    for row_stride in (2**30 + 8, 2**30 + 7):  # aligned for 16 bytes, and not at all
        far_x, far_dy = sparse(x, row_stride), sparse(dy, row_stride)
        for forward, backward in TILES:
            found = []
            for a, b in ((x, dy), (far_x, far_dy)):
                y, rstd = launch.rms_norm_forward(a, w, eps=0.7, config=forward, **about)
                dx = torch.empty_like(x)
                dw = launch.rms_norm_backward(b, a, w, rstd, dx=dx, needs_dw=True, config=backward, **about)
                assert dw is not None
                found.append((y, rstd, dx, dw))
            for name, near, far in zip(("y", "rstd", "dx", "dw"), *found, strict=True):
                assert torch.equal(near, far), f"{name} is wrong with rows {row_stride} elements apart: {forward}"
    print("ok")


if __name__ == "__main__":
    main()
