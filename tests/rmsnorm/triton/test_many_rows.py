"""Half the warps for many rows of few columns: which tiles, from how many rows, and that no bit of a row changes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from rmsnorm import liger_fused_add_rms_norm, liger_rms_norm  # noqa: E402
from rmsnorm.fused import plans  # noqa: E402
from rmsnorm.fused.tiles import ForwardConfig, with_half_the_warps  # noqa: E402


@pytest.mark.parametrize(
    ("block_rows", "block_cols", "num_warps", "itemsize", "wanted"),
    [
        (32, 64, 8, 2, 4),
        (2, 512, 4, 2, 2),  # 64 threads a row: all of two warps
        (2, 1024, 4, 2, 4),  # 128 threads a row
        (8, 128, 8, 4, 4),
        (2, 256, 2, 4, 2),
        (2, 512, 8, 8, 8),
        (2, 256, 8, 8, 4),
        (4, 64, 1, 8, 1),
        (1, 64, 8, 2, 8),  # row by row
    ],
)
def test_half_the_warps_where_a_row_keeps_its_threads(
    block_rows: int, block_cols: int, num_warps: int, itemsize: int, wanted: int
) -> None:
    config = ForwardConfig(block_rows, block_cols, 1, num_warps)
    assert with_half_the_warps(config, itemsize) == ForwardConfig(block_rows, block_cols, 1, wanted)


@pytest.mark.parametrize(
    ("shape", "strides", "row_mode", "wanted"),
    [
        ((262144, 64), (64, 1), None, 4),  # 32 MB
        ((262143, 64), (64, 1), None, 8),
        ((512, 512, 64), (32768, 64, 1), False, 4),
        ((262144, 64), (72, 1), None, 4),
        ((262144, 64), (66, 1), None, 8),  # 4 bytes a thread: other threads than with 16
        ((300000, 60), (60, 1), None, 8),
    ],
)
def test_from_32_megabytes_in_whole_vectors(
    shape: tuple[int, ...], strides: tuple[int, ...], row_mode: bool | None, wanted: int
) -> None:
    about = (torch.bfloat16, torch.bfloat16, 1e-6, 0.0, "llama", row_mode, None)
    assert plans.forward_plan(shape, strides, *about).variant._options["num_warps"] == wanted


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["an element off", "odd steps", "weight of float32", "no weight", "residual"])
@pytest.mark.parametrize(
    ("dtype", "n_cols"),
    [("bfloat16", 64), ("bfloat16", 104), ("float16", 256), ("bfloat16", 512), ("float32", 64), ("float32", 128)],
)
def test_no_bit_of_a_row_changes(dtype: str, n_cols: int, layout: str) -> None:
    x_dtype = getattr(torch, dtype)
    n_rows = 2**25 // (n_cols * x_dtype.itemsize) + 5
    row_step, first = n_cols + (layout == "odd steps"), int(layout == "an element off")
    generator = torch.Generator("cuda").manual_seed(n_cols)
    buffer = torch.randn(n_rows * row_step + 1, generator=generator, device="cuda", dtype=x_dtype)
    x = buffer.as_strided((n_rows, n_cols), (row_step, 1), first)
    w_dtype = torch.float32 if layout == "weight of float32" else x_dtype
    w = None if layout == "no weight" else torch.randn(n_cols, generator=generator, device="cuda", dtype=w_dtype)

    def y(rows: torch.Tensor) -> torch.Tensor:
        if layout == "residual":
            return liger_fused_add_rms_norm(rows, rows.flip(0).flip(0), w, 1e-6)[0]
        return liger_rms_norm(rows, w, 1e-6)

    whole = y(x)
    for rows in (slice(0, 1), slice(-7, None), slice(1000, 6001)):
        assert torch.equal(y(x[rows]), whole[rows]), rows
