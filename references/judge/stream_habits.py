"""Known faults of a fused residual, told by what they are: each is emulated, and nearly all elements are its.

What is wrong in one rounding is compared by bits, in 16 bits alone; everything else by size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from references import numpy_reference
from references.arrays import bits
from references.candidates.outputs import Outputs
from references.cells.cell import Case, Inputs
from references.spec import FLOATS

EXPLAINED = 0.95  # of the elements; the others lie where roundings or cancellation hide what was done
ALIKE = 8  # unit roundoffs between two numbers that are one but for their roundings
EVERYTHING = ("y", "s", "dx", "dr", "dw")  # what follows from a wrong stream

Habit = tuple[str, tuple[str, ...]]  # words, and the tensors whose wrong numbers it explains


@np.errstate(all="ignore")
def habit(case: Case, inputs: Inputs, outputs: Outputs, right: Mapping[str, np.ndarray | None]) -> Habit | None:
    """The first fault that explains a wrong tensor of a cell with a residual; None where none is known.

    `right` are the reference's results.
    """
    for tensor, words, explained, emulated in _emulations(case, inputs):
        got, wanted = getattr(outputs, tensor), right[tensor]
        if emulated is None or got is None or wanted is None or not got.size:
            continue
        by_bits, alike = words in ROUNDINGS, (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        if alike and _share(got, emulated, by_bits) >= EXPLAINED > _share(got, wanted, by_bits):
            return words, explained
    return None


AFTER_ROUNDING = (
    "dS is added after the norm's dX was rounded, as autograd does where the sum is converted before the norm"
)
UNROUNDED = "Y is the norm of the sum before its rounding, and not of S"
ROUNDINGS = (AFTER_ROUNDING, UNROUNDED)


def _emulations(case: Case, inputs: Inputs) -> Iterator[tuple[str, str, tuple[str, ...], np.ndarray | None]]:
    """A tensor, in words what is done, the tensors that this explains, and what the tensor then is."""
    x, r, ds, s = inputs.x, inputs.r, inputs.ds, inputs.normed
    about: dict[str, Any] = {"eps": case.eps, "offset": case.offset, "casting_mode": str(case.casting_mode)}
    assert r is not None and ds is not None
    y_of_x, _ = numpy_reference.forward(x, inputs.w, **about)
    d_norm, _ = numpy_reference.backward(inputs.dy, s, inputs.w, **about)
    yield "y", "the residual is added after the norm", EVERYTHING, numpy_reference.add(y_of_x, r)
    yield "y", "Y is the norm of X: the residual is left out", EVERYTHING, y_of_x
    yield "y", UNROUNDED, EVERYTHING, _of_the_unrounded_sum(case, inputs)
    yield "s", "S is X: the residual is left out", ("s",), x
    yield "s", "S is R: X is left out", ("s",), r
    for tensor, title, explained in (("dx", "dX", ("dx", "dr")), ("dr", "dR", ("dr",))):
        yield tensor, "dS is ignored", explained, d_norm
        yield tensor, AFTER_ROUNDING, explained, numpy_reference.add(d_norm, ds)
        yield tensor, f"{title} is dS alone: the norm's gradient is left out", explained, ds
        yield tensor, f"{title} is zero", explained, np.zeros_like(x)
    if inputs.w is not None:
        _, rstd = numpy_reference.forward(s, inputs.w, **about)
        terms = inputs.dy.astype(rstd.dtype) * x.astype(rstd.dtype) * rstd[..., None]
        dw = terms.reshape(-1, x.shape[-1]).sum(0).astype(inputs.w.dtype)
        yield "dw", "dW is of X, and not of S", ("dw",), dw


def _of_the_unrounded_sum(case: Case, inputs: Inputs) -> np.ndarray | None:
    """Y in llama and gemma of 16-bit X, as if S were never rounded."""
    if case.dtype not in ("float16", "bfloat16") or case.casting_mode == "none":
        return None
    assert inputs.r is not None
    s = inputs.x.astype(np.float32) + inputs.r.astype(np.float32)
    x_hat, _ = numpy_reference.forward(s, None, eps=case.eps, offset=0.0, casting_mode="gemma")
    if case.casting_mode == "llama":
        x_hat = x_hat.astype(inputs.x.dtype).astype(np.float32)
    w = 1 if inputs.w is None else inputs.w.astype(np.float32) + np.float32(case.offset)
    return (x_hat * w).astype(inputs.x.dtype)


def _share(got: np.ndarray, other: np.ndarray, by_bits: bool) -> float:
    """Of the elements, those that are alike."""
    if by_bits:
        return float((bits(got) == bits(other)).mean())
    a, b = got.astype(np.longdouble), other.astype(np.longdouble)
    unit = ALIKE * FLOATS[got.dtype.name].unit_roundoff
    return float((np.abs(a - b) <= unit * np.maximum(np.abs(a), np.abs(b))).mean())
