"""Error checks that are missing."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

OPS = "rmsnorm/ops.py"
CHECKS = "rmsnorm/checks.py"
MODULE = "rmsnorm/module.py"
TEST_HOST = "tests/rmsnorm/triton/test_host_contract.py"
TEST_ERRORS = "tests/rmsnorm/torch/test_errors.py"


def _removed(id: str, file: str, check: str, noticed_by: str = TEST_ERRORS) -> Mutant:
    """A check that never fires."""
    return Mutant(id, file, f"if {check}:", f"if False and ({check}):", f"no error where {check}", noticed_by)


MUTANTS = (
    Mutant(
        "E01",
        CHECKS,
        "if casting_mode not in CASTING_MODE_NAMES:",
        "if casting_mode is None:",
        "an unknown casting mode passes",
        TEST_ERRORS,
    ),
    Mutant(
        "E02", CHECKS, "if not 0.0 <= eps < math.inf:", "if not eps < math.inf:", "a negative eps passes", TEST_ERRORS
    ),
    Mutant(
        "E03",
        CHECKS,
        "if not 0.0 <= eps < math.inf:",
        "if not 0.0 <= eps <= math.inf:",
        "an infinite eps passes",
        TEST_ERRORS,
    ),
    Mutant(
        "E04",
        CHECKS,
        "if not 0.0 <= eps < math.inf:",
        "if eps < 0.0 or eps == math.inf:",
        "eps NaN passes",
        TEST_ERRORS,
    ),
    _removed("E05", CHECKS, "not -math.inf < offset < math.inf"),
    _removed("E06", CHECKS, "value.dtype not in DTYPES"),
    _removed("E07", CHECKS, "x.dim() == 0"),
    _removed("E08", CHECKS, "shape[-1] < least_cols"),
    Mutant("E09", CHECKS, '    check_tensor("W", w)\n', "", "W may be anything with a shape", TEST_ERRORS),
    _removed("E10", CHECKS, "w.dim() != 1"),
    _removed("E11", CHECKS, "w.shape[0] != shape[-1]"),
    _removed("E12", CHECKS, "w.device != x.device"),
    _removed("E13", CHECKS, "value.dtype != x.dtype"),
    _removed("E14", CHECKS, "value.shape != x.shape"),
    _removed("E15", CHECKS, "value.device != x.device"),
    _removed("E16", CHECKS, "rstd.dtype != rstd_dtype"),
    _removed("E17", CHECKS, "rstd.shape != x.shape[:-1]"),
    _removed("E18", CHECKS, "rstd.device != x.device", TEST_HOST),
    _removed("E19", CHECKS, "size < 1"),
    _removed("E20", MODULE, 'init_fn not in ("ones", "zeros")'),
    _removed("E21", MODULE, "not isinstance(elementwise_affine, bool)"),
    Mutant(
        "E22",
        MODULE,
        "        eps, offset = check_settings(eps, offset, casting_mode, in_place, row_mode)\n",
        "",
        "the module takes any setting",
        TEST_ERRORS,
    ),
    _removed("E23", MODULE, "x.dim() > 0 and x.shape[-1] != self.hidden_size"),
    _removed("E24", OPS, "not dy.is_contiguous()"),
)
