"""The kernels keep the static rules, and each rule sees a violation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rmsnorm.triton import static_rules

ROOT = Path(__file__).parents[3]
KERNELS = sorted((ROOT / "rmsnorm" / "fused").glob("*kernels.py"))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_kernels_keep_the_rules(path: Path) -> None:
    assert [str(violation) for violation in static_rules.violations(path.read_text())] == []


def test_the_rules_look_at_kernels() -> None:
    assert {"kernels.py", "few_rows_kernels.py", "split_kernels.py"} <= {path.name for path in KERNELS}
    functions = "\n".join(path.read_text() for path in KERNELS)
    for name, pointer in (*static_rules.LOADS_WITHOUT_MASK, *static_rules.STORES_WITHOUT_MASK):
        assert f"def {name}(" in functions, f"the exception for {name} is stale"
        assert pointer in functions, f"the exception for {pointer} is stale"


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("masked-load", "x = tl.load(p + cols, mask=cols < n)"),
        ("load-mask", "x = tl.load(p + cols)"),
        ("store-mask", "tl.store(p + cols, 0.0)"),
        ("int64", "rows = tl.program_id(0) * BLOCK"),
        ("int64", "program = tl.program_id(0)\n    start = program\n    offset = n * start"),
        ("int64", "for tile in tl.range(tl.program_id(0), n, 2):\n        rows = tile * BLOCK"),
        ("int64", "program = tl.program_id(0)\n    rows = (program + 1) * BLOCK"),
        ("int64", "for tile in tl.range(0, n_rows, 8):\n        row = tile\n        _load_slice(p, row)"),
        ("int64", "for start in tl.range(0, n_rows, 8):\n        rows = start * n"),
        ("upcast", "x = tl.load(p, mask=m, other=0.0)\n    y = x * 2"),
        ("upcast", "x = _load_rows(p, rows)\n    y = a + x"),
        ("upcast", "y += tl.load(p, mask=m, other=0.0)"),
        ("upcast", "w = _load_weight(p, cols, m)\n    v = w[0]\n    y = v - 1"),
        ("rounding", "y = x.to(tl.bfloat16) + 1"),
        ("rounding", "y = x.to(X_DTYPE)"),
        ("rounding", "y = x.to(p.dtype.element_ty)"),
        ("hint", "tl.assume(n % 16 == 0)"),
        ("hint", "q = tl.multiple_of(p, 16)"),
        ("atomic", "tl.atomic_add(p, 1.0)"),
    ],
)
def test_each_rule_sees_a_violation(rule: str, body: str) -> None:
    source = f"@triton.jit\ndef kernel(p, n, cols, m):\n    {body}\n"
    assert rule in {violation.rule for violation in static_rules.violations(source)}


@pytest.mark.parametrize(
    "body",
    [
        "x = tl.load(p + cols, mask=m, other=0.0).to(tl.float32)\n    y = x * 2",
        "rows = tl.program_id(0).to(tl.int64) * BLOCK",
        "for tile in tl.range(tl.program_id(0), n, 2):\n        rows = tl.cast(tile, tl.int64) * BLOCK",
        "tl.store(p + cols, y.to(X_DTYPE), mask=m)",
        "r = tl.load(rstd_ptr + rows, mask=m, other=0.0)\n    y = r * 2",
    ],
)
def test_no_rule_sees_what_is_right(body: str) -> None:
    assert static_rules.violations(f"@triton.jit\ndef kernel(p, n, cols, m):\n    {body}\n") == []
