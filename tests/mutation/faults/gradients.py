"""Faults of the proof that dY is free (I), derivatives (D), jagged tensors (N), the interpreter (T), checks (E)."""

from __future__ import annotations

from dataclasses import replace

from tests.mutation.mutant import Mutant

OWNERSHIP = "rmsnorm/ownership.py"
OPS = "rmsnorm/ops.py"
NESTED = "rmsnorm/nested.py"
CHECKS = "rmsnorm/checks.py"
INTERPRETER = "rmsnorm/fused/interpreter.py"
_IN_PLACE = "tests/rmsnorm/torch/test_in_place.py"
TEST_IN_PLACE = f"{_IN_PLACE} -k reference or exclusive or dense or engine or probe"
TEST_PROGRAMS = "tests/rmsnorm/torch/test_programs.py"
TEST_TYPES = "tests/rmsnorm/torch/test_argument_types.py"
TEST_PATHS = "tests/rmsnorm/torch/test_paths.py"
TEST_ALONE = "tests/rmsnorm/triton/test_interpreter_alone.py"


def _uncounted(id: str, count: str, replaced: str, what: str) -> Mutant:
    return Mutant(
        id, OWNERSHIP, f"        {count},\n", f"        {replaced},\n", f"{what} is not counted", TEST_IN_PLACE
    )


MUTANTS = (
    replace(
        _uncounted("I01", "dy._use_count()", "0", "a reference in C++"),
        equivalent="the other counts show every pattern known today; what C++ alone holds changes with PyTorch",
    ),
    _uncounted("I02", "sys.getrefcount(dy)", "0", "a Python reference to dY"),
    _uncounted("I03", "weakref.getweakrefcount(dy)", "0", "a weak reference to dY"),
    _uncounted("I04", "torch._C._storage_Use_Count(storage._cdata)", "0", "another tensor of the storage"),
    _uncounted("I05", "sys.getrefcount(storage)", "0", "a Python reference to the storage"),
    _uncounted("I06", "storage.resizable()", "True", "memory that the storage does not own"),
    Mutant(
        "I07",
        OWNERSHIP,
        "    return frozenset(exclusive - shared)",
        "    return frozenset(exclusive | shared)",
        "counts of a shared dY permit",
        TEST_IN_PLACE,
    ),
    Mutant(
        "I08",
        OWNERSHIP,
        " or not grads[0].is_contiguous() or",
        " or",
        "a strided dY is written over",
        TEST_IN_PLACE,
    ),
    Mutant(
        "I09",
        OWNERSHIP,
        "    except NotImplementedError:",
        "    except ZeroDivisionError:",
        "a batch of dY raises",
        f"{_IN_PLACE} -k batched",
    ),
    Mutant(
        "D09",
        OPS,
        "(drstd * -rstd.pow(3) / x.shape[-1])",
        "(drstd * rstd.pow(3) / x.shape[-1])",
        "RSTD's own derivative has the wrong sign",
        "tests/rmsnorm/torch/test_operators.py",
    ),
    Mutant(
        "D10",
        OPS,
        "eps=ctx.eps, offset=ctx.offset,",
        "eps=ctx.eps, offset=0.0,",
        "the second derivative has no offset",
        TEST_PATHS + " -k third_order",
    ),
    Mutant(
        "D11",
        OPS,
        "dx = through_rstd if dx is None else dx + through_rstd",
        "dx = through_rstd",
        "RSTD's derivative replaces that of Y",
        "tests/rmsnorm/torch/test_operators.py",
    ),
    Mutant(
        "N01",
        NESTED,
        "        x.offsets(),\n",
        "        x.offsets().flip(0),\n",
        "the sequences have other lengths",
        TEST_PROGRAMS + " -k jagged",
    ),
    Mutant(
        "N02",
        NESTED,
        "if ragged == x.dim() - 1:",
        "if False:",
        "rows of several lengths are taken as one",
        TEST_PROGRAMS + " -k several_lengths",
    ),
    Mutant(
        "T01",
        INTERPRETER,
        "    if _casts_right():\n        return\n",
        "    return\n",
        "the package alone truncates to bfloat16",
        TEST_ALONE,
    ),
    Mutant(
        "T02",
        "rmsnorm/fused/variant.py",
        "            with interpreter.launching():\n",
        "            if True:\n",
        "interpreted launches run side by side",
        TEST_ALONE,
    ),
    Mutant(
        "E25",
        CHECKS,
        '    check_bool("in_place", in_place)\n',
        "",
        "any in_place passes",
        TEST_TYPES,
    ),
    Mutant(
        "E26",
        CHECKS,
        "if row_mode is not None and not isinstance(row_mode, bool):",
        "if False:",
        "any row_mode passes",
        TEST_TYPES,
    ),
    Mutant(
        "E27",
        CHECKS,
        "if value.requires_grad or value.device",
        "if value.device",
        "a number that learns loses its gradient",
        TEST_TYPES,
    ),
)
