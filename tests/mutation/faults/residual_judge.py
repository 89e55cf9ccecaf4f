"""Faults of the residual stream: in the references (the vote names them), the bounds, the cells and the judge."""

from __future__ import annotations

from tests.mutation.mutant import VOTE, Mutant

NUMPY, TORCH, JAX = (f"references/{name}_reference.py" for name in ("numpy", "torch", "jax"))
TOLERANCES = "references/bounds/tolerances.py"
KINDS = "references/candidates/kinds.py"
TEST_BOUNDS = "tests/references/bounds/test_tolerances.py"
TEST_LOADING = "tests/references/candidates/test_loading.py"
TEST_STRANGERS = "tests/references/candidates/test_strangers.py"
TEST_CELLS = "tests/references/cells/test_cells.py"

REFERENCES = (
    Mutant("RR1", NUMPY, "(d_norm + ds.astype(d_norm.dtype))", "d_norm", "dS is dropped", VOTE),
    Mutant(
        "RR2",
        NUMPY,
        "dx = (d_norm + ds",
        "dx = (d_norm.astype(x.dtype).astype(d_norm.dtype) + ds",
        "dS is added after a rounding",
        VOTE,
    ),
    Mutant("RR3", NUMPY, "_gradients(dy, s, w,", "_gradients(dy, x, w,", "the gradients are those of X", VOTE),
    Mutant(
        "RR4",
        TORCH,
        "s = _cast(wide_x + wide_r, x.dtype)",
        "s = wide_x + wide_r",
        "the backward's sum is unrounded",
        VOTE,
    ),
    Mutant(
        "RR5",
        TORCH,
        "torch.autograd.grad((y, s), wanted, arriving)",
        "torch.autograd.grad(y, wanted, arriving[0])",
        "dS is dropped",
        VOTE,
    ),
    Mutant("RR6", JAX, "return _to_storage(x + r, storage)", "return x + r", "the sum is unrounded", VOTE),
    Mutant("RR7", JAX, "ds.astype(s.dtype)))", "0 * ds.astype(s.dtype)))", "dS is dropped", VOTE),
    Mutant(
        "RR8",
        "references/oracle.py",
        "dx = dx + ds.astype(np.longdouble)",
        "dx = dx - ds.astype(np.longdouble)",
        "the oracle subtracts dS",
        "tests/references/test_references.py::test_oracle_is_mpmath",
    ),
    Mutant(
        "RR9",
        "references/exact/table.py",
        'x = field.round(add(x, _load(field, problem, "r")), problem.dtype)',
        'x = add(x, _load(field, problem, "r"))',
        "the table's sum is unrounded",
        "tests/references/exact/test_exact_references.py -k residual",
    ),
)
BOUNDS = (
    Mutant(
        "RB1",
        TOLERANCES,
        "(m * x).mean(-1, keepdims=True)) + arriving",
        "(m * x).mean(-1, keepdims=True))",
        "the enclosure of dX lacks dS",
        f"{TEST_BOUNDS} -k seen_where",
    ),
    Mutant(
        "RB2",
        TOLERANCES,
        "rounding = model.storage if model.storage.unit else model.compute",
        "rounding = model.storage",
        "a float32 S has no tolerance",
        f"{TEST_BOUNDS} -k of_one_addition",
    ),
    Mutant(
        "RB3",
        TOLERANCES,
        "np.where(vanishes, np.minimum(s, 0), s), np.where(vanishes, np.maximum(s, 0), s)",
        "s, s",
        "a sum that flushes is called wrong where flushing is declared",
        f"{TEST_BOUNDS} -k may_vanish",
    ),
    Mutant(
        "RB4",
        "references/bounds/rounding.py",
        "return (x.astype(compute) + r.astype(compute)).astype(numpy_dtype(self.dtype))",
        "return x + (r.astype(compute) * compute.type(1 + 2.0**-6)).astype(numpy_dtype(self.dtype))",
        "the stream of the bounds is another sum",
        f"{TEST_BOUNDS} -k of_one_addition",
    ),
    Mutant(
        "RB5",
        TOLERANCES,
        'if allowed_share is None or tensor in ("rstd", "s") or',
        'if allowed_share is None or tensor in ("rstd", "s", "dr") or',
        "no rate of equal bits is demanded of dR",
        f"{TEST_BOUNDS} -k exact_ulps",
    ),
)
JUDGE = (
    Mutant(
        "RC1",
        "references/cells/cell.py",
        "r, ds = _x_values(case, rng), rng.standard_normal(case.shape)",
        "r, ds = x.astype(np.float64), rng.standard_normal(case.shape)",
        "R is X",
        f"{TEST_CELLS} -k r_is_like_x",
    ),
    Mutant(
        "RC2",
        "references/cells/cell.py",
        'return self.data == "constant_rows" or "expanded" in self.layouts',
        'return self.data == "constant_rows" or "expanded" in self.layouts[:3]',
        "rows of R or dS that repeat count as noise",
        f"{TEST_CELLS} -k residual",
    ),
    Mutant(
        "RC3",
        "references/candidates/profile.py",
        "for residual in self.residual\n",
        "for residual in self.residual[:1]\n",
        "an optional residual is judged one way",
        f"{TEST_STRANGERS} -k optional_residual",
    ),
    Mutant(
        "RJ6",
        KINDS,
        '                "with no gradient at S": lambda found: self._arriving(case, inputs, found, "ds"),\n',
        "",
        "nobody is asked to do without dS",
        f"{TEST_STRANGERS} -k NeedsBoth",
    ),
    Mutant(
        "RJ7",
        KINDS,
        "        outputs.absent = (absent,)\n",
        "",
        "what did not arrive is demanded all the same",
        f"{TEST_STRANGERS} -k right_fused_residual",
    ),
    Mutant(
        "RJ8",
        "references/judge/verdict.py",
        "if outputs.dr is None and case.residual and gradients:",
        "if False:",
        "a missing dR passes",
        f"{TEST_STRANGERS} -k dr_missing",
    ),
    Mutant(
        "RJ9",
        "references/judge/verdict.py",
        'result not in ("dx", "dr")',
        'result != "dx"',
        "a dR that lies where dX may lie is called wrong",
        f"{TEST_LOADING} -k fused_norm_writes",
    ),
    Mutant(
        "RJ10",
        "references/judge/comparison.py",
        'if self.tensor in ("y", "s"):',
        'if self.tensor == "y":',
        "the sign of a zero of S is not looked at",
        f"{TEST_STRANGERS} -k sign_of_zero",
    ),
    Mutant(
        "RJ11",
        "references/candidates/repetition.py",
        '("y", "s", "rstd", "dx", "dr")}, differs)',
        '("y", "rstd", "dx")}, differs)',
        "an S or dR that depends on the batch is not seen",
        "tests/references/candidates/test_repetition.py -k with_a_residual",
    ),
    Mutant(
        "RJ12",
        "references/candidates/memory.py",
        '            ("ds", inputs.ds, case.ds_layout),\n',
        '            ("ds", inputs.ds, case.r_layout),\n',
        "dS has the layout of R",
        f"{TEST_LOADING} -k layout_of_r_and_ds",
    ),
    Mutant(
        "RJ13",
        KINDS,
        "    outputs.missing = tuple(name for name, gradient in gradients.items() if gradient is None)\n",
        "",
        "a gradient that is missing in part passes",
        f"{TEST_STRANGERS} -k NeedsBoth",
    ),
    Mutant(
        "RJ14",
        "references/judge/stream_habits.py",
        "by_bits, alike = words in ROUNDINGS",
        "by_bits, alike = False",
        "a rounding too many is not named",
        f"{TEST_STRANGERS} -k ds_after_rounding",
    ),
    Mutant(
        "RJ15",
        "references/candidates/probing.py",
        "residual=found.profile.residual[0])",
        "residual=False)",
        "who needs a residual is probed without one",
        f"{TEST_STRANGERS} -k right_fused_residual",
    ),
)

MUTANTS = (*REFERENCES, *BOUNDS, *JUDGE)
