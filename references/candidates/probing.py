"""What a candidate claims, found out by tiny runs: what it accepts, and which casting mode it computes.

Only an error refuses: a setting in which the candidate crashes, hangs or is wrong counts as claimed, so that it fails
where it is judged.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from references.arrays import dtype_name
from references.bounds.modes import contradictions
from references.bounds.tolerances import forward_bounds
from references.candidates.outputs import Implementation
from references.candidates.profile import Profile
from references.cells.cell import LAYOUT_CODES, Case, in_float32, make_inputs
from references.cells.levels import COLUMNS, COVERING_AXES, OFFSETS, RANKS, RESIDUAL_AXES, W_LAYOUTS, WEIGHTS
from references.spec import DTYPES, CastingMode

# 128 columns suit every tile; 256 elements of noise tell the modes apart.
BASE = Case("gemma", 0.0, "bfloat16", "same", False, (2, 128), 1e-6)
WIDTHS = tuple(sorted((n for n in COLUMNS if n > BASE.shape[-1]), reverse=True))
MULTIPLES = (2, 4, 8, 16, 32, 64)


SIGNATURE = ("no weight argument", "no offset argument", "no elementwise_affine argument")


@dataclass
class Probe:
    """The candidate with its mode fixed, its profile, and by setting what a probe met there.

    `mode` says which casting mode was found and how sure that is; None where the candidate takes or was given one.
    """

    implementation: Implementation
    profile: Profile
    notes: dict[str, str] = field(default_factory=dict)
    mode: str | None = None


def probe(implementation: Implementation, claims: Mapping[str, Any] = MappingProxyType({})) -> Probe:
    """Infer what `claims` (checked fields of a profile) leaves open.

    A candidate without a `casting_mode` argument gets the mode that the claims name, or the one that explains its
    16-bit Y best. Where no run succeeds everything that the signature can express is claimed.
    """
    given = Profile().with_claims({"residual": implementation.residual} | dict(claims))
    found = Probe(implementation, given)
    if not implementation.takes_mode:
        _fix_mode(found, claims)
        mode = found.implementation.fixed_mode
        if mode is not None and "casting_modes" not in claims:
            found.profile = found.profile.with_claims({"casting_modes": [mode]})
    base, errors = _first_that_runs(found)
    if base is None:
        found.notes.update({"everything": "no probe ran, so every setting is claimed"} | errors)
        for axis in ("weights", "offsets"):  # but those without an argument
            if axis not in claims:
                _infer_axis(found, _base(found, found.profile.casting_modes[0]), axis, expressible=True)
        return found
    if any(_refusal(found.implementation, case) for case in _sweep(found, base)):  # something is refused: what?
        for axis in AXES:
            if axis not in claims:
                _infer_axis(found, base, axis)
        _infer_sizes(found, base, claims)
    if "dtypes" not in claims and _computes_in_float32(found, base):
        dtypes = [dtype for dtype in found.profile.dtypes if dtype != "float64"]
        found.profile = found.profile.with_claims({"dtypes": dtypes})
        found.notes["dtypes float64"] = "computed in float32, so it is not claimed (a profile that names it demands it)"
    return found


def _base(found: Probe, mode: str = BASE.casting_mode) -> Case:
    """The plainest cell in a mode: with a residual where the candidate is not claimed to run without."""
    return replace(BASE, casting_mode=mode, residual=found.profile.residual[0])


def _first_that_runs(found: Probe) -> tuple[Case | None, dict[str, str]]:
    """A plain cell that the candidate computes, or what went wrong in each that was tried."""
    errors: dict[str, str] = {}
    for dtype, mode, weight in itertools.product(found.profile.dtypes, found.profile.casting_modes, ("same", "none")):
        case = replace(_base(found, mode), dtype=dtype, weight=weight)
        outputs = found.implementation.run(case, make_inputs(case))
        if outputs.died is not None:  # each further probe would cost another process, or the whole time limit
            return None, {"everything": f"a probe {outputs.died}, so every setting is claimed"}
        if outputs.unsupported is None and outputs.error is None:
            return case, {}
        if outputs.error is not None:
            errors.setdefault(f"dtypes {dtype}", outputs.error)
    return None, errors


def _computes_in_float32(found: Probe, base: Case) -> bool:
    """Whether Y of float64 X leaves its bounds and yet lies within those of float32 X."""
    if "float64" not in found.profile.dtypes or found.profile.dtypes == ("float64",):
        return False
    case = replace(base, dtype="float64")
    inputs = make_inputs(case)
    y = found.implementation.run(case, inputs).y
    if y is None or dtype_name(y) != case.dtype or y.shape != case.shape:
        return False
    wide, *narrow = (
        forward_bounds(i.normed, i.w, eps=case.eps, offset=case.offset, casting_mode=case.casting_mode)["y"]
        for i in (inputs, *in_float32(inputs))
    )
    with np.errstate(all="ignore"):
        fits = any((bound.ratio(y.astype(np.float32)) <= 1).all() for bound in narrow)
        return bool((wide.ratio(y) > 1).any() and fits)


AXES: dict[str, tuple] = {
    "casting_modes": tuple(map(str, CastingMode)),
    "dtypes": DTYPES,
    "offsets": OFFSETS,
    "weights": COVERING_AXES["weight"],
    "in_place": (True, False),
    "layouts": tuple(LAYOUT_CODES),
    "ranks": tuple(sorted(RANKS)),
}


def _sweep(found: Probe, base: Case) -> Iterator[Case]:
    """A few cells that hold every claimed value of every axis once."""
    profile = found.profile
    modes = profile.casting_modes if found.implementation.takes_mode else (base.casting_mode,)
    axes: dict[str, tuple] = {
        "casting_mode": modes,
        "dtype": profile.dtypes,
        "offset": profile.offsets or OFFSETS,
        "weight": profile.weights[: len(WEIGHTS)],
        "in_place": profile.in_place,
        "x_layout": profile.layouts,
        "dy_layout": profile.layouts,
        "w_layout": W_LAYOUTS,
        **(dict.fromkeys(RESIDUAL_AXES, profile.layouts) if base.residual else {}),
    }
    for k in range(max(map(len, axes.values()))):
        settings: dict[str, Any] = {name: values[k % len(values)] for name, values in axes.items()}
        yield replace(base, shape=(1, 2, 2, 41), **settings)
    for shape in ((41,), (0, 41), (2, WIDTHS[0])):
        yield replace(base, shape=shape)


def _variants(base: Case, axis: str, value: Any, dtypes: tuple[str, ...]) -> Iterable[Case]:
    """Cells that show whether a value of an axis is accepted: each one must be. `dtypes` are those that X may have."""
    shapes = {1: (128,), 2: (2, 128), 3: (2, 2, 128), 4: (1, 2, 2, 128)}
    match axis:
        case "ranks":
            return [replace(base, shape=shapes[value])]
        case "layouts":
            cube = replace(base, shape=shapes[3])
            tensors = ("x_layout", "dy_layout", *RESIDUAL_AXES) if base.residual else ("x_layout", "dy_layout")
            laid = [replace(cube, **{tensor: value}) for tensor in tensors]
            return laid + [replace(cube, w_layout=value)] * (value in W_LAYOUTS)
        case "weights":  # of another dtype than X, where it names one
            return [replace(base, weight=value, dtype=next((d for d in dtypes if d != value), base.dtype))]
        case "in_place":
            return [replace(base, in_place=value)]
    return [replace(base, **{axis.removesuffix("s"): value})]


def _infer_axis(found: Probe, base: Case, axis: str, expressible: bool = False) -> None:
    """Keep the values of an axis that are accepted, or those that the signature can express."""
    refusal = _inexpressible if expressible else _refusal
    kept = []
    for value in AXES[axis]:
        refusals = (refusal(found.implementation, case) for case in _variants(base, axis, value, found.profile.dtypes))
        reason = next(filter(None, refusals), None)
        if reason is None:
            kept.append(value)
        else:
            found.notes[f"{axis} {value}"] = reason
    if kept and len(kept) < len(AXES[axis]):
        found.profile = found.profile.with_claims({axis: kept})


def _infer_sizes(found: Probe, base: Case, claims: Mapping[str, Any]) -> None:
    def refusal(rows: int, columns: int) -> str | None:
        return _refusal(found.implementation, replace(base, shape=(rows, columns)))

    sizes: dict[str, Any] = {}
    if "min_rows" not in claims and (reason := refusal(0, 128)):
        sizes["min_rows"] = 1
        found.notes["rows 0"] = reason
    if "columns_multiple_of" not in claims and (reason := refusal(2, 41)):
        sizes["columns_multiple_of"] = next((n for n in MULTIPLES if refusal(2, 41 * n) is None), 128)
        found.notes["columns 41"] = reason
    multiple = sizes.get("columns_multiple_of", found.profile.columns_multiple_of)
    for width in WIDTHS if "max_columns" not in claims else ():
        reason = refusal(2, width - width % multiple)
        if reason is None:
            break
        sizes["max_columns"] = width - 1
        found.notes[f"columns {width}"] = reason
    found.profile = found.profile.with_claims(sizes)


def _fix_mode(found: Probe, claims: Mapping[str, Any]) -> None:
    """Settle which mode a candidate without such an argument computes: the one that explains most of its Y."""
    named = claims.get("casting_modes", ())
    if found.implementation.fixed_mode is None and len(named) == 1:
        found.implementation = found.implementation.with_mode(named[0])
    if found.implementation.fixed_mode is not None:
        return
    trial = found.implementation.with_mode(BASE.casting_mode)
    modes = named or tuple(map(str, CastingMode))
    wrong: Counter[str] = Counter()
    elements = 0
    for dtype in ("bfloat16", "float16"):
        counts = _contradictions(found, trial, dtype) if dtype in found.profile.dtypes else {}
        wrong.update(counts)
        elements += math.prod(BASE.shape) * bool(counts)
    # In float32 and float64 all modes are the same.
    best = min(modes, key=lambda mode: (wrong[mode], mode != BASE.casting_mode))
    found.implementation = trial.with_mode(best)
    found.mode = _how_sure(best, wrong, elements)


def _contradictions(found: Probe, trial: Implementation, dtype: str) -> dict[str, int]:
    """By mode, how many elements of Y on a plain cell it does not explain: with a weight, else without."""
    for weight in ("same", "none"):
        case = replace(_base(found), dtype=dtype, weight=weight)
        inputs = make_inputs(case)
        outputs = trial.run(case, inputs)
        if outputs.died is not None:
            found.notes[f"dtypes {dtype}"] = f"the probe for its mode {outputs.died}"
            return {}
        if outputs.y is not None:
            return contradictions(case, inputs, outputs.y, found.profile.arithmetic)
    return {}


def _how_sure(best: str, wrong: Mapping[str, int], elements: int) -> str:
    """The mode that was found, in words."""
    if not elements:
        return f"{best}: no 16-bit Y tells the modes apart"
    if wrong[best] == 0:
        others = min(wrong.get(mode, 0) for mode in map(str, CastingMode) if mode != best)
        sure = f"at least {others} contradict any other mode" if others else "other modes do too"
        return f"{best}: its rounding points explain all of {elements} 16-bit elements, {sure}"
    return f"nearest to {best}, which does not explain {wrong[best]} of {elements} 16-bit elements"


def _inexpressible(implementation: Implementation, case: Case) -> str | None:
    """What the candidate's signature lacks for a cell."""
    reason = implementation.run(case, make_inputs(case)).unsupported
    return reason if reason in SIGNATURE else None


def _refusal(implementation: Implementation, case: Case) -> str | None:
    """Why the candidate does not compute a cell; None where it tries."""
    outputs = implementation.run(case, make_inputs(case))
    return outputs.unsupported or outputs.error
