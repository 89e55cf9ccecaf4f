"""Planted faults: each wrong candidate is found by a few cells, in the tensor where it is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from references import numpy_reference
from references.candidates.memory import Contract
from references.candidates.outputs import Outputs
from references.cells.cell import Case, Inputs
from references.cells.levels import COVERING, MATRIX
from references.judge.comparison import Finding
from references.judge.verdict import RESIDUAL, TENSORS, check

Fault = Callable[[Inputs, Case, Outputs], Outputs]

# Few cells, enough for every fault: all modes, offset 0.5, 16 and 32 bits, half of them with eps as large as the
# mean square, two with NaN and infinity.
FEW = [
    *(c for c in MATRIX if c.offset == 0.5 and c.weight == "same" and c.dtype in ("bfloat16", "float32")),
    *[c for c in COVERING if c.data == "non_finite" and c.n_rows > 1][:2],
]


@dataclasses.dataclass
class Planted:
    """The NumPy reference with a fault in its results."""

    fault: Fault
    name: str = "planted"
    device: str = "cpu"
    ignored: tuple[str, ...] = ()

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        with np.errstate(all="ignore"):
            return self.fault(inputs, case, reference(inputs, case))


def reference(inputs: Inputs, case: Case) -> Outputs:
    settings = {"eps": case.eps, "offset": case.offset, "casting_mode": str(case.casting_mode)}
    y, rstd = numpy_reference.forward(inputs.x, inputs.w, **settings)
    dx, dw = numpy_reference.backward(inputs.dy, inputs.x, inputs.w, **settings)
    return Outputs(y, rstd, dx, dw, contract=Contract((), (), (), dy_dense=True))


def as_if(**settings: Any) -> Fault:
    """What is right for other settings."""
    return lambda inputs, case, right: reference(inputs, dataclasses.replace(case, **settings))


def as_if_mode(wrong: str, instead_of: str) -> Fault:
    def fault(inputs: Inputs, case: Case, right: Outputs) -> Outputs:
        return as_if(casting_mode=wrong)(inputs, case, right) if case.casting_mode == instead_of else right

    return fault


def wrong(tensor: str, value: Callable[[Inputs, Case, Outputs], Any]) -> Fault:
    """One result replaced; a value of NumPy's float64 is rounded to the right dtype first."""

    def fault(inputs: Inputs, case: Case, right: Outputs) -> Outputs:
        result = value(inputs, case, right)
        if result is not None and result.dtype == np.float64:
            result = result.astype(getattr(right, tensor).dtype)
        return dataclasses.replace(right, **{tensor: result})

    return fault


def rstd_eps_outside(i: Inputs, case: Case, right: Outputs) -> np.ndarray:
    return 1 / (np.sqrt(np.square(i.x.astype(float)).mean(-1)) + case.eps)


def rounded(values: Any, dtype: np.dtype) -> np.ndarray:
    return np.asarray(values).astype(dtype).astype(float)


def weight(i: Inputs, case: Case) -> Any:
    """w' in the mode of the case."""
    if i.w is None:
        return 1.0
    shifted = i.w.astype(float) + case.offset
    return rounded(shifted, i.x.dtype) if case.casting_mode == "none" else shifted


def x_hat(i: Inputs, case: Case, rstd: np.ndarray) -> np.ndarray:
    scaled = i.x.astype(float) * rstd.astype(float)[..., None]
    return scaled if case.casting_mode == "gemma" else rounded(scaled, i.x.dtype)


def dx(i: Inputs, case: Case, right: Outputs, projection: float) -> np.ndarray:
    m, rstd, x = i.dy.astype(float) * weight(i, case), right.rstd.astype(float)[..., None], i.x.astype(float)
    return rstd * (m - projection * x * rstd**2 * (m * x).mean(-1, keepdims=True))


def dw(i: Inputs, case: Case, right: Outputs, dtype: Any) -> Any:
    """dW accumulated in `dtype`, row after row."""
    if right.dw is None:
        return None
    total = np.zeros(case.shape[-1], dtype)
    for term in (i.dy.astype(float) * x_hat(i, case, right.rstd)).reshape(-1, case.shape[-1]):
        total = (total + term).astype(dtype)
    return total.astype(right.dw.dtype)


def y_toward_zero(i: Inputs, case: Case, right: Outputs) -> np.ndarray:
    exact = x_hat(i, case, right.rstd) * weight(i, case)
    return np.where(np.abs(right.y.astype(float)) > np.abs(exact), np.nextafter(right.y, right.y * 0), right.y)


def stale() -> Fault:
    """Returns what the last call with this shape and dtype returned."""
    last: dict[Any, np.ndarray] = {}

    def fault(inputs: Inputs, case: Case, right: Outputs) -> Outputs:
        key = (case.shape, case.dtype)
        y, last[key] = last.get(key, right.y), right.y
        return dataclasses.replace(right, y=y)

    return fault


OF_ROUNDING = {"value", "rounding", "exact"}
FAULTS: list[tuple[str, Fault, str, set[str]]] = [  # name, fault, the tensor and checks that must find it
    ("eps outside the root", wrong("rstd", rstd_eps_outside), "rstd", {"value"}),
    (
        "eps outside the root, RSTD not exposed",
        wrong("y", lambda i, c, r: x_hat(i, c, rstd_eps_outside(i, c, r)) * weight(i, c)),
        "y",
        {"value"},
    ),
    *((f"eps dropped, seen in {t}", as_if(eps=0.0), t, {"value"}) for t in TENSORS if t not in RESIDUAL),
    *((f"offset ignored, seen in {t}", as_if(offset=0.0), t, {"value"}) for t in ("y", "dx")),
    ("offset hard-coded", as_if(offset=1.0), "y", {"value"}),
    (
        "w + offset rounded to storage",
        wrong("y", lambda i, c, r: x_hat(i, c, r.rstd) * rounded(weight(i, c), i.x.dtype)),
        "y",
        OF_ROUNDING,
    ),
    *((f"llama without x̂ rounded, in {t}", as_if_mode("gemma", "llama"), t, OF_ROUNDING) for t in ("y", "dw")),
    *((f"gemma with x̂ rounded, in {t}", as_if_mode("llama", "gemma"), t, OF_ROUNDING) for t in ("y", "dw")),
    ("none computed as gemma", as_if_mode("gemma", "none"), "y", OF_ROUNDING),
    ("Y rounded toward zero", wrong("y", y_toward_zero), "y", OF_ROUNDING),
    ("dX without the projection", wrong("dx", lambda i, c, r: dx(i, c, r, projection=0)), "dx", {"value"}),
    ("dW summed in 16 bits", wrong("dw", lambda i, c, r: dw(i, c, r, i.x.dtype)), "dw", {"value", "rounding"}),
    (
        "dW averaged",
        wrong("dw", lambda i, c, r: None if r.dw is None else r.dw / float(c.n_rows)),
        "dw",
        {"value"},
    ),
    (
        "RSTD rounded",
        wrong("rstd", lambda i, c, r: r.rstd.astype(i.x.dtype).astype(float)),
        "rstd",
        {"value"},
    ),
    ("RSTD kept in X's dtype", wrong("rstd", lambda i, c, r: r.rstd.astype(i.x.dtype)), "rstd", {"dtype"}),
    ("Y in float32", wrong("y", lambda i, c, r: r.y.astype(np.float32)), "y", {"dtype"}),
    ("a row lost", wrong("y", lambda i, c, r: r.y[..., :-1, :]), "y", {"shape"}),
    ("RSTD with a dimension more", wrong("rstd", lambda i, c, r: r.rstd[..., None]), "rstd", {"shape"}),
    ("constant output", wrong("y", lambda i, c, r: np.ones_like(r.y)), "y", {"value"}),
    ("the input itself", wrong("y", lambda i, c, r: i.x), "y", {"value"}),
    ("the last call's output", stale(), "y", {"value"}),
    *(
        (
            f"NaN zeroed in {t}",
            wrong(t, lambda i, c, r, t=t: np.nan_to_num(getattr(r, t).astype(float))),
            t,
            {"special"},
        )
        for t in ("y", "dx")
    ),
    ("sign of zero lost", wrong("y", lambda i, c, r: r.y.astype(float) + 0.0), "y", {"special"}),
    (
        "mean over one column more",
        wrong("rstd", lambda i, c, r: r.rstd.astype(float) * (1 + 1 / c.shape[-1]) ** 0.5),
        "rstd",
        {"value"},
    ),
    ("no gradient for X", wrong("dx", lambda i, c, r: None), "dx", {"run"}),
    ("no gradient for W", wrong("dw", lambda i, c, r: None), "dw", {"run"}),
    ("raises", lambda i, c, r: Outputs(error="RuntimeError: no"), "y", {"run"}),
    ("raises backward", lambda i, c, r: Outputs(r.y, r.rstd, error="RuntimeError: no"), "dx", {"run"}),
]


CONTROLS: list[tuple[str, Fault]] = [  # what the faults above are built from is right without the fault
    ("Y", wrong("y", lambda i, c, r: x_hat(i, c, r.rstd) * weight(i, c))),
    ("dX", wrong("dx", lambda i, c, r: dx(i, c, r, projection=1))),
    ("dW", wrong("dw", lambda i, c, r: dw(i, c, r, float))),
]


def found(fault: Fault) -> list[Finding]:
    return [finding for case in FEW for finding in check(Planted(fault), case).findings]


def test_the_reference_passes_and_is_exact() -> None:
    for case in FEW:
        verdict = check(Planted(lambda i, c, right: right), case)
        assert verdict.status == "pass" and verdict.findings == []
        assert set(verdict.measures) == set(TENSORS) - set(RESIDUAL) - ({"dw"} if case.w_dtype is None else set())
        for measure in verdict.measures.values():
            assert measure.exact_rate in (1.0, None) and measure.max_ulps == 0 and measure.ratio <= 1


@pytest.mark.parametrize(("fault", "tensor", "checks"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_planted_fault_is_found_where_it_is(fault: Fault, tensor: str, checks: set[str]) -> None:
    findings = found(fault)
    assert {f.check for f in findings if f.tensor == tensor} & checks, "\n".join(map(str, findings)) or "nothing"


@pytest.mark.parametrize("control", [c[1] for c in CONTROLS], ids=[c[0] for c in CONTROLS])
def test_without_its_fault_a_candidate_passes(control: Fault) -> None:
    assert found(control) == []
