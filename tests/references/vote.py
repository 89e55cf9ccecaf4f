"""Three references, one vote: the one that both others contradict is named."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from references import arrays
from references.bounds import tolerances
from references.bounds.tolerances import Bound
from references.candidates.loading import load
from references.candidates.outputs import Outputs
from references.cells.cell import Case, make_inputs
from references.judge.verdict import TENSORS, reference_bounds

REFERENCES = ("numpy", "torch", "jax")


def cases() -> list[Case]:
    """Few cells in which every term shows: eps as large as the mean square, offset 0.5, noise weights."""
    plain = [
        Case(mode, 0.5, dtype, "same", False, (16, 96), 0.7)
        for mode in ("llama", "gemma", "none")
        for dtype in ("bfloat16", "float32", "float64")
    ]
    return plain + [replace(case, residual=True) for case in plain if case.dtype != "float32"]


def odd_one_out(selected: Iterable[Case]) -> tuple[str | None, str]:
    """(the reference that both others contradict, why); None where all agree or no two do."""
    for case in selected:
        inputs, bounds = make_inputs(case), reference_bounds(case, make_inputs(case))
        results = {
            name: load(f"references.{name}_reference{':FusedAdd' if case.residual else ''}").run(case, inputs)
            for name in REFERENCES
            if importlib.util.find_spec(name)
        }
        apart = {
            pair: why for pair in itertools.combinations(results, 2) if (why := _apart(case, bounds, results, pair))
        }
        named = [name for name in results if sum(name in pair for pair in apart) == 2]
        if apart and len(named) == 1 and len(apart) == 2:
            return named[0], f"{next(iter(apart.values()))} in {case.id}"
        if apart:
            return None, f"no majority: {apart}"
    return None, "all agree"


def _apart(case: Case, bounds: dict[str, Bound], results: dict[str, Outputs], pair: tuple[str, str]) -> str | None:
    """What separates two references, or None."""
    one, other = (results[name] for name in pair)
    for outputs in (one, other):
        if outputs.error:
            return f"raised {outputs.error}"
    for tensor in (tensor for tensor in TENSORS if tensor in bounds):
        a, b, bound = getattr(one, tensor), getattr(other, tensor), bounds[tensor]
        if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
            return f"{tensor}: dtype or shape"
        distance = np.abs(a.astype(np.longdouble) - b.astype(np.longdouble))
        ratio = float((distance / (2 * bound.tolerance)).max())
        if not ratio <= 2:
            return f"{tensor}: tolerance ratio {ratio:.3g}"
        least = tolerances.exact_rate(tensor, arrays.dtype_name(a), str(case.casting_mode), a.size)
        rate = float((arrays.bits(a) == arrays.bits(b)).mean())
        if least is not None and rate < 1 - 2 * (1 - least) and not math.isclose(rate, least):
            return f"{tensor}: exactness {rate:.3f}, at least {least:.3f}"
        if ratio > 1:
            return f"{tensor}: tolerance ratio {ratio:.3g}"
    return None
