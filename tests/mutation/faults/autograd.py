"""Faults of autograd (B, D, H, L), the eager operations (A), the operators (O) and the module (M)."""

from __future__ import annotations

from tests.mutation.mutant import CELLS, Mutant

FUNCTION = "rmsnorm/function.py"
OPS = "rmsnorm/ops.py"
EAGER = "rmsnorm/eager.py"
MODULE = "rmsnorm/module.py"
TEST_HOST = "tests/rmsnorm/triton/test_host_contract.py"
TEST_IN_PLACE = "tests/rmsnorm/torch/test_in_place.py"
TEST_EAGER = "tests/rmsnorm/torch/test_eager_cells.py"
TEST_GRADCHECK = "tests/rmsnorm/torch/test_gradcheck.py"
TEST_HARD = "tests/rmsnorm/triton/test_hard_inputs.py"

_SETTINGS = "ctx.save_for_backward(X, W, RSTD)\n        ctx.settings = (eps, offset, casting_mode, row_mode)"
_PERMITTED = "permitted = ctx.in_place and not compiling and "
_GRADIENTS = "return dX if needs_dx else None, dW if needs_dw else None"
_EAGER_X_HAT = (
    '    x_hat = x_c * rstd\n    if casting_mode != "gemma":\n        x_hat = x_hat.to(x.dtype).to(c_dtype)\n    if w'
)
_FORWARDED = (
    f"            hidden_states,\n{12 * ' '}self.weight,\n{12 * ' '}self.variance_epsilon,\n{12 * ' '}self.offset"
)
_EAGER_DX = "dx = rstd * (m - x_hat * projection)\n        if ds"
_EAGER_W = "x_hat = x_hat * _shifted_weight(w, offset,"

_DX = "dx = torch.empty_like(x, memory_format=torch.contiguous_format) if needs_dx else None"

MUTANTS = (
    Mutant(
        "B14", FUNCTION, _PERMITTED, "permitted = False and ", "in_place is ignored", TEST_IN_PLACE + " -k exclusive"
    ),
    Mutant(
        "B15",
        FUNCTION,
        _PERMITTED,
        _PERMITTED.replace("ctx.in_place and ", ""),
        "dY is written over without permission",
        TEST_IN_PLACE + " -k exclusive",
    ),
    Mutant(
        "L01",
        FUNCTION,
        _SETTINGS,
        _SETTINGS.replace("casting_mode", '"llama"'),
        "the backward gets another casting mode",
    ),
    Mutant("L06", FUNCTION, _SETTINGS, _SETTINGS.replace("offset", "0.0"), "the backward loses the offset"),
    Mutant(
        "H18",
        FUNCTION,
        "dW = ops.backward_(dY, X, W, RSTD, *settings, needs_dw, ds=dS)",
        "dW = ops.backward_(dY, X, W, RSTD, *settings, True, ds=dS)",
        "a dW that nobody needs is computed",
        TEST_HOST,
    ),
    Mutant(
        "H19",
        FUNCTION,
        "_gradients(ctx, grads, *ctx.needs_input_grad[:2])",
        "_gradients(ctx, grads, *ctx.needs_input_grad[1::-1])",
        "needs of X and W are swapped",
        TEST_IN_PLACE + " -k not_dense",
    ),
    Mutant(
        "H33",
        OPS,
        "torch.autograd.graph.increment_version(dy)",
        "dy.detach()",
        "writing over dY leaves its version",
        TEST_IN_PLACE + " -k version",
    ),
    Mutant(
        "D01",
        FUNCTION,
        "elif torch.is_grad_enabled() and not compiling:",
        "elif False:",
        "G17: no second derivative",
        TEST_GRADCHECK,
    ),
    Mutant(
        "D02",
        OPS,
        "outputs = eager.unrounded_backward(*inputs, eps=ctx.eps,",
        "outputs = eager.unrounded_backward(*inputs, eps=0.0,",
        "the second derivative has no eps",
        TEST_GRADCHECK,
    ),
    Mutant(
        "D03",
        FUNCTION,
        "        ctx.save_for_backward(X, W, RSTD)\n",
        "        ctx.save_for_backward(X.data, W, RSTD)\n",
        "G13: an overwritten X goes unnoticed",
        TEST_HOST,
    ),
    Mutant("D08", FUNCTION, _GRADIENTS, "return dX, dW", "gradients that nobody needs are returned", CELLS),
    Mutant(
        "O01",
        OPS,
        _DX,
        _DX.replace("x, memory_format=torch.contiguous_format", "dy"),
        "G14: dX has the strides of dY",
        TEST_HARD + "::test_layouts",
    ),
    Mutant(
        "A01",
        EAGER,
        _EAGER_X_HAT,
        _EAGER_X_HAT.replace('!= "gemma"', '== "none"'),
        "eager llama does not round x_hat",
        TEST_EAGER,
    ),
    Mutant(
        "A02",
        EAGER,
        _EAGER_DX,
        _EAGER_DX.replace(" - x_hat * projection", ""),
        "eager dX has no projection",
        TEST_EAGER,
    ),
    Mutant("A03", EAGER, _EAGER_W, _EAGER_W.replace("offset", "0.0"), "eager y ignores the offset", TEST_EAGER),
    Mutant(
        "A04",
        EAGER,
        "if needs_dw and w is not None:\n        if casting_mode !=",
        "if needs_dw and w is not None:\n        if casting_mode ==",
        "eager dW has the wrong x_hat",
        TEST_EAGER,
    ),
    Mutant(
        "A05",
        EAGER,
        ".sum(0).to(w.dtype)\n    return dx, dw\n\n\n",
        ".sum(0)\n    return dx, dw\n\n\n",
        "eager dW has the compute dtype",
        TEST_EAGER,
    ),
    Mutant(
        "A06",
        EAGER,
        "projection = row_mean(m * x_c) * rstd",
        "projection = row_mean(m * x_hat) * rstd",
        "the eager projection has rstd twice",
        TEST_EAGER,
    ),
    Mutant(
        "A07",
        EAGER,
        "rstd = round_all(torch.rsqrt(round_all(mean_square + eps)))",
        "rstd = torch.rsqrt(round_all(mean_square + eps))",
        "eager none does not round rstd",
        TEST_EAGER,
    ),
    Mutant(
        "A08",
        EAGER,
        "dx = rstd * (m - x_hat * (m * x_hat).mean(-1, keepdim=True))",
        "dx = rstd * (m - x_hat.detach() * (m * x_hat).mean(-1, keepdim=True))",
        "the second derivative misses a term",
        TEST_GRADCHECK,
    ),
    Mutant(
        "A09",
        OPS,
        "        dy.copy_(dx)  # type: ignore[arg-type]\n",
        "",
        "eager dX is not written over dY",
        "tests/rmsnorm/torch/test_operators.py",
    ),
    Mutant(
        "M01",
        MODULE,
        '(nn.init.ones_ if self.init_fn == "ones" else nn.init.zeros_)',
        "nn.init.ones_",
        "init_fn is ignored",
        "tests/rmsnorm/torch/test_module.py",
    ),
    Mutant(
        "M02",
        MODULE,
        "            self.in_place,\n            self.row_mode,\n        )\n\n\nclass",
        "            True,\n            self.row_mode,\n        )\n\n\nclass",
        "the module ignores in_place",
        TEST_IN_PLACE + " -k exclusive",
    ),
    Mutant(
        "M03",
        MODULE,
        _FORWARDED,
        _FORWARDED.replace("self.offset", "0.0"),
        "the module ignores the offset",
        "tests/rmsnorm/torch/test_module.py",
    ),
)
