"""A failing cell is shrunk to the smallest shape that fails alike, through the door it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from references import numpy_reference
from references.candidates.memory import Contract
from references.candidates.outputs import Outputs
from references.cells.cell import Case, Inputs
from references.judge.shrinking import shrink
from references.judge.verdict import check

CASE = Case("gemma", 0.5, "float32", "same", False, (3, 11, 1000), 0.7, x_layout="row_strided")


@dataclasses.dataclass
class Spoiled:
    """The NumPy reference with `spoil(y)` in place of Y; it remembers the shapes that it was asked for."""

    spoil: Callable[[np.ndarray], np.ndarray]

    def __post_init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        self.shapes.append(case.shape)
        about = {"eps": case.eps, "offset": case.offset, "casting_mode": str(case.casting_mode)}
        y, rstd = numpy_reference.forward(inputs.x, inputs.w, **about)
        dx, dw = numpy_reference.backward(inputs.dy, inputs.x, inputs.w, **about)
        return Outputs(self.spoil(y), rstd, dx, dw, contract=Contract((), (), (), dy_dense=True))


def tail(y: np.ndarray) -> np.ndarray:
    y[..., 512:] = 0
    return y


def last_rows(y: np.ndarray) -> np.ndarray:
    y.reshape(-1, y.shape[-1])[4:] *= 2
    return y


@pytest.mark.parametrize(
    ("spoil", "shape"),
    [(tail, (1, 1, 513)), (last_rows, (1, 5, 1)), (lambda y: 2 * y, (1, 1, 1)), (lambda y: y[:2], (3, 1, 1))],
)
def test_the_smallest_shape_is_found(spoil: Callable, shape: tuple[int, ...]) -> None:
    candidate = Spoiled(spoil)

    def judge(case: Case):
        return check(candidate, case)

    verdict = judge(CASE)
    smallest = shrink(judge, verdict)
    assert smallest.case == dataclasses.replace(CASE, shape=shape)
    assert smallest.status == "fail" and {f.tensor for f in smallest.findings} == {"y"}
    assert len(candidate.shapes) <= 1 + sum(size.bit_length() for size in CASE.shape)


def test_another_failure_is_not_taken_for_the_same() -> None:
    def spoil(y: np.ndarray) -> np.ndarray:
        return 2 * y if y.shape[-1] == 1000 else y[..., :-1]

    candidate = Spoiled(spoil)
    verdict = shrink(lambda case: check(candidate, case), check(candidate, CASE))
    assert verdict.case.shape == (1, 1, 1000)
