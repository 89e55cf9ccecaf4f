"""A loaded candidate as a program of the exact world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from references.candidates.kinds import Candidate, ForwardBackward, Function, settings
from references.candidates.signatures import Signature
from references.cells.cell import Case
from references.exact.program import Program, Settings
from references.exact.prove import SHAPES, USUAL_OFFSETS, Proof
from references.exact.prove import prove as prove_program

USUAL_EPS = (1e-6, 1e-5, 1e-8, 2.0**-23, 0.0)  # of a candidate that has no argument for it


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

    residual = candidate.residual == (True,)
    inputs = ("x", "r", "w") if residual else ("x", "w")
    arriving = ("dy", "ds") if residual else ("dy",)

    def cell(given: Mapping[str, Any], s: Settings) -> Case:
        offset, weight = s.offset if "offset" in candidate.meanings else 0.0, "none" if given["w"] is None else "same"
        shape = tuple(given["x"].shape)
        return Case(s.casting_mode, offset, "float32", weight, False, shape, s.eps, residual=residual)

    def forward(*called: Any) -> Any:
        *tensors, s = called
        given = dict(zip(inputs, tensors, strict=True))
        if isinstance(candidate, Function):
            return candidate.call(cell(given, s), given)
        args, keywords = signature.bind(settings(cell(given, s)) | given)
        return candidate.target.forward(*args, **keywords)

    def backward(*called: Any) -> Any:
        *tensors, s = called
        given = dict(zip((*arriving, *inputs, "rstd"), tensors, strict=True))
        args, keywords = Signature(candidate.target.backward).bind(settings(cell(given, s)) | given)
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
        residual=residual,
    )
