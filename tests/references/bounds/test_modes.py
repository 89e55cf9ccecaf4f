"""Which mode a Y shows: how many elements must contradict the others, and what contradicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from references.bounds import modes
from references.bounds.bound import Bound
from references.cells.cell import Case, make_inputs

CASE = Case("llama", 0.5, "bfloat16", "same", False, (2, 3), 0.7)
Y = np.ones((2, 3), ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("counts", "mode"),
    [
        ({"llama": 0, "gemma": 8, "none": 9}, "llama"),
        ({"llama": 9, "gemma": 0, "none": 8}, "gemma"),
        ({"llama": 0, "gemma": 7, "none": 100}, None),  # seven could be errors of another kind
        ({"llama": 0, "gemma": 0, "none": 100}, None),
        ({"llama": 1, "gemma": 50, "none": 100}, None),
        ({"llama": 0, "gemma": 0, "none": 0}, None),
        ({}, None),
    ],
)
def test_eight_elements_must_contradict_each_other_mode(
    counts: dict[str, int], mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "contradictions", lambda *_: counts)
    assert modes.computed_mode(CASE, make_inputs(CASE), Y) == mode


def test_an_element_contradicts_by_its_bits_or_by_its_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def bounds(x: np.ndarray, w: np.ndarray, **about: Any) -> dict[str, Bound]:
        asked.append(about)
        # well, at its tolerance, beyond it, with other bits, both, well
        value = np.longdouble([[1, 0.5, 0.25, 1, 3, 1]]).reshape(2, 3)
        low, high = (np.array([[1, 1, 1, end, end, 1]]).reshape(2, 3).astype(Y.dtype) for end in (2, 3))
        return {"y": Bound(value, {"a": np.full((2, 3), 0.5, np.longdouble)}, "bfloat16", (low, high))}

    monkeypatch.setattr(modes.tolerances, "forward_bounds", bounds)
    case = replace(CASE, x_layout="expanded")
    arithmetic = modes.Arithmetic(c_div=3)
    found = modes.contradictions(case, make_inputs(case), Y, arithmetic)
    assert found == {"llama": 3, "gemma": 3, "none": 3}
    rest = {"eps": 0.7, "offset": 0.5, "structured": True, "arithmetic": arithmetic}
    assert asked == [{"casting_mode": mode, **rest} for mode in ("llama", "gemma", "none")]


def test_what_cannot_tell_is_not_counted() -> None:
    inputs = make_inputs(CASE)
    assert set(modes.contradictions(CASE, inputs, Y)) == {"llama", "gemma", "none"}
    assert modes.contradictions(CASE, inputs, Y[:1]) == {}
    assert modes.contradictions(CASE, inputs, Y.astype(np.float16)) == {}
    for dtype in ("float32", "float64"):
        wide = replace(CASE, dtype=dtype)
        assert modes.contradictions(wide, make_inputs(wide), Y.astype(dtype)) == {}
