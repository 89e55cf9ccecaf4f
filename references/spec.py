"""What RMSNorm is, as data: the casting modes, where each one rounds, and the four floating-point formats.

Everything is computed in the compute dtype; a casting mode is the set of intermediate results that are
rounded to X's dtype on the way. The final result Y is always rounded. Where X is float32 or float64 the two
dtypes are the same, so no mode rounds anything and all three agree. Standard library only.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class CastingMode(enum.StrEnum):
    """The three casting modes; a member equals its plain string."""

    LLAMA = "llama"
    GEMMA = "gemma"
    NONE = "none"


@dataclass(frozen=True)
class RoundingPoints:
    """Which intermediate results are rounded to X's dtype (True) and which stay in the compute dtype."""

    squares: bool  # x·x
    mean_square: bool  # Σ x·x / N, accumulated in the compute dtype
    variance: bool  # mean square + eps
    rstd: bool  # 1/√variance
    x_hat: bool  # x·rstd
    weight: bool  # w + offset


ROUNDING_POINTS: Mapping[CastingMode, RoundingPoints] = MappingProxyType(
    {
        CastingMode.LLAMA: RoundingPoints(
            squares=False, mean_square=False, variance=False, rstd=False, x_hat=True, weight=False
        ),
        CastingMode.GEMMA: RoundingPoints(
            squares=False, mean_square=False, variance=False, rstd=False, x_hat=False, weight=False
        ),
        CastingMode.NONE: RoundingPoints(
            squares=True, mean_square=True, variance=True, rstd=True, x_hat=True, weight=True
        ),
    }
)


@dataclass(frozen=True)
class Float:
    """A binary floating-point format; every value is exact as a Python float."""

    name: str
    unit_roundoff: float  # half the spacing of numbers at 1
    smallest_subnormal: float
    smallest_normal: float
    max: float


FLOATS: Mapping[str, Float] = MappingProxyType(
    {
        "float16": Float("float16", 2.0**-11, 2.0**-24, 2.0**-14, 65504.0),
        "bfloat16": Float("bfloat16", 2.0**-8, 2.0**-133, 2.0**-126, (2 - 2.0**-7) * 2.0**127),
        "float32": Float("float32", 2.0**-24, 2.0**-149, 2.0**-126, (2 - 2.0**-23) * 2.0**127),
        "float64": Float("float64", 2.0**-53, 2.0**-1074, sys.float_info.min, sys.float_info.max),
    }
)

DTYPES: tuple[str, ...] = tuple(FLOATS)
SIXTEEN_BITS = ("float16", "bfloat16")


def compute_dtype(dtype: str) -> str:
    """The dtype in which everything that is not rounded happens.

    Args:
        dtype: X's dtype, one of DTYPES.

    Returns:
        "float64" for "float64", else "float32".

    Raises:
        ValueError: dtype is none of DTYPES.
    """
    if dtype not in FLOATS:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    return "float64" if dtype == "float64" else "float32"
