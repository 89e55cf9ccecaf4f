"""Which casting mode a 16-bit Y really has: the one whose rounding points explain every element."""

from __future__ import annotations

import numpy as np

from references.arrays import dtype_name
from references.bounds import tolerances
from references.bounds.rounding import SEQUENTIAL, Arithmetic
from references.cells.cell import Case, Inputs
from references.spec import CastingMode

TELLING = 8  # elements that contradict each of the other modes: fewer could be errors of another kind


def computed_mode(case: Case, inputs: Inputs, y: np.ndarray, arithmetic: Arithmetic = SEQUENTIAL) -> str | None:
    """The mode that Y's bits show, whatever the case asks for.

    Args:
        case: its settings; the casting mode is ignored.
        inputs: what Y was computed from.
        y: the candidate's Y.
        arithmetic: what is known of the candidate's.

    Returns:
        "llama", "gemma" or "none"; None where dtype or shape are not the case's, in float32 and float64, where the
        modes agree, and where the bits fit several modes or none.
    """
    counts = contradictions(case, inputs, y, arithmetic)
    fitting = [mode for mode, count in counts.items() if count == 0]
    others = [count for count in counts.values() if count]
    return fitting[0] if len(fitting) == 1 and min(others) >= TELLING else None


def contradictions(case: Case, inputs: Inputs, y: np.ndarray, arithmetic: Arithmetic = SEQUENTIAL) -> dict[str, int]:
    """By mode, how many elements of Y its rounding points do not explain; empty where Y cannot tell (as above)."""
    if case.dtype not in ("float16", "bfloat16") or dtype_name(y) != case.dtype or y.shape != case.shape:
        return {}
    counts = {}
    for mode in CastingMode:
        bound = tolerances.forward_bounds(
            inputs.normed,
            inputs.w,
            eps=case.eps,
            offset=case.offset,
            casting_mode=mode,
            structured=case.structured,
            arithmetic=arithmetic,
        )["y"]
        counts[str(mode)] = int((bound.misrounded(y) | (bound.ratio(y) > 1)).sum())
    return counts
