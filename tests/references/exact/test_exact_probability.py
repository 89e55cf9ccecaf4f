"""The bound on the probability of a false "equal", against what happens in fields so small that it happens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from references.exact import draw, table
from references.exact.field import Field
from references.exact.probability import DEGREE, missed
from references.exact.table import Formula, formula

SEEDS, ROWS = 40, 100  # of rounding functions, and of rows drawn for each
SMALL_PRIME, SMALL_BITS = 8191, 6  # 126 numbers of 16 bits
FAULTS: dict[str, Formula] = {
    "a rounding less": formula("gemma"),
    "eps left out": replace(formula("llama"), eps="left out"),
    "padded width": replace(formula("llama"), width="padded"),
    "another order": replace(formula("llama"), order="(x * w) * rstd"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_formulas_agree_as_rarely_as_the_bound_says(fault: str) -> None:
    agreed = 0
    for seed in range(SEEDS):
        field = Field(SMALL_PRIME, seed, magnitude_bits=SMALL_BITS)
        about = {"eps": 0.3, "offset": 0.0, "formulas": [formula("llama")], "seed": seed}
        problem = draw.draw(field, (ROWS, 3), "bfloat16", "bfloat16", **about)
        y, other = (table.forward(field, problem, f)["y"] for f in (formula("llama"), FAULTS[fault]))
        agreed += int((field.decode(y, "bfloat16") == field.decode(other, "bfloat16"))[:, 0].sum())
    # Y of these formulas: the norm of the difference has degree 8 at most.
    bound = missed(Field(SMALL_PRIME, magnitude_bits=SMALL_BITS), "bfloat16", degree=8)
    assert 0 < agreed / (SEEDS * ROWS) < bound < 1


def test_float32_agrees_as_rarely_as_the_bound_says() -> None:
    agreed, prime = 0, 8191
    for seed in range(SEEDS):
        field = Field(prime, seed, magnitude_bits=SMALL_BITS)
        about = {"eps": 0.3, "offset": 0.0, "formulas": [formula("llama")], "seed": seed}
        problem = draw.draw(field, (ROWS, 3), "float32", "float32", **about)
        right, wrong = (table.backward(field, problem, replace(formula("llama"), projection=p)) for p in (True, False))
        agreed += int((right["dx"] == wrong["dx"])[:, 0].sum())
    assert agreed / (SEEDS * ROWS) < missed(Field(prime, magnitude_bits=SMALL_BITS), "float32")


def test_bounds_of_the_real_field() -> None:
    field = Field()
    # Two of 16 bits: 2 (32 / (2 · 32,497) + 8 / 32,497); of 32: 2 · 32 / (2^31 - 2).
    assert missed(field, "bfloat16") == pytest.approx(1.477e-3, rel=1e-3)
    assert missed(field, "float32") == pytest.approx(2 * DEGREE / (2**31 - 2))
    assert missed(field, "bfloat16", 6) < 1e-15 < missed(field, "bfloat16", 5)
    assert missed(field, "float64", 2) < 1e-15


def test_half_of_all_rows_are_accepted() -> None:
    field = Field()
    rng = np.random.default_rng(0)
    x = draw.patterns(field, rng, (4000, 5), "bfloat16")
    problem = table.Problem(x, None, x, "bfloat16", None, 0.3, 0.0)
    for mode in ("llama", "none"):
        assert 0.45 < field.positive(table.variance(field, problem, formula(mode))).mean() < 0.55
