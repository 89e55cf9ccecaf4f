"""A loaded candidate as a program of the exact world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from references.candidates.loading import Candidate, ForwardBackward, Function, settings
from references.candidates.signatures import Signature
from references.cells.cell import Case
from references.exact.program import Program, Settings
from references.exact.prove import SHAPES, Proof
from references.exact.prove import prove as prove_program

# What a candidate may use that has no argument for it.
USUAL_EPS = (1e-6, 1e-5, 1e-8, 2.0**-23, 0.0)
USUAL_OFFSETS = (0.0, 1.0)


def prove(candidate: Candidate, case: Case, shapes: Sequence[tuple[int, int]] = SHAPES) -> Proof:
    """What the candidate computes in the case's dtype, weight's dtype and, if it takes one, casting mode.

    Kernels run through Triton's interpreter, chosen before (`interpreter.install`); arrays lie on the CPU.
    """
    w_dtype = case.w_dtype if "w" in candidate.meanings else None
    return prove_program(
        program(candidate), dtype=case.dtype, w_dtype=w_dtype, casting_mode=str(case.casting_mode), shapes=shapes
    )


def program(candidate: Candidate) -> Program:
    """The candidate's calls, by the meaning of its arguments."""
    signature = candidate.signature

    def cell(x: Any, w: Any, s: Settings) -> Case:
        offset = s.offset if "offset" in candidate.meanings else 0.0
        return Case(s.casting_mode, offset, "float32", "none" if w is None else "same", False, tuple(x.shape), s.eps)

    def forward(x: Any, w: Any, s: Settings) -> Any:
        if isinstance(candidate, Function):
            return candidate.call(cell(x, w, s), {"x": x, "w": w})
        args, keywords = signature.bind(settings(cell(x, w, s)) | {"x": x, "w": w})
        return candidate.target.forward(*args, **keywords)

    def backward(dy: Any, x: Any, w: Any, rstd: Any, s: Settings) -> Any:
        values = settings(cell(x, w, s)) | {"x": x, "w": w, "dy": dy, "rstd": rstd}
        args, keywords = Signature(candidate.target.backward).bind(values)
        return candidate.target.backward(*args, **keywords)

    return Program(
        candidate.name,
        candidate.arrays,
        forward,
        backward if isinstance(candidate, ForwardBackward) else None,
        takes_mode=candidate.takes_mode,
        takes_weight="w" in candidate.meanings,
        eps=None if "eps" in candidate.meanings else USUAL_EPS,
        offsets=None if "offset" in candidate.meanings else USUAL_OFFSETS,
    )
