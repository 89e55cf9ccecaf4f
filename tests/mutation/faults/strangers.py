"""Faults that another hand planted and no test noticed then: P in the package, J in the judge.

Each stands for a kind, named by what notices it now: values off the grid, state and concurrency, second paths, and the
judge's own joints.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant

FUSED = "rmsnorm/fused"
TORCH = "tests/rmsnorm/torch"
TRITON = "tests/rmsnorm/triton"
JUDGE = "tests/references"

_SLICE = "tl.load(ptr + row * row_steps * STRIDE_ALIGN + cols"
_STORE = "cols[None, :], value.to(ptr.dtype.element_ty), mask=mask)"
_FORWARD_PLAN = "return ForwardPlan(copies, variant, -(-n_rows // config.block_rows), (*row_steps, n_rows))"
_EXCHANGE = "    exchange = lead.new_full((n_rows, config.n_splits), empty.value, dtype=bits)\n"
_PARTIAL = "        dw_partial = rstd.new_empty((n_partials, n_cols))\n"
_CAST = "None if self.weight is None else self.weight.to(hidden_states.dtype)"
_KEYED_BY_DIGITS = """def _by_digits(function):
    plans = {}

    def look_up(*a):
        key = *a[:4], f"{a[4]:g}", *a[5:]
        if key not in plans:
            plans[key] = function(*a)
        return plans[key]

    look_up.__wrapped__ = function
    return look_up


@_by_digits
def forward_plan("""

VALUES = (
    Mutant(
        "P03",
        f"{FUSED}/split_kernels.py",
        _SLICE,
        _SLICE.replace("row * row_steps * STRIDE_ALIGN", "row * (row_steps * STRIDE_ALIGN)"),
        "a step from row to row is computed in int32",
        f"{TRITON}/test_hard_inputs.py::test_beyond_int32",
    ),
    Mutant(
        "P08",
        f"{FUSED}/kernels.py",
        f"    tl.store(ptr + (rows * n_cols)[:, None] + {_STORE}",
        "    if value.dtype == tl.float32:\n"
        "        value = tl.where(tl.abs(value) < 1.1754943508222875e-38, value * 0.0, value)\n"
        f"    tl.store(ptr + (rows * n_cols)[:, None] + {_STORE}",
        "subnormal results are flushed to zero",
        f"{TRITON}/test_values.py -k least_normal",
    ),
    Mutant(
        "P40",
        f"{FUSED}/plans.py",
        _FORWARD_PLAN,
        _FORWARD_PLAN.replace("-(-n_rows // config.block_rows)", "min(-(-n_rows // config.block_rows), 65535)"),
        "later rows than the 65,535th program's are never written",
        f"{TRITON}/test_values.py -k every_row",
    ),
    Mutant(
        "P48",
        "rmsnorm/checks.py",
        "if not isinstance(value, bool | str",
        "if not isinstance(value, int | str",
        "a number that is an int is refused",
        f"{TORCH}/test_argument_types.py",
    ),
    Mutant(
        "P73",
        "rmsnorm/eager.py",
        "if offset != 0.0:",
        "if offset > 0.0:",
        "eager ignores a negative offset",
        f"{TORCH}/test_paths.py -k offsets and function",
    ),
)

STATE = (
    Mutant(
        "P13",
        f"{FUSED}/split_kernels.py",
        "while tl.max((bits == EMPTY)",
        "while tl.min((bits == EMPTY)",
        "a program goes on as soon as one slot is filled",
        f"{TRITON}/test_exchange.py",
    ),
    Mutant(
        "P42",
        f"{FUSED}/launch.py",
        _EXCHANGE,
        "    kept = _launch_split.__dict__\n"
        "    key = str((n_rows, config.n_splits, bits, lead.device))\n"
        "    if key not in kept:\n"
        "        kept[key] = lead.new_full((n_rows, config.n_splits), empty.value, dtype=bits)\n"
        "    exchange = kept[key]\n",
        "the exchange of split rows is kept between calls",
        f"{TRITON}/test_state.py -k between",
    ),
    Mutant(
        "P43",
        f"{FUSED}/plans.py",
        "torch.cuda.get_device_properties(device)",
        "torch.cuda.get_device_properties(0)",
        "every GPU gets the tiles of the first",
        f"{TRITON}/test_variant.py",
    ),
    Mutant(
        "P44",
        f"{FUSED}/variant.py",
        "torch.cuda.get_device_properties(device)",
        "torch.cuda.get_device_properties(0)",
        "resident programs are those of the first GPU",
        f"{TRITON}/test_variant.py",
    ),
    Mutant(
        "P47",
        f"{FUSED}/plans.py",
        "@remember\ndef forward_plan(",
        _KEYED_BY_DIGITS,
        "two eps that agree in six digits share a plan",
        f"{TRITON}/test_state.py -k plan or digits",
    ),
    Mutant(
        "P49",
        f"{FUSED}/plans.py",
        "maxsize=4096",
        "maxsize=None",
        "plans are never forgotten",
        f"{TRITON}/test_state.py -k kept",
    ),
    Mutant(
        "P52",
        f"{FUSED}/launch.py",
        _PARTIAL,
        "        space = rms_norm_backward.__dict__\n"
        "        key = str((n_partials, n_cols, rstd.dtype, rstd.device))\n"
        "        if key not in space:\n"
        "            space[key] = rstd.new_empty((n_partials, n_cols))\n"
        "        dw_partial = space[key]\n",
        "all streams and threads share one buffer of partial rows",
        f"{TRITON}/test_state.py -k between",
    ),
)

PATHS = (
    Mutant(
        "P61",
        "rmsnorm/ops.py",
        "create_graph = torch.is_grad_enabled()",
        "create_graph = False",
        "no third derivative",
        f"{TORCH}/test_paths.py -k third",
    ),
    Mutant(
        "P63",
        "rmsnorm/ops.py",
        "        or torch._C._len_torch_dispatch_stack() > 0\n",
        "",
        "a dispatch mode sees no operator",
        f"{TORCH}/test_paths.py -k dispatch_mode",
    ),
    Mutant(
        "P67",
        "rmsnorm/module.py",
        "            hidden_states,\n            self.weight,\n",
        f"            hidden_states,\n            {_CAST},\n",
        "the module rounds its weight to X's dtype",
        f"{TORCH}/test_module.py",
    ),
    Mutant(
        "P68",
        "rmsnorm/transforms.py",
        "return torch.where(smooth.isfinite(), value - zero, value)",
        "return value - zero",
        "under torch.func a row whose squares overflow is NaN",
        f"{TORCH}/test_paths.py -k overflow and v",
    ),
    Mutant(
        "P69",
        "rmsnorm/transforms.py",
        "y = _normalized(x_c, x.dtype, w, eps, offset, casting_mode)",
        'y = _normalized(x_c, x.dtype, w, eps, offset, "gemma")',
        "vmap over a backward takes another casting mode",
        f"{TORCH}/test_paths.py -k every_path and vmap_over_backward",
    ),
    Mutant(
        "P74",
        "rmsnorm/eager.py",
        "dy_c * (w.to(c_dtype) + offset)",
        "dy_c * (w + offset)",
        "a second derivative adds the offset in W's dtype",
        f"{TORCH}/test_paths.py -k third_order",
    ),
    Mutant(
        "P81",
        "rmsnorm/tensor_parallel.py",
        "dist.all_reduce(total, group=group)",
        "dist.all_reduce(total)",
        "rows are summed over all ranks, not over the group",
        f"{TORCH}/test_distributed.py -k subgroup and gloo-2",
    ),
    Mutant(
        "P83",
        "rmsnorm/measure.py",
        "WIDE_ULPS = 4 ",
        "WIDE_ULPS = 4096 ",
        "float32 norms that differ by 4,096 ulps are replaced",
        "tests/rmsnorm/models/test_convert.py",
    ),
    Mutant(
        "P84",
        "rmsnorm/hub.py",
        'self.variance_epsilon, 0.0, "llama")',
        'self.variance_epsilon, 0.0, "gemma")',
        "the hub's layer rounds as gemma",
        "tests/rmsnorm/models/test_hub.py",
    ),
)

JOINTS = (
    Mutant(
        "J01",
        "references/judge/comparison.py",
        "(self.bound.ratio(self.got) > 1)",
        "(self.bound.ratio(self.got) > 1.5)",
        "a result may miss its bound by half",
        f"{JUDGE}/judge/test_joints.py",
    ),
    Mutant(
        "J09",
        "references/cells/levels.py",
        "*_small_covering(axes)",
        "*tuple(_small_covering(axes))[:20]",
        "smoke loses most cells of the covering set",
        f"{JUDGE}/cells/test_cells.py",
    ),
    Mutant(
        "J13",
        "references/pytest_plugin.py",
        ", found.profile, repeat=self.repeat)",
        ", found.profile)",
        "the plugin never repeats a cell",
        f"{JUDGE}/test_pytest_plugin.py",
    ),
    Mutant(
        "J15",
        "tests/references/bounds/draws.py",
        "sound = max(ratios) <= 1",
        "sound = min(ratios) <= 1",
        "the self-test is sound where one cell is",
        f"{JUDGE}/bounds/test_tolerances.py",
    ),
    Mutant(
        "J22",
        "tests/mutation/runner.py",
        "killed {sum(r.status == 'killed' for r in faults)}",
        "killed {sum(r.status != 'survived' for r in faults)}",
        "a fault that does not import counts as killed",
        "tests/mutation/test_runner.py",
    ),
    Mutant(
        "J26",
        "references/judge/verdict.py",
        "if outputs.dw is None and case.w_dtype is not None and gradients:",
        'if outputs.dw is None and case.weight == "same" and gradients:',
        "no dW for a weight of another dtype passes",
        f"{JUDGE}/judge/test_joints.py",
    ),
    Mutant(
        "J37",
        "tests/mutation/stages.py",
        'if verdict.status == "unsupported":',
        "if False:",
        "a fault that makes cells unsupported survives them",
        "tests/mutation/test_runner.py",
    ),
    Mutant(
        "J53",
        "references/candidates/repetition.py",
        '("y", "s", "rstd", "dx", "dr")}, differs)',
        '("y", "s", "rstd")}, differs)',
        "a dX that depends on the batch is not seen",
        f"{JUDGE}/candidates/test_repetition.py",
    ),
    Mutant(
        "J58",
        "references/cells/levels.py",
        "4096, 4097, 65536)",
        "4096, 4097)",
        "no cell has 65,536 columns",
        f"{JUDGE}/cells/test_cells.py",
    ),
)

MUTANTS = (*VALUES, *STATE, *PATHS, *JOINTS)
