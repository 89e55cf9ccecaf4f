"""Run in a process of its own: every tensor ends, or starts, at a page that must not be touched.

Arguments: "end" or "start" (where the forbidden page lies), and which tile. A stray access ends the process with
SIGSEGV; wrong results end it with a message.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from typing import Any

import numpy as np

from references.candidates import interpreter

interpreter.install()

import torch  # noqa: E402

from rmsnorm.fused import launch  # noqa: E402
from rmsnorm.fused.tiles import BackwardConfig, FewRowsConfig, ForwardConfig, SplitConfig  # noqa: E402

LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
KEPT: list[mmap.mmap] = []
N_ROWS, N_COLS = 5, 100
TILES: dict[str, tuple[Any, Any]] = {
    "row": (ForwardConfig(1, 128, 1, 1), BackwardConfig(1, 128, 1, 1, 3, False)),
    "chunks": (ForwardConfig(1, 32, 1, 1), BackwardConfig(1, 64, 1, 1, 3, True)),
    "block": (ForwardConfig(4, 128, 1, 1), BackwardConfig(4, 128, 1, 1, 2, False)),
    "few_rows": (ForwardConfig(1, 128, 1, 1), FewRowsConfig(BackwardConfig(2, 64, 1, 1, 3, True), 2, 16)),
    "split": (ForwardConfig(2, 64, 2, 1), SplitConfig(7, 16, 1, 3, False)),
    "split_reload": (ForwardConfig(2, 64, 0, 1), SplitConfig(4, 32, 1, 3, True)),
}


def guarded(shape: tuple[int, ...], dtype: torch.dtype, at: str) -> torch.Tensor:
    """A NaN-filled tensor between two forbidden pages, of which it touches one."""
    n_bytes = math.prod(shape) * dtype.itemsize
    n_pages = -(-n_bytes // PAGE)
    area = mmap.mmap(-1, (n_pages + 2) * PAGE)
    KEPT.append(area)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for page in (address, address + (n_pages + 1) * PAGE):
        if LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = PAGE if at == "start" else (n_pages + 1) * PAGE - n_bytes
    tensor = torch.frombuffer(area, dtype=dtype, count=math.prod(shape), offset=offset).view(shape)
    return tensor.fill_(torch.nan) if dtype.is_floating_point else tensor


def main(at: str, tile: str) -> None:
    torch.manual_seed(0)
    x, r, dy, ds = (torch.randn(N_ROWS, N_COLS) for _ in range(4))
    w = torch.randn(N_COLS)
    about: dict[str, Any] = {"offset": 0.5, "casting_mode": "llama"}
    forward, backward = TILES[tile]

    def results(
        x: torch.Tensor, r: torch.Tensor, dy: torch.Tensor, ds: torch.Tensor, w: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        found = {}
        for kind, residual, upstream in (("plain", None, None), ("with a residual", r, ds)):
            s = None if residual is None else x.new_empty(x.shape)
            y, rstd = launch.rms_norm_forward(x, w, eps=0.7, config=forward, r=residual, s=s, **about)
            normalized, dx = x if s is None else s, x.new_empty(x.shape)
            dw = launch.rms_norm_backward(
                dy, normalized, w, rstd, dx=dx, needs_dw=True, config=backward, ds=upstream, **about
            )
            assert dw is not None
            results = {"y": y, "rstd": rstd, "dx": dx, "dw": dw} | ({} if s is None else {"s": s})
            found |= {f"{name} ({kind})": t for name, t in results.items()}
        return found

    wanted = results(x, r, dy, ds, w)

    new_empty, new_full = torch.Tensor.new_empty, torch.Tensor.new_full

    def guarded_empty(t: torch.Tensor, *shape: Any, dtype: torch.dtype | None = None, **rest: Any) -> torch.Tensor:
        size = tuple(shape[0]) if isinstance(shape[0], tuple | list) else shape
        if math.prod(size) == 0 or rest:  # the interpreter's own
            return new_empty(t, *shape, dtype=dtype, **rest)
        return guarded(size, dtype or t.dtype, at)

    def guarded_full(t: torch.Tensor, size: Any, value: Any, *, dtype: torch.dtype, **rest: Any) -> torch.Tensor:
        return guarded(tuple(size), dtype, at).fill_(value)

    def moved(t: torch.Tensor) -> torch.Tensor:
        return guarded(tuple(t.shape), t.dtype, at).copy_(t)

    torch.Tensor.new_empty, torch.Tensor.new_full = guarded_empty, guarded_full

    def strided(t: torch.Tensor) -> torch.Tensor:
        """Rows that lie further apart than those of dX, and end at the page."""
        wide = guarded((N_ROWS, N_COLS + 4), t.dtype, at)
        return (wide[:, 4:] if at == "end" else wide[:, :N_COLS]).copy_(t)

    got = results(moved(x), strided(r), strided(dy), moved(ds), moved(w))
    torch.Tensor.new_empty, torch.Tensor.new_full = new_empty, new_full
    for name, value in wanted.items():
        assert np.array_equal(got[name].numpy(), value.numpy()), f"{name} is wrong beside a guard page"
    print("ok")


if __name__ == "__main__":
    for tile in sys.argv[2:]:
        print(tile, flush=True)
        main(sys.argv[1], tile)
