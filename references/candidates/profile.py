"""What a candidate claims: the settings in which it is judged, and what is known of its arithmetic.

A profile is a TOML file, or a Python file with a dict called `profile`, of the fields of `Profile`. What the file does
not mention is inferred (`probing.py`). What is not claimed has to be refused with an error, never computed wrongly.
"""

from __future__ import annotations

import math
import runpy
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from references.bounds.rounding import (
    SEQUENTIAL,
    Arithmetic,
    pairwise_depth,
    partials_depth,
    sequential_depth,
    tree_depth,
)
from references.cells.cell import LAYOUT_CODES, Case
from references.cells.levels import (
    COLUMNS,
    COVERING_AXES,
    OFFSETS,
    RANKS,
    RESIDUAL_AXES,
    ROWS,
    W_LAYOUTS,
    WEIGHTS,
    draw,
)
from references.spec import DTYPES, CastingMode

ORDERS: dict[str, Callable[[int], int]] = {"any": sequential_depth, "pairwise": pairwise_depth, "tree": tree_depth}


class ProfileError(ValueError):
    """The profile cannot be read, or names what does not exist; the message is one line."""


@dataclass(frozen=True)
class Profile:
    """What is claimed; by default everything but a residual, and nothing is known of the arithmetic."""

    dtypes: tuple[str, ...] = DTYPES  # of X
    casting_modes: tuple[str, ...] = tuple(map(str, CastingMode))
    offsets: tuple[float, ...] | None = None  # None: any
    weights: tuple[str, ...] = (*WEIGHTS, *DTYPES)  # "same" is X's dtype, "none" no weight
    gradients: bool = True  # dX and dW are computed; False for a forward alone, as NumPy functions are
    in_place: tuple[bool, ...] = (True, False)
    layouts: tuple[str, ...] = tuple(LAYOUT_CODES)  # of X, dY and W, R and dS
    residual: tuple[bool, ...] = (False,)  # Y alone of X; (Y, S) of X and R; or both, where R is optional
    ranks: tuple[int, ...] = tuple(sorted(RANKS))
    min_rows: int = 0
    max_columns: int | None = None  # None: any
    columns_multiple_of: int = 1
    repeatable: bool = True  # two runs give the same bits
    batch_invariant: bool = False  # a row's Y, RSTD and dX have the same bits alone and in a batch
    column_sums: str | int = "any"  # the order of sums along a row: see `ORDERS`, or a number of strided partial sums
    row_sums: str | int = "any"  # and of the sum over rows in dW
    c_div: float = SEQUENTIAL.c_div  # unit roundoffs lost by Σ/N
    c_rs: float = SEQUENTIAL.c_rs  # and by 1/√v
    flushes_subnormals: bool = False

    @property
    def arithmetic(self) -> Arithmetic:
        """What the tolerances may rely on."""
        return Arithmetic(
            self.c_div, self.c_rs, _depth(self.column_sums), _depth(self.row_sums), self.flushes_subnormals
        )

    def unclaimed(self, case: Case) -> str | None:
        """The first setting of the case that is not claimed, as words; None where all are."""
        columns = case.shape[-1]
        checks = (
            ("casting mode", str(case.casting_mode), str(case.casting_mode) in self.casting_modes),
            ("dtype", case.dtype, case.dtype in self.dtypes),
            ("weight", case.weight, case.weight in self.weights),
            ("offset", f"{case.offset:g}", self.offsets is None or case.offset in self.offsets),
            ("in_place", case.in_place, case.in_place in self.in_place),
            ("residual", case.residual, case.residual in self.residual),
            *(("layout", layout, layout in self.layouts) for layout in case.layouts),
            ("rank", len(case.shape), len(case.shape) in self.ranks),
            ("rows", case.n_rows, case.n_rows >= self.min_rows),
            ("columns", columns, columns <= (self.max_columns or math.inf) and columns % self.columns_multiple_of == 0),
        )
        return next((f"{name} {value} is not claimed" for name, value, claimed in checks if not claimed), None)

    @property
    def axes(self) -> dict[str, tuple]:
        """The values of every axis that cells are drawn from."""
        step = self.columns_multiple_of
        most = self.max_columns or math.inf
        columns = dict.fromkeys(math.ceil(n / step) * step for n in COLUMNS if math.ceil(n / step) * step <= most)
        claimed: dict[str, tuple] = {
            "casting_mode": self.casting_modes,
            "offset": self.offsets or COVERING_AXES["offset"],
            "dtype": self.dtypes,
            "in_place": self.in_place,
            "weight": tuple(w for w in COVERING_AXES["weight"] if w in self.weights) or self.weights,
            "columns": tuple(columns) or (step,),
            "rows": tuple(n for n in ROWS if n >= self.min_rows) or (self.min_rows,),
            "rank": self.ranks,
            "x_layout": self.layouts,
            "dy_layout": self.layouts,
            "w_layout": tuple(layout for layout in W_LAYOUTS if layout in self.layouts) or W_LAYOUTS[:1],
        }
        # In the order of the axes, on which the covering sets depend: who claims everything gets the levels' own cells.
        return {
            name: (
                *(v for v in usual if v in claimed.get(name, usual)),
                *(v for v in claimed.get(name, ()) if v not in usual),
            )
            for name, usual in COVERING_AXES.items()
        }

    def cells(self, level: str) -> tuple[Case, ...]:
        """The cells of a level that are claimed, and one for each value of an axis that is not: to be refused."""
        claimed = tuple(
            case
            for residual in self.residual
            for case in draw(level, self.axes | (dict.fromkeys(RESIDUAL_AXES, self.layouts) if residual else {}))
        )
        plain = min(claimed, key=lambda case: (case.n_rows < 2, not case.plain, math.prod(case.shape)))
        others = (replace(plain, **change) for change in self._unclaimed_changes(plain))
        return (*claimed, *(case for case in others if self.unclaimed(case) is not None))

    def _unclaimed_changes(self, plain: Case) -> Iterator[dict[str, Any]]:
        axes = self.axes
        for name in ("casting_mode", "dtype", "weight", "in_place", "x_layout", "dy_layout"):
            yield from ({name: value} for value in COVERING_AXES[name] if value not in axes[name])
        for name in RESIDUAL_AXES if plain.residual else ():
            yield from ({name: value} for value in RESIDUAL_AXES[name] if value not in self.layouts)
        if self.offsets is not None and plain.w_dtype is not None:
            yield from ({"offset": value} for value in OFFSETS if value not in self.offsets)
        columns = plain.shape[-1]
        shapes = {1: (columns,), 2: (2, columns), 3: (2, 2, columns), 4: (1, 2, 2, columns)}
        yield from ({"shape": shapes[rank]} for rank in RANKS if rank not in self.ranks)
        if self.min_rows:
            yield {"shape": (0, *plain.shape[1:])}
        if self.columns_multiple_of > 1:
            yield {"shape": (*plain.shape[:-1], columns + 1)}
        if self.max_columns is not None:
            yield {"shape": (*plain.shape[:-1], self.max_columns + self.columns_multiple_of)}

    def with_claims(self, claims: Mapping[str, Any]) -> Profile:
        """The profile with some fields replaced. Raises ProfileError for an unknown field or value."""
        known = {field.name for field in fields(self)}
        for name in claims:
            if name not in known:
                raise ProfileError(f"a profile has no {name!r}; it has {', '.join(sorted(known))}")
        return replace(self, **{name: _VALID[name](name, value) for name, value in claims.items()})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """One line: the claims that differ from everything, and what is declared of the arithmetic."""
        default = asdict(Profile())
        parts = [f"{name} {_words(value)}" for name, value in asdict(self).items() if value != default[name]]
        return "; ".join(parts) or "everything"


def read(path: Path) -> dict[str, Any]:
    """The claims in a file, checked.

    Raises:
        ProfileError: it cannot be read, is neither TOML nor Python, or claims what does not exist.
    """
    try:
        if path.suffix == ".py":
            claims = runpy.run_path(str(path))["profile"]
        else:
            claims = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read the profile {path}: {error.strerror}") from error
    except KeyError as error:
        raise ProfileError(f"the profile {path} has no dict called 'profile'") from error
    except Exception as error:  # a Python file may raise anything
        raise ProfileError(f"cannot read the profile {path}: {' '.join(str(error).split())}") from error
    if not isinstance(claims, Mapping):
        raise ProfileError(f"the profile {path} is a {type(claims).__name__}, not a dict")
    Profile().with_claims(claims)
    return dict(claims)


def _depth(order: str | int) -> Callable[[int], int]:
    return ORDERS[order] if isinstance(order, str) else partial(partials_depth, partials=order)


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_words, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


Check = Callable[[str, Any], Any]


def _one_of(allowed: Collection) -> Check:
    def check(name: str, value: Any) -> Any:
        if not any(type(value) is type(item) and value == item for item in allowed):  # True is not 1
            raise ProfileError(f"{name} cannot be {value!r}; it can be {_words(tuple(allowed))}")
        return value

    return check


def _list_of(check: Check) -> Check:
    def check_all(name: str, value: Any) -> tuple:
        if not isinstance(value, list | tuple) or not value:
            raise ProfileError(f"{name} must be a list of at least one value, not {value!r}")
        return tuple(check(name, item) for item in value)

    return check_all


def _number(least: float, most: float = math.inf, kind: type = int) -> Check:
    def check(name: str, value: Any) -> Any:
        number: Any = value if isinstance(value, int | kind) and not isinstance(value, bool) else math.nan
        if not (math.isfinite(number) and least <= number <= most):
            limit = f" and at most {most:g}" if math.isfinite(most) else ""
            raise ProfileError(f"{name} must be a number of at least {least:g}{limit}, not {value!r}")
        return kind(number)

    return check


def _sums(name: str, value: Any) -> Any:
    return _one_of(ORDERS)(name, value) if isinstance(value, str) else _number(1)(name, value)


_flag = _one_of((True, False))
_VALID: dict[str, Check] = {
    "dtypes": _list_of(_one_of(DTYPES)),
    "casting_modes": _list_of(_one_of(tuple(map(str, CastingMode)))),
    "offsets": _list_of(_number(-1e300, 1e300, float)),
    "weights": _list_of(_one_of((*WEIGHTS, *DTYPES))),
    "gradients": _flag,
    "in_place": _list_of(_flag),
    "layouts": _list_of(_one_of(tuple(LAYOUT_CODES))),
    "residual": _list_of(_flag),
    "ranks": _list_of(_one_of(tuple(sorted(RANKS)))),
    "min_rows": _number(0),
    "max_columns": _number(1),
    "columns_multiple_of": _number(1),
    "repeatable": _flag,
    "batch_invariant": _flag,
    "column_sums": _sums,
    "row_sums": _sums,
    # At most what the slowest hardware loses: a profile makes tolerances sharper, never wider.
    "c_div": _number(0, SEQUENTIAL.c_div, float),
    "c_rs": _number(0, SEQUENTIAL.c_rs, float),
    "flushes_subnormals": _flag,
}
