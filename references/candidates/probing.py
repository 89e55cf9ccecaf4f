"""What a candidate claims, found out by tiny runs: what it accepts, and which casting mode it computes.

Only an error refuses: a setting in which the candidate crashes, hangs or is wrong counts as claimed, so that it fails
where it is judged.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from references.bounds.modes import computed_mode
from references.candidates.loading import Implementation
from references.candidates.profile import Profile
from references.cells.cell import LAYOUT_CODES, Case, make_inputs
from references.cells.levels import COLUMNS, OFFSETS, RANKS, W_LAYOUTS, WEIGHTS
from references.spec import DTYPES, CastingMode

# 128 columns suit every tile; 256 elements of noise tell the modes apart.
BASE = Case("gemma", 0.0, "bfloat16", "same", False, (2, 128), 1e-6)
WIDTHS = tuple(sorted((n for n in COLUMNS if n > BASE.shape[-1]), reverse=True))
MULTIPLES = (2, 4, 8, 16, 32, 64)


@dataclass
class Probe:
    """The candidate with its mode fixed, its profile, and by setting why that is not claimed."""

    implementation: Implementation
    profile: Profile
    notes: dict[str, str] = field(default_factory=dict)


def probe(implementation: Implementation, claims: Mapping[str, Any] = MappingProxyType({})) -> Probe:
    """Infer what `claims` (checked fields of a profile) leaves open.

    A candidate without a `casting_mode` argument gets the mode that the claims name, or the one that its 16-bit Y
    shows. Where no run succeeds everything is claimed.
    """
    given = Profile().with_claims(claims)
    found = Probe(implementation, given)
    if not implementation.takes_mode:
        _fix_mode(found, claims)
    modes = given.casting_modes if found.implementation.takes_mode else [found.implementation.fixed_mode]
    bases = (
        replace(BASE, casting_mode=mode, dtype=dtype, weight=weight)
        for dtype, mode, weight in itertools.product(given.dtypes, filter(None, modes), ("same", "none"))
    )
    base = None
    for case in bases:
        outputs = found.implementation.run(case, make_inputs(case))
        if outputs.died is not None:  # each further probe would cost another process, or the whole time limit
            found.notes["everything"] = f"a probe {outputs.died}, so every setting is claimed"
            return found
        if outputs.unsupported is None and outputs.error is None:
            base = case
            break
    if base is None:
        found.notes["everything"] = "no probe ran, so every setting is claimed"
        return found
    if any(_refusal(found.implementation, case) for case in _sweep(found, base)):  # something is refused: what?
        for axis in AXES:
            if axis not in claims:
                _infer_axis(found, base, axis)
        _infer_sizes(found, base, claims)
    return found


AXES: dict[str, tuple] = {
    "casting_modes": tuple(map(str, CastingMode)),
    "dtypes": DTYPES,
    "offsets": OFFSETS,
    "weights": WEIGHTS,
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
    }
    for k in range(max(map(len, axes.values()))):
        settings: dict[str, Any] = {name: values[k % len(values)] for name, values in axes.items()}
        yield replace(base, shape=(1, 2, 2, 41), **settings)
    for shape in ((41,), (0, 41), (2, WIDTHS[0])):
        yield replace(base, shape=shape)


def _variants(base: Case, axis: str, value: Any) -> Iterable[Case]:
    """Cells that show whether a value of an axis is accepted: each one must be."""
    shapes = {1: (128,), 2: (2, 128), 3: (2, 2, 128), 4: (1, 2, 2, 128)}
    match axis:
        case "ranks":
            return [replace(base, shape=shapes[value])]
        case "layouts":
            cube = replace(base, shape=shapes[3])
            laid = [replace(cube, x_layout=value), replace(cube, dy_layout=value)]
            return laid + [replace(cube, w_layout=value)] * (value in W_LAYOUTS)
        case "weights":
            return [replace(base, weight=value)]
        case "in_place":
            return [replace(base, in_place=value)]
    return [replace(base, **{axis.removesuffix("s"): value})]


def _infer_axis(found: Probe, base: Case, axis: str) -> None:
    kept = []
    for value in AXES[axis]:
        refusals = (_refusal(found.implementation, case) for case in _variants(base, axis, value))
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
    """Settle which mode a candidate without such an argument computes."""
    named = claims.get("casting_modes", ())
    if found.implementation.fixed_mode is None and len(named) == 1:
        found.implementation = found.implementation.with_mode(named[0])
    if found.implementation.fixed_mode is not None:
        return
    trial = found.implementation.with_mode(BASE.casting_mode)
    for dtype in ("bfloat16", "float16"):
        case = replace(BASE, dtype=dtype)
        inputs = make_inputs(case)
        outputs = trial.run(case, inputs)
        if outputs.died is not None:
            found.notes["casting_modes"] = f"the probe for its mode {outputs.died}: name one"
            return
        if outputs.y is None:
            continue
        mode = computed_mode(case, inputs, outputs.y)
        if mode is None:
            found.notes["casting_modes"] = f"no mode's rounding points explain its {dtype} Y: name one"
        else:
            found.implementation = found.implementation.with_mode(mode)
        return
    # In float32 and float64 all modes are the same.
    if any(_refusal(trial, replace(BASE, dtype=dtype)) is None for dtype in ("float32", "float64")):
        found.implementation = trial


def _refusal(implementation: Implementation, case: Case) -> str | None:
    """Why the candidate does not compute a cell; None where it tries."""
    outputs = implementation.run(case, make_inputs(case))
    return outputs.unsupported or outputs.error
