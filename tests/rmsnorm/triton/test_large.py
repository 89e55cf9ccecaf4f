"""Large inputs on a GPU: beyond int32, many rows, very wide rows, two streams, repeatability."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gpu]
torch = pytest.importorskip("torch")

from references import arrays  # noqa: E402
from references.bounds import tolerances  # noqa: E402
from rmsnorm import liger_rms_norm  # noqa: E402

EPS = 1e-6


def results(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, row_mode: bool | None = None
) -> tuple[torch.Tensor, ...]:
    """y, dx and dw, out of place."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = liger_rms_norm(x, w, EPS, in_place=False, row_mode=row_mode)
    return (y.detach(), *torch.autograd.grad(y, (x, w), dy))


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).to(dtype)


def bounds_of(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> dict[str, tolerances.Bound]:
    about = {"eps": EPS, "offset": 0.0, "casting_mode": "llama"}
    arguments = {name: arrays.to_numpy(t.cpu()) for name, t in (("x", x), ("w", w), ("dy", dy))}
    bounds = tolerances.forward_bounds(arguments["x"], arguments["w"], **about)
    return bounds | tolerances.backward_bounds(arguments["dy"], arguments["x"], arguments["w"], **about)


def assert_within(bounds: dict[str, tolerances.Bound], **results: torch.Tensor) -> None:
    for name, result in results.items():
        ratio = float(bounds[name].ratio(arrays.to_numpy(result.cpu())).max())
        assert ratio <= 1, f"{name}: {ratio} times its bound"


def assert_rows_right(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, rows: list[int]
) -> None:
    """y and dx of these rows against their bounds; no other row decides them."""
    assert_within(bounds_of(x[rows], w, dy[rows]), y=y[rows], dx=dx[rows])


@pytest.mark.parametrize("row_mode", [True, False])
@pytest.mark.parametrize(("n_rows", "n_cols"), [(32768, 256), (57345, 128), (32767, 64), (40000, 257)])
def test_many_rows(n_rows: int, n_cols: int, row_mode: bool) -> None:
    x, dy, w = random(n_rows, n_cols), random(n_rows, n_cols, seed=1), random(n_cols, seed=2)
    y, dx, dw = results(x, w, dy, row_mode)
    assert_within(bounds_of(x, w, dy), y=y, dx=dx, dw=dw)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n_cols", [53248, 65536])
def test_very_wide_rows(n_cols: int, dtype: torch.dtype) -> None:
    x, dy, w = random(40, n_cols, dtype=dtype), random(40, n_cols, dtype=dtype, seed=1), random(n_cols, dtype=dtype)
    y, dx, dw = results(x, w, dy)
    assert_within(bounds_of(x, w, dy), y=y, dx=dx, dw=dw)


def test_wider_rows_than_the_kernels_hold() -> None:
    x, dy, w = random(3, 65537), random(3, 65537, seed=1), random(65537, seed=2)
    y, dx, _ = results(x, w, dy)
    assert_rows_right(x, w, dy, y, dx, [0, 2])


@pytest.mark.big
@pytest.mark.parametrize("row_mode", [True, False])
def test_more_elements_than_int32_counts(row_mode: bool) -> None:
    n_rows, n_cols = 2**23 + 16, 256
    x, w = random(1, n_cols).expand(n_rows, n_cols).contiguous(), random(n_cols, seed=2)
    last = random(16, n_cols, seed=3)
    x[-16:] = last
    dy = x.flip(1).contiguous()
    y, dx, _ = results(x, w, dy, row_mode)
    rows = [0, 1, 2**23 - 1, 2**23, n_rows - 1]
    assert_rows_right(x, w, dy, y, dx, rows)
    assert torch.equal(y[1 : 2**20], y[:1].expand(2**20 - 1, n_cols)), "equal rows have equal bits"
    assert torch.equal(y[2**23 - 2**20 : 2**23], y[:1].expand(2**20, n_cols))


@pytest.mark.big
def test_strides_beyond_int32() -> None:
    base = torch.empty(2**31 + 4096, device="cuda", dtype=torch.bfloat16)
    x = base.as_strided((3, 64), (2**30, 1))
    x.copy_(random(3, 64))
    dy = base.as_strided((3, 64), (2**30, 1), 128)
    dy.copy_(random(3, 64, seed=1))
    w = random(64, seed=2)
    got = results(x, w, dy)
    wanted = results(x.contiguous(), w, dy.contiguous())
    assert all(torch.equal(g, v) for g, v in zip(got, wanted, strict=True))


def test_two_streams_at_once() -> None:
    problems = [(random(4096, 1024, seed=i), random(1024, seed=i + 9), random(4096, 1024, seed=i + 5)) for i in (0, 1)]
    wanted = [results(*problem) for problem in problems]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in problems]
    got: list[list[tuple[torch.Tensor, ...]]] = [[], []]
    for _ in range(10):
        for i, (stream, problem) in enumerate(zip(streams, problems, strict=True)):
            with torch.cuda.stream(stream):
                got[i].append(results(*problem))
    torch.cuda.synchronize()
    for runs, value in zip(got, wanted, strict=True):
        assert all(torch.equal(g, v) for run in runs for g, v in zip(run, value, strict=True))


@pytest.mark.parametrize("n_cols", [64, 1000, 4096, 16384, 32768])
def test_bits_repeat_and_do_not_depend_on_the_batch(n_cols: int) -> None:
    x, dy, w = random(2000, n_cols), random(2000, n_cols, seed=1), random(n_cols, seed=2)
    first = results(x, w, dy)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(results(x, w, dy), first, strict=True))
    for rows in (slice(0, 1), slice(5, 22), slice(1000, 2000)):
        y, dx, _ = results(x[rows], w, dy[rows])
        assert torch.equal(y, first[0][rows])
        assert torch.equal(dx, first[1][rows])
