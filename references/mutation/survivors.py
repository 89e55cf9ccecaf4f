"""Automatic mutants that live, each with the reason. A line that changes, or one that is killed, is an error."""

from __future__ import annotations

from typing import NamedTuple


class Survivor(NamedTuple):
    """line: as the mutant has it; reason: why nothing can tell it from the original on a CPU."""

    line: str
    reason: str


SURVIVORS: dict[str, Survivor] = {}
