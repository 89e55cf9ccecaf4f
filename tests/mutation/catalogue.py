"""Every mutant, by id."""

from __future__ import annotations

from tests.mutation.faults import (
    autograd,
    checks,
    few_rows_kernels,
    gpu,
    gradients,
    kernels_backward,
    kernels_forward,
    launch,
    references,
    residual,
    residual_judge,
    second_attack,
    split_kernels,
    strangers,
)
from tests.mutation.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *kernels_forward.MUTANTS,
    *kernels_backward.MUTANTS,
    *split_kernels.MUTANTS,
    *few_rows_kernels.MUTANTS,
    *launch.MUTANTS,
    *checks.MUTANTS,
    *autograd.MUTANTS,
    *gradients.MUTANTS,
    *references.MUTANTS,
    *residual.MUTANTS,
    *residual_judge.MUTANTS,
    *strangers.MUTANTS,
    *second_attack.MUTANTS,
    *gpu.MUTANTS,
)

# One of each kind: what continuous integration runs.
SAMPLE = ("F03", "F09", "F20", "F24", "C04", "K01", "B08", "B13", "B20", "K10", "S05", "H08", "E11", "D03", "RT2")


def select(ids: list[str] | None, device: str) -> list[Mutant]:
    """The mutants with these ids, or all that the device can show. Raises KeyError for an unknown id."""
    by_id = {mutant.id: mutant for mutant in MUTANTS}
    if ids:
        return [by_id[id] for id in ids]
    return [mutant for mutant in MUTANTS if device == "cuda" or not mutant.gpu_only]
