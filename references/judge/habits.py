"""Known habits: wrong gradients that many right-looking programs have, told by what they are and not by how they look.

Each is emulated; where nearly all elements of dX have the emulation's bits, and not those of the reference, it is that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from references import numpy_reference
from references.arrays import bits
from references.candidates.outputs import Outputs
from references.cells.cell import Case, Inputs

EXPLAINED = 0.95  # of the elements of dX; in the other sums of float32 a few round the other way
VANISHED = "autograd computes RSTD³, which is 0 in float32 for X of 1e13 and more, so that dX lacks its second term"
PAGE = "docs/judge/peers.md#what-stands-out"


@np.errstate(all="ignore")
def habit(case: Case, inputs: Inputs, outputs: Outputs) -> tuple[str, tuple[str, ...]] | None:
    """The habit that explains a cell's wrong dX, and the tensors that it explains; None where none is known."""
    words = _of_dx(case, inputs, outputs)
    return None if words is None else (words, ("dx", "dw"))


def _of_dx(case: Case, inputs: Inputs, outputs: Outputs) -> str | None:
    dx = outputs.dx
    if case.dtype == "float64" or dx is None or not dx.size:
        return None
    if dx.dtype != inputs.x.dtype or dx.shape != inputs.x.shape:
        return None
    if case.data == "huge" and case.dtype != "float16":
        return f"{VANISHED}: {PAGE}" if _without_projection(case, inputs, dx) else None
    if case.dtype == "float32":
        return None
    about: dict[str, Any] = {"eps": case.eps, "offset": case.offset, "casting_mode": str(case.casting_mode)}
    right, _ = numpy_reference.backward(inputs.dy, inputs.x, inputs.w, **about)
    shares = {words: float((bits(dx) == bits(emulated)).mean()) for words, emulated in _emulations(case, inputs)}
    best = max(shares, key=lambda words: shares[words])
    usual = float((bits(dx) == bits(right)).mean())
    return f"{best}: {PAGE}" if shares[best] >= EXPLAINED > usual else None


def _emulations(case: Case, inputs: Inputs) -> Iterator[tuple[str, np.ndarray]]:
    """In words what is done, and the dX that it gives."""
    x, dy, narrow = inputs.x.astype(np.float32), inputs.dy.astype(np.float32), inputs.x.dtype
    w = np.float32(1) if inputs.w is None else inputs.w.astype(np.float32) + np.float32(case.offset)
    rstd = 1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(case.eps))
    rounded = (dy * w).astype(narrow).astype(np.float32)

    def projection(m: np.ndarray) -> np.ndarray:
        return x * rstd**3 * (m * x).mean(-1, keepdims=True)

    def halves(m: np.ndarray) -> np.ndarray:
        first, second = (part.astype(narrow).astype(np.float32) for part in (rstd * m, -projection(m)))
        return (first + second).astype(narrow)

    yield (
        "autograd rounds dY·W to X's dtype before it is summed, as in `w * x_hat.to(x.dtype)` of transformers' "
        "LlamaRMSNorm",
        (rstd * rounded - projection(rounded)).astype(narrow),
    )
    yield (
        "X is converted twice (`x.float()` in two places), so that autograd adds two gradients, each rounded to X's "
        "dtype; convert it once",
        halves(dy * w),
    )
    yield "X is converted twice, and autograd rounds dY·W to X's dtype before it is summed", halves(rounded)


def _without_projection(case: Case, inputs: Inputs, dx: np.ndarray) -> bool:
    """Whether dX is dY·W·RSTD alone, to the precision of its dtype."""
    x, dy = inputs.x.astype(np.float64), inputs.dy.astype(np.float64)
    w = 1.0 if inputs.w is None else inputs.w.astype(np.float64) + case.offset
    first = dy * w / np.sqrt(np.square(x).mean(-1, keepdims=True) + case.eps)
    close = np.abs(dx.astype(np.float64) - first) <= 2.0**-6 * np.abs(first)
    return bool(close.mean() >= EXPLAINED)
