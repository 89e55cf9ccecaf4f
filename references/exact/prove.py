"""What a program computes, proven in the exact world: its casting mode, or where it rounds and what is out of place.

proof = prove(Program("mine", "torch", lambda x, w, s: mine(x, w, s.eps)))
proof.mode          "llama" where Y, dX and dW (and RSTD, if shown) are that mode's in every element, else None
proof.forward_mode  the mode whose Y it has, whatever its gradients are
proof.formula       the formula that explains Y: rounding points, order, eps …; None where none was found
proof.missed        a bound on the probability that a program with another formula passed
proof.refusal       "not algebraic: …", or what the program raised; then nothing else is known
print(proof)        the same in sentences
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from references.exact.draw import draw
from references.exact.field import PRIMES, SCALES, Field, NotAlgebraic
from references.exact.probability import missed
from references.exact.program import Program, Result, differing, run
from references.exact.search import explain_backward, explain_forward
from references.exact.table import Formula, Problem, evaluate, formula, rounded_points
from references.spec import CastingMode

SHAPES = tuple((n_rows, n_cols) for n_cols in (2, 3, 5, 7, 8, 16, 17, 33, 64, 100) for n_rows in (1, 2, 3, 5))
SEARCH_ROWS = 24  # half of them root something positive, whatever the formula
EPS, OFFSET = 0.3, -0.7  # exact in no format: where one is rounded, left out or doubled, it shows
USUAL_OFFSETS = (0.0, 1.0)  # of a program that takes no other, or none at all


@dataclass(frozen=True)
class Proof:
    """What was found; see the module's docstring. `differs` counts unequal elements by shape and result."""

    name: str
    dtype: str
    shapes: int
    mode: str | None = None
    forward_mode: str | None = None
    formula: Formula | None = None
    gradients: dict[str, Formula] | None = None  # what explains dx and dw
    weighted: bool = True
    residual: bool = False
    eps: float | None = None
    offset: float | None = None
    missed: float = 1.0  # a formula that differs at every shape; `missed_once`: in one element at one shape alone
    missed_once: float = 1.0
    differs: str | None = None
    refusal: str | None = None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    @property
    def brief(self) -> str:
        """For people, in one line without name and probability."""
        return "; ".join(line.strip() for line in replace(self, name="").lines(sure=""))

    def lines(self, sure: str | None = None) -> list[str]:
        """For people. `sure` replaces what is said of the probability."""
        about = f"{self.name}, {self.dtype}" if self.name else self.dtype
        if self.refusal is not None:
            return [f"{about}: {self.refusal}"]
        if sure is None:
            sure = (
                f"; another formula is missed with probability below {self.missed:.0e}"
                f" ({self.missed_once:.0e} if it differs in one element at one shape alone)"
            )
        if self.mode is not None:
            what = self.mode if self.rounds else "the formula, in which the modes are one,"
            if self.rounds and self.mode == "llama" and not self.weighted:
                what = "llama and gemma, which are one without a weight,"
            if self.offset not in (OFFSET, 0.0):
                what += f" with offset {self.offset:g}"
            return [f"{about}: equals {what} exactly at {self.shapes} shapes{sure}"]
        if self.formula is None:
            return [f"{about}: equals no mode, and no set of rounding points explains it"]
        if self.differs is not None:
            return [f"{about}: Y is {self.described} at one shape; then {self.differs}"]
        lines = [f"{about}: Y is {self.described} at {self.shapes} shapes{sure}"]
        labels = {"dx": "dX", **({"dr": "dR"} if self.residual else {}), **({"dw": "dW"} if self.weighted else {})}
        for name, label in labels.items():
            found = (self.gradients or {}).get(name)
            if found is None:
                lines.append(f"  {label}: no formula that was tried explains it")
            else:
                said = (word.replace("dX", "dR") if name == "dr" else word for word in found.named())
                words = [word.removeprefix(f"{label} ") for word in said if word.startswith(label)]
                lines.append(f"  {label}: {', '.join(words) if words else 'as the table has it for this Y'}")
        return lines

    @property
    def rounds(self) -> bool:
        """Whether X's dtype is narrower than the compute dtype, so that the modes differ."""
        return self.dtype in SCALES

    @property
    def described(self) -> str:
        """The formula of Y in words."""
        assert self.formula is not None
        if self.forward_mode is not None:
            return f"{self.forward_mode}'s exactly" if self.rounds else "the formula's exactly"
        points = ", ".join(rounded_points(self.formula.points)) or "nothing on the way"
        words = f"no mode's; it rounds {points}" if self.rounds else "not the formula's"
        return "; ".join((words, *(w for w in self.formula.named() if not w.startswith(("dX", "dW")))))


def prove(
    program: Program,
    *,
    dtype: str = "bfloat16",
    w_dtype: str | None = "same",
    casting_mode: str = "llama",
    shapes: Sequence[tuple[int, int]] = SHAPES,
    seed: int = 0,
) -> Proof:
    """Run a program in the exact world and say what it computes.

    Args:
        program: what is proven.
        dtype: of x and dy. In float32 and float64 nothing is rounded, so that the three modes are one there.
        w_dtype: "same", a dtype, or None for no weight.
        casting_mode: what a program that takes one is asked for.
        shapes: at which the equality is asked, each with a draw, a prime and a rounding function of its own.
        seed: of the draws.
    """
    w_dtype = dtype if w_dtype == "same" else w_dtype
    w_dtype = w_dtype if program.takes_weight else None
    if program.n_cols is not None:
        shapes = sorted({(n_rows, program.n_cols) for n_rows, _ in shapes})
    proof = Proof(program.name, dtype, len(shapes), weighted=w_dtype is not None, residual=program.residual)
    try:
        found = _search(program, dtype, w_dtype, casting_mode, shapes, seed)
        if found is None:
            return proof
        problem, forward = found
        field = _field(seed, dtype)
        about: dict[str, Any] = {"eps": problem.eps, "offset": problem.offset, "residual": program.residual}
        small = draw(field, (3, problem.x.shape[1]), dtype, w_dtype, formulas=[forward], **about)
        gradients = explain_backward(field, small, forward, run(field, program, small, casting_mode))
        mode = next((str(mode) for mode in CastingMode if formula(mode) == forward), None)
        explained = all(found == forward for found in gradients.values())
        complete = set(gradients) == {"dx"} | ({"dr"} if program.residual else set()) | ({"dw"} if w_dtype else set())
        differs = _confirm(program, dtype, w_dtype, casting_mode, shapes, seed, problem, forward, gradients)
    except NotAlgebraic as error:
        return replace(proof, refusal=str(error))
    except Exception as error:  # a stranger's program may raise anything
        return replace(proof, refusal=f"{type(error).__name__}: {' '.join(str(error).split())}")
    return replace(
        proof,
        mode=mode if complete and explained and differs is None else None,
        forward_mode=mode,
        formula=forward,
        gradients=gradients,
        eps=problem.eps,
        offset=problem.offset,
        missed=missed(field, dtype, len(shapes)),
        missed_once=missed(field, dtype),
        differs=differs,
    )


def _field(seed: int, dtype: str) -> Field:
    return Field(PRIMES[seed % len(PRIMES)], seed, splits=dtype == "float64")


def _search(
    program: Program,
    dtype: str,
    w_dtype: str | None,
    casting_mode: str,
    shapes: Sequence[tuple[int, int]],
    seed: int,
) -> tuple[Problem, Formula] | None:
    """The formula that explains Y, with the problem whose eps and offset it has."""
    field = _field(seed, dtype)
    n_cols = program.n_cols or 12
    refused: Exception | None = None
    for eps in program.eps or (EPS,):
        for offset in program.offsets or (OFFSET, *USUAL_OFFSETS):
            about: dict[str, Any] = {"eps": eps, "offset": offset, "seed": seed, "residual": program.residual}
            problem = draw(field, (SEARCH_ROWS, n_cols), dtype, w_dtype, formulas=[], **about)
            try:
                results = run(field, program, problem, casting_mode)
            except NotAlgebraic:
                raise
            except Exception as error:  # perhaps of this offset, or of this eps
                refused = refused or error
                continue
            found = explain_forward(field, problem, results["y"])
            if found is not None:
                return problem, found
            if program.offsets is None:
                break  # it takes any: another one would tell nothing else
    if refused is not None:
        raise refused
    return None


def _confirm(
    program: Program,
    dtype: str,
    w_dtype: str | None,
    casting_mode: str,
    shapes: Sequence[tuple[int, int]],
    seed: int,
    problem: Problem,
    forward: Formula,
    gradients: dict[str, Formula],
) -> str | None:
    """The first shape at which the program is not what was found, in words, or None."""
    for number, shape in enumerate(shapes, seed + 1):
        field = _field(number, dtype)
        about: dict[str, Any] = {"eps": problem.eps, "offset": problem.offset, "residual": program.residual}
        trial = draw(field, shape, dtype, w_dtype, formulas=[forward], seed=number, **about)
        got: dict[str, Result] = run(field, program, trial, casting_mode)
        got = {name: result for name, result in got.items() if name in ("y", "s", "rstd") or name in gradients}
        wanted = evaluate(field, trial, forward)
        wanted |= {name: evaluate(field, trial, found)[name] for name, found in gradients.items()}
        wrong = differing(field, trial, wanted, got)
        if wrong:
            what = ", ".join(f"{count} elements of {name}" for name, count in wrong.items())
            return f"at shape {shape[0]} × {shape[1]} {what} are others"
    return None
