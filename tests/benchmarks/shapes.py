"""What is timed: the profile's sweep and the shapes that people train and serve with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

HBM_BYTES_A_MICROSECOND = 4.28e6  # an H200's measured copy bandwidth, read and written, that the floors are drawn with


@dataclass(frozen=True)
class Shape:
    """n_rows × n_cols of x in a dtype."""

    n_rows: int
    n_cols: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.n_rows}x{self.n_cols}-{'f32' if self.dtype == torch.float32 else 'bf16'}"

    def bytes_moved(self, direction: str) -> int:
        """The fewest bytes through the GPU's memory: x, y or dy and dx once each, weight, rstd."""
        tensors, weights = {"forward": (2, 1), "backward": (3, 2), "full": (5, 3)}[direction]
        itemsize = self.dtype.itemsize
        rstd = 4 * self.n_rows * (2 if direction == "full" else 1)
        return tensors * self.n_rows * self.n_cols * itemsize + weights * self.n_cols * itemsize + rstd

    def floor(self, direction: str) -> float:
        """Microseconds below which the memory system does not go."""
        return self.bytes_moved(direction) / HBM_BYTES_A_MICROSECOND

    def residual_floor(self) -> float:
        """The same with a residual, of either direction: x, r, s, y there and dy, ds, s, dx back."""
        return 4 * self.n_rows * self.n_cols * self.dtype.itemsize / HBM_BYTES_A_MICROSECOND


F32, BF16 = torch.float32, torch.bfloat16
SWEEP = tuple(Shape(4096, n_cols, F32) for n_cols in (1024, 2048, 4096, 8192, 16384))
MODELS = tuple(Shape(4096, n_cols, BF16) for n_cols in (1024, 2048, 4096, 8192, 16384, 5120, 4104))
MANY_ROWS = (Shape(32768, 4096, BF16), Shape(512, 4096, BF16), Shape(16, 4096, BF16))
HEADS = (Shape(1048576, 64, BF16), Shape(1048576, 128, BF16), Shape(262144, 256, BF16))
WIDE = tuple(Shape(2048, n_cols, dtype) for dtype in (BF16, F32) for n_cols in (32768, 65536))
OTHER = (Shape(4096, 4100, F32), Shape(4096, 24576, BF16))
FEW_COLUMNS = tuple(
    Shape(n_rows, n_cols, BF16) for n_cols in (64, 128, 256, 512) for n_rows in (16, 256, 1024, 4096, 16384, 131072)
)
RESIDUAL_SHAPES = (
    *(Shape(4096, n_cols, BF16) for n_cols in (1024, 2048, 4096, 5120, 8192, 16384)),
    *(Shape(n_rows, n_cols, BF16) for n_rows, n_cols in ((1024, 4096), (16384, 2048), (32768, 4096), (2048, 32768))),
    *(Shape(n_rows, 4096, BF16) for n_rows in (16, 64)),
    *(Shape(4096, n_cols, F32) for n_cols in (4096, 8192)),
)
GPU_SHAPES = SWEEP + MODELS + MANY_ROWS + HEADS + WIDE + OTHER + FEW_COLUMNS
CPU_SHAPES = (Shape(256, 1024, F32), Shape(256, 4096, F32))


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
