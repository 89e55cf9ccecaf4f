"""The judge: what is right, and by how much a kernel may be wrong.

    from references import load, check
    verdict = check(load("mine:my_rms_norm"), case)

These names are loaded when they are asked for: the import itself needs neither torch nor jax, nor NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from references.candidates.loading import load
    from references.candidates.profile import Profile
    from references.cells.cell import Case
    from references.cells.levels import LEVELS
    from references.judge.verdict import Verdict, check, check_all

__all__ = ["LEVELS", "Case", "Profile", "Verdict", "check", "check_all", "load"]

_HOMES = {
    "LEVELS": "references.cells.levels",
    "Case": "references.cells.cell",
    "Profile": "references.candidates.profile",
    "Verdict": "references.judge.verdict",
    "check": "references.judge.verdict",
    "check_all": "references.judge.verdict",
    "load": "references.candidates.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
