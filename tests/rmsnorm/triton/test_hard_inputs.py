"""Values, layouts and addresses that break kernels: judged, or run beside memory that must not be touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from references import arrays, numpy_reference  # noqa: E402
from references.bounds import tolerances  # noqa: E402
from references.candidates import loading  # noqa: E402
from references.cells.cell import Case  # noqa: E402
from references.judge.verdict import check  # noqa: E402
from rmsnorm import liger_rms_norm  # noqa: E402
from tests.support import DEVICES  # noqa: E402

PROBES = Path(__file__).parent / "probes"


def probe(name: str, *arguments: str) -> None:
    """Run a probe in a process of its own, which a stray access ends."""
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(PROBES / name), *arguments]
    ended = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=300)
    reason = ended.stderr.strip().splitlines()[-1:] or ended.stdout.strip().splitlines()[-1:]
    assert ended.returncode == 0, f"exit {ended.returncode}: {reason}"


@pytest.mark.interpret
@pytest.mark.parametrize("at", ["end", "start"])
def test_guard_pages(at: str) -> None:
    probe("guard_pages.py", at, "row", "chunks", "block", "few_rows", "split", "split_reload")


@pytest.mark.interpret
def test_beyond_int32() -> None:
    probe("beyond_int32.py")


def judge(case: Case, device: str) -> None:
    verdict = check(loading.load("rmsnorm:liger_rms_norm", device=device), case)
    assert verdict.status == "pass", "\n".join(map(str, verdict.findings)) or verdict.reason


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("x", "dy", "w"),
    [
        ("row_strided", "misaligned", "column_strided"),
        ("contiguous", "row_strided", "column_strided"),
        ("misaligned", "row_strided", "misaligned"),
        ("transposed", "heads", "contiguous"),
        ("heads", "transposed", "column_strided"),
        ("expanded", "column_strided", "contiguous"),
        ("column_strided", "expanded", "misaligned"),
        ("row_strided", "transposed", "contiguous"),
    ],
)
@pytest.mark.parametrize("in_place", [True, False])
def test_layouts(x: str, dy: str, w: str, in_place: bool, device: str) -> None:
    shape = (2, 3, 4, 24)
    judge(Case("llama", 0.5, "bfloat16", "same", in_place, shape, 0.7, "normal", x, dy, w), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("x_steps", "dy_steps"), [(33, 40), (40, 33), (34, 36), (36, 34), (33, 33)])
def test_row_strides_of_every_alignment(x_steps: int, dy_steps: int, device: str) -> None:
    generator = torch.Generator().manual_seed(x_steps * dy_steps)
    x, dy, w = (torch.randn(s, generator=generator) for s in ((3, 24), (3, 24), (24,)))
    wanted = gradients(x.to(device), w.to(device), dy.to(device))
    far_x, far_dy = (
        torch.full((3, steps), torch.nan, device=device)[:, 5:29].copy_(t)
        for t, steps in ((x, x_steps), (dy, dy_steps))
    )
    got = gradients(far_x, w.to(device), far_dy)
    assert all(torch.equal(g, v) for g, v in zip(got, wanted, strict=True))


def gradients(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, **settings: object) -> tuple[torch.Tensor, ...]:
    """y, dx, dw."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    with np.errstate(all="ignore"):
        y = liger_rms_norm(x, w, **({"eps": 0.7, "offset": 0.5, "in_place": False} | settings))
        return (y.detach(), *torch.autograd.grad(y, (x, w), dy))


VALUES = {
    "subnormal": (np.float32(1e-41), 0.0),
    "squares_vanish": (np.float32(1e-25), 0.0),
    "squares_overflow": (np.float32(3e38), 1e-6),
    "large": (np.float32(1e15), 1e-6),
    "one": (np.float32(1), 1.0),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["llama", "none"])
@pytest.mark.parametrize("name", VALUES)
def test_values_at_the_ends_of_the_range(name: str, mode: str, device: str) -> None:
    # Beside the reference: same infinities, NaN and zeros, and where the bound applies, within it.
    scale, eps = VALUES[name]
    rng = np.random.default_rng(0)
    x = (rng.choice((-1, 1), (3, 24)) * scale).astype(np.float32)
    w, dy = rng.standard_normal(24).astype(np.float32), rng.standard_normal((3, 24)).astype(np.float32)
    about = {"eps": eps, "offset": 0.5, "casting_mode": mode}
    y = gradients(*(arrays.to_torch(t, device) for t in (x, w, dy)), **about)[0]
    got = arrays.to_numpy(y)
    wanted, _ = numpy_reference.forward(x, w, **about)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    assert np.array_equal(np.isinf(got), np.isinf(wanted))
    bound = tolerances.forward_bounds(x, w, **about)["y"]
    with np.errstate(all="ignore"):
        assert (bound.ratio(got)[bound.applies] <= 1).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_weight_of_minus_zero_keeps_its_sign(device: str) -> None:
    x = torch.ones(2, 8, device=device)
    w = torch.full((8,), -0.0, device=device)
    y = liger_rms_norm(x, w, 1e-6)
    assert torch.signbit(y).all()


@pytest.mark.parametrize("device", DEVICES)
def test_float16_overflows_in_none_alone(device: str) -> None:
    x = torch.full((1, 16), 300.0, dtype=torch.float16, device=device)
    with np.errstate(all="ignore"):
        assert (liger_rms_norm(x, None, 1e-6, 0.0, "none") == 0).all()  # R(x²) is infinite, so RSTD is 0
        for mode in ("llama", "gemma"):
            assert (liger_rms_norm(x, None, 1e-6, 0.0, mode) == 1).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["zero", "one_hot", "parallel", "nan_row"])
def test_upstream_gradients(kind: str, device: str) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((3, 24)).astype(np.float32), rng.standard_normal(24).astype(np.float32)
    dy = np.zeros((3, 24), np.float32)
    if kind == "one_hot":
        dy[1, 7] = 1
    elif kind == "parallel":  # dX nearly vanishes
        dy = x / (w + np.float32(0.5))
    elif kind == "nan_row":
        dy[1] = np.nan
    about = {"eps": 0.0 if kind == "parallel" else 0.7, "offset": 0.5, "casting_mode": "llama"}
    _, dx, dw = (arrays.to_numpy(t) for t in gradients(*(arrays.to_torch(t, device) for t in (x, w, dy)), **about))
    bounds = tolerances.backward_bounds(dy, x, w, **about)
    for got, bound in ((dx, bounds["dx"]), (dw, bounds["dw"])):
        assert (bound.ratio(got)[bound.applies] <= 1).all()
    assert np.isnan(dx).all(axis=1).tolist() == [False, kind == "nan_row", False]


@pytest.mark.parametrize("device", DEVICES)
def test_specialisation_flips_back_and_forth(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    wide, weights = torch.randn((3, 64), generator=generator), torch.randn(64, generator=generator)

    def run(n_cols: int, w_dtype: torch.dtype, start: int) -> tuple[torch.Tensor, ...]:
        x = wide.to(device)[:, start : start + n_cols]
        return gradients(x, weights[:n_cols].to(device, w_dtype), x, casting_mode="gemma")

    sequence = [(n, t, s) for n in (60, 33, 60) for t in (torch.bfloat16, torch.float32) for s in (0, 1, 4)]
    first = {setting: run(*setting) for setting in sequence[:12]}
    for setting in reversed(sequence):
        assert all(torch.equal(a, b) for a, b in zip(run(*setting), first[setting], strict=True)), setting


@pytest.mark.parametrize("device", DEVICES)
def test_overlapping_rows_are_read_and_never_written(device: str) -> None:
    base = torch.randn(40, generator=torch.Generator().manual_seed(0)).to(device)
    x = base.as_strided((5, 16), (3, 1))
    dy = base.as_strided((5, 16), (5, 1))
    before = base.clone()
    w = torch.ones(16, device=device)
    got = gradients(x, w, dy, in_place=True)
    assert torch.equal(base, before)
    wanted = gradients(x.contiguous(), w, dy.contiguous(), in_place=False)
    assert all(torch.equal(g, v) for g, v in zip(got, wanted, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_a_summed_loss_expands_one_number(device: str) -> None:
    x = torch.randn((4, 24), generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    liger_rms_norm(x, None, 0.7, in_place=True).sum().backward()
    (wanted,) = torch.autograd.grad(liger_rms_norm(x, None, 0.7, in_place=False), x, torch.ones_like(x))
    assert torch.equal(x.grad, wanted)
