"""What a run of a candidate gives, and what the judge may ask of a candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from references.candidates.memory import Contract
from references.candidates.repetition import Behaviour
from references.cells.cell import Case, Inputs

RESULTS = ("y", "s", "rstd", "dx", "dr", "dw")
WITHOUT_GRADIENTS = "without gradients"  # the one partial run that asks for none


@dataclass
class Outputs:
    """What a run gave: arrays as the candidate returned them, and what it did to its arguments.

    `unsupported` says which setting of the case the candidate's signature cannot express; `error` is the
    exception that it raised; `died` is how its process ended instead of answering. In these cases arrays may be
    missing. `rstd` is None where it is not exposed, `s` and `dr` without a residual.
    """

    y: np.ndarray | None = None
    rstd: np.ndarray | None = None
    dx: np.ndarray | None = None
    dw: np.ndarray | None = None
    s: np.ndarray | None = None
    dr: np.ndarray | None = None
    absent: tuple[str, ...] = ()  # of dy and ds: what did not arrive, so that zeros stand for it
    missing: tuple[str, ...] = ()  # of dx, dr, dw: what was needed in a run in part and did not come
    unsupported: str | None = None
    error: str | None = None
    died: str | None = None
    forward_only: bool = False  # NumPy differentiates nothing, so no gradient is missing
    seconds: float = 0.0  # that the candidate took
    contract: Contract | None = None  # what became of the arguments; None where the run did not end


class Implementation(Protocol):
    """A loaded candidate. `ignored` are the permissions (in_place, row_mode) that it has no argument for.

    `takes_mode` says whether it has an argument for the casting mode, `fixed_mode` which one it computes otherwise,
    `arrays` whose arrays it takes: "torch", "jax" or "numpy"; `residual` whether it runs without one, with one, or
    both ways.
    """

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def ignored(self) -> tuple[str, ...]: ...

    @property
    def takes_mode(self) -> bool: ...

    @property
    def fixed_mode(self) -> str | None: ...

    @property
    def arrays(self) -> str: ...

    @property
    def residual(self) -> tuple[bool, ...]: ...

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        """Forward and backward on `inputs`, laid out as the case says. Exceptions become `error`."""
        ...

    def behaviour(self, case: Case, inputs: Inputs) -> Behaviour:
        """What several runs show (`repetition.observe`) of a cell that `run` computes."""
        ...

    def partly(self, case: Case, inputs: Inputs) -> dict[str, Outputs]:
        """Results that are to be the same as `run`'s, by how they came about: inputs frozen, forwards in between."""
        ...

    def with_mode(self, casting_mode: str) -> Self:
        """The same candidate, said to compute this mode."""
        ...
