"""Every mutant, by id."""

from __future__ import annotations

from references.mutation import (
    autograd_faults,
    backward_faults,
    check_faults,
    few_rows_faults,
    forward_faults,
    gpu_faults,
    launch_faults,
    reference_faults,
    split_faults,
)
from references.mutation.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *forward_faults.MUTANTS,
    *backward_faults.MUTANTS,
    *split_faults.MUTANTS,
    *few_rows_faults.MUTANTS,
    *launch_faults.MUTANTS,
    *check_faults.MUTANTS,
    *autograd_faults.MUTANTS,
    *reference_faults.MUTANTS,
    *gpu_faults.MUTANTS,
)

# One of each kind: what continuous integration runs.
SAMPLE = ("F03", "F09", "F20", "F24", "C04", "K01", "B08", "B13", "B20", "K10", "S05", "H08", "E11", "D05", "RT2")


def select(ids: list[str] | None, device: str) -> list[Mutant]:
    """The mutants with these ids, or all that the device can show. Raises KeyError for an unknown id."""
    by_id = {mutant.id: mutant for mutant in MUTANTS}
    if ids:
        return [by_id[id] for id in ids]
    return [mutant for mutant in MUTANTS if device == "cuda" or not mutant.gpu_only]
