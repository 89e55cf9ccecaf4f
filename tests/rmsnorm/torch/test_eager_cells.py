"""The CPU implementation in eager PyTorch: few cells in which every term shows. `test_matrix.py` has them all."""

from __future__ import annotations

import pytest

from references.candidates import loading
from references.cells.cell import Case
from references.cells.levels import SMOKE
from references.judge.verdict import check

pytestmark = pytest.mark.torch

CELLS = [
    Case(mode, 0.5, dtype, weight, in_place, (2, 4, 41), 0.7)
    for mode, dtype, weight, in_place in (
        ("llama", "bfloat16", "same", False),
        ("gemma", "bfloat16", "same", True),
        ("none", "bfloat16", "same", False),
        ("llama", "float32", "none", True),
        ("none", "float16", "float32", True),
        ("gemma", "float64", "same", False),
    )
] + [case for case in SMOKE if case.data == "non_finite"][:2]


def test_operators_return_the_dtype_that_they_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from rmsnorm import ops
    from rmsnorm.fused import launch

    monkeypatch.setattr(launch, "INTERPRETED", False)
    x, w = torch.ones(3, 8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.float16)
    y, rstd = ops.forward(x, w, 1e-6, 0.0, "llama", None)
    dx, dw = ops.backward(x, x, w, rstd, 1e-6, 0.0, "llama", None, True, True)
    assert [t.dtype for t in (y, rstd, dx, dw)] == [torch.bfloat16, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("case", CELLS, ids=lambda case: case.id)
def test_eager(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmsnorm.fused import launch

    monkeypatch.setattr(launch, "INTERPRETED", False)
    verdict = check(loading.load("rmsnorm:liger_rms_norm"), case)
    assert verdict.status == "pass", "\n".join(map(str, verdict.findings))
