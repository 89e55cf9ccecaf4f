"""Faults of compiled kernels: some show on a GPU alone, others in machine code or to stand-ins for a GPU."""

from __future__ import annotations

from tests.mutation.mutant import CELLS, Mutant

KERNELS, PLANS, VARIANT = (f"rmsnorm/fused/{name}.py" for name in ("kernels", "plans", "variant"))
TEST_LAUNCH = "tests/rmsnorm/triton/test_launch.py"
PTX = "tests/rmsnorm/triton/test_portability.py::test_kernels_compile_and_keep_the_rules -k sm_80"
STAND_INS = "tests/rmsnorm/triton/test_variant.py"


def _fault(
    id: str, file: str, old: str, new: str, fault: str, noticed_by: str = CELLS, equivalent: str | None = None
) -> Mutant:
    return Mutant(
        id, file, old, new, fault, noticed_by, gpu_only=noticed_by not in (PTX, STAND_INS), equivalent=equivalent
    )


# Of verification.md's seventeen: G02 to G07 and G12 to G17 show on a CPU too and stand with the other faults.
MUTANTS = (
    _fault(
        "G01",
        VARIANT,
        '{"num_warps": num_warps,',
        '{"num_warps": 32,',
        "none",
        equivalent="lanes beyond the tile hold copies, which Triton's reductions and stores leave out",
    ),
    _fault(
        "G08",
        KERNELS,
        "result = tl.div_rn(tl.full(value.shape, 1.0, tl.float32), tl.sqrt_rn(value))",
        "result = tl.rsqrt(value)",
        "the reciprocal root is approximate and flushes subnormal values",
        PTX,
    ),
    _fault(
        "G20",
        "rmsnorm/fused/split_kernels.py",
        "axis=0) != 0:\n        bits = tl.load(slots, mask=splits < N_SPLITS, other=0, volatile=True)",
        "axis=0) != 0:\n        bits = tl.load(slots, mask=splits < N_SPLITS, other=0)",
        "a program waits for what its cache holds",
        PTX,
    ),
    _fault(
        "G09",
        VARIANT,
        "elif device == torch.cuda.current_device():",
        "elif device >= 0:",
        "kernels run on the current device, not the tensor's",
        STAND_INS,
    ),
    _fault(
        "G10",
        PLANS,
        "about = dtype, w_dtype, n_cols, eps,",
        "about = dtype, w_dtype and dtype, n_cols, eps,",
        "the variant does not know w's dtype",
        TEST_LAUNCH,
    ),
    _fault(
        "G11",
        VARIANT,
        "            n_programs,\n            1,\n            1,\n",
        "            1,\n            n_programs,\n            1,\n",
        "programs lie along the grid's second axis",
        STAND_INS,
    ),
    _fault(
        "G18",
        KERNELS,
        "quotient = tl.div_rn(numerator, tl.cast(denominator, tl.float32))",
        "quotient = numerator / denominator",
        "the mean is an approximate quotient",
        PTX,
    ),
    _fault(
        "G19",
        VARIANT,
        "driver.active.get_current_stream(device),",
        "0,",
        "kernels run on the default stream",
        STAND_INS,
    ),
)
