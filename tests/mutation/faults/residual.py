"""Faults of the residual stream (RS): the sum, its gradient, and their way through launch, operators and autograd."""

from __future__ import annotations

from tests.mutation.mutant import STATIC, Mutant

KERNELS, FEW, SPLIT = (f"rmsnorm/fused/{name}.py" for name in ("kernels", "few_rows_kernels", "split_kernels"))
LAUNCH, PLANS, TILES = (f"rmsnorm/fused/{name}.py" for name in ("launch", "plans", "tiles"))
OPS, FUNCTION, EAGER, CHECKS, TRANSFORMS, NESTED, MODULE = (
    f"rmsnorm/{name}.py" for name in ("ops", "function", "eager", "checks", "transforms", "nested", "module")
)
TESTS = "tests/rmsnorm/torch/test_residual.py"
GUARD_PAGES = "tests/rmsnorm/triton/test_hard_inputs.py::test_guard_pages"
PROGRAMS = "tests/rmsnorm/torch/test_residual_programs.py"

_SUM = "(x.to(C_DTYPE) + r.to(C_DTYPE)).to(x.dtype)"
_LOAD_R = "_load_rows(r_ptr, rows, r_row_steps"
_STORE_HELD = "_store_rows(s_ptr, rows, n_cols, cols, mask, held_x[chunk])"
_STORE_STREAMED = "_store_rows(s_ptr, rows, n_cols, cols, mask, x)"
_ADD_DS = "dx += _load_rows(ds_ptr, rows, ds_row_steps, cols, mask"
_LOAD_DS = "_load_slice(ds_ptr, row, ds_row_steps, cols"
_BITS = "bits_of and kernels and bfloat16 and same"
_NEEDS = "_gradients(ctx, grads, needs_dx or needs_dr, needs_dw)"


def _fault(number: int, file: str, old: str, new: str, fault: str, select: str, tests: str = TESTS) -> Mutant:
    return Mutant(f"RS{number:02}", file, old, new, fault, f"{tests} -k {select}")


MUTANTS = (
    _fault(1, KERNELS, _SUM, "x.to(C_DTYPE) + r.to(C_DTYPE)", "the sum is not rounded before the norm", _BITS),
    *(
        Mutant(f"RS{number}", file, old, old.replace("mask", everywhere), f"{what} is read beyond its end", GUARD_PAGES)
        for number, file, old, everywhere, what in (
            (41, KERNELS, f"{_LOAD_R}, cols, mask", "cols[None, :] >= 0", "r"),
            (42, KERNELS, _ADD_DS, "cols[None, :] >= 0", "dS"),
            (43, SPLIT, f"{_LOAD_DS}, mask", "cols >= 0", "dS of split rows"),
        )
    ),
    Mutant("RS02", KERNELS, _SUM, "x + r", "the sum is taken in x's dtype", STATIC),
    _fault(3, KERNELS, _STORE_HELD, "pass", "the held chunks of s are not stored", _BITS),
    _fault(4, KERNELS, _STORE_STREAMED, "pass", "the streamed chunks of s are not stored", "forward_tiles"),
    _fault(5, KERNELS, _LOAD_R, "_load_rows(r_ptr, rows, x_row_steps", "r is read with x's stride", "row_strides"),
    _fault(6, KERNELS, _LOAD_R, "_load_rows(x_ptr, rows, x_row_steps", "x is added to itself", _BITS),
    _fault(
        7,
        KERNELS,
        _STORE_STREAMED,
        _STORE_STREAMED.replace("cols, mask", "cols + 1, mask"),
        "s is shifted",
        "forward_tiles",
    ),
    _fault(8, KERNELS, _ADD_DS, _ADD_DS.replace("+= ", "+= 0.0 * "), "dS is lost", _BITS),
    _fault(9, KERNELS, _ADD_DS, _ADD_DS.replace("+= ", "= _round(dx, X_DTYPE) + "), "dX is rounded twice", _BITS),
    _fault(10, KERNELS, _ADD_DS, _ADD_DS.replace("ds_row", "dy_row"), "dS has the stride of dY", "row_strides"),
    _fault(11, KERNELS, _ADD_DS, _ADD_DS.replace("rows, ", "rows * 0, "), "dS of another row", _BITS),
    _fault(12, KERNELS, _ADD_DS, _ADD_DS.replace("(ds_ptr", "(dy_ptr"), "dY is added for dS", _BITS),
    _fault(
        13, FEW, "HAS_WEIGHT, HAS_DS, True", "HAS_WEIGHT, False, True", "few rows lose dS", "backward_tiles and FewRows"
    ),
    _fault(
        14,
        FEW,
        "dy_ptr, ds_ptr, x_ptr, w_ptr, rstd",
        "dy_ptr, dy_ptr, x_ptr, w_ptr, rstd",
        "dY for dS",
        "backward_tiles and FewRows",
    ),
    _fault(
        15,
        FEW,
        "dy_row_steps, ds_row_steps, x_row_steps, n_rows,\n            n_cols",
        "dy_row_steps, dy_row_steps, x_row_steps, n_rows,\n            n_cols",
        "dS's stride is dY's",
        "row_strides",
    ),
    _fault(
        16,
        SPLIT,
        "        dx += ds\n",
        "        dx += 0.0 * ds\n",
        "split rows lose dS",
        "backward_tiles and SplitConfig",
    ),
    _fault(
        17,
        SPLIT,
        "        dx += ds\n",
        "        dx = dx.to(X_DTYPE).to(C_DTYPE) + ds\n",
        "dX of split rows is rounded twice",
        "rounds_once and SplitConfig",
    ),
    _fault(
        18,
        SPLIT,
        _LOAD_DS,
        _LOAD_DS.replace("row, ", "row * 0, "),
        "split rows take dS of another",
        "backward_tiles and SplitConfig",
    ),
    _fault(
        19,
        SPLIT,
        _LOAD_DS,
        _LOAD_DS.replace("ds_row_steps", "0"),
        "dS of split rows has no stride",
        "backward_tiles and SplitConfig",
    ),
    _fault(
        20,
        LAUNCH,
        "    if copies_r and r is not None:\n        r = r.contiguous()\n",
        "",
        "r's copy",
        "layouts and kernels and column",
    ),
    _fault(
        21,
        LAUNCH,
        "    if copies_ds and ds is not None:\n        ds = ds.contiguous()\n",
        "",
        "dS's copy",
        "layouts and kernels and column",
    ),
    _fault(
        22,
        PLANS,
        "math.gcd(16 // itemsize, *known)",
        "math.gcd(16 // itemsize, known[0], *known[2:])",
        "the alignment of r and dS is not asked",
        "row_strides",
    ),
    _fault(23, TILES, ' + entry["reload_weight"] + has_ds', ' + entry["reload_weight"]', "dS has no memory", "a_tile"),
    _fault(
        24, OPS, "s = x.contiguous() + r.contiguous()", "s = x + r", "eager S has the strides of x", "layouts and eager"
    ),
    _fault(
        25,
        EAGER,
        "dx = dx + ds.to(c_dtype)",
        "dx = dx.to(x.dtype).to(c_dtype) + ds.to(c_dtype)",
        "eager dX is rounded twice",
        _BITS.replace("kernels", "eager"),
    ),
    _fault(
        26,
        OPS,
        "ddx if ctx.needs_input_grad[4] else None",
        "None",
        "the derivative for dS is lost",
        "second_derivatives",
    ),
    _fault(27, OPS, "dx if needs_dr else None, dw, None", "None, dw, None", "the operator loses dR", "operator"),
    _fault(28, FUNCTION, "dX if needs_dr else None", "None", "dR is lost", _BITS),
    _fault(
        29, FUNCTION, _NEEDS, _NEEDS.replace(" or needs_dr", ""), "dR is lost where X needs no gradient", "unneeded"
    ),
    _fault(30, OPS, "if ds is None or not needs_dx:", "if True:", "dS is lost under create_graph", "create_graph"),
    _fault(
        31, FUNCTION, "dX: torch.Tensor | None = dS", "dX: torch.Tensor | None = None", "dS alone is lost", "absent"
    ),
    _fault(
        32,
        FUNCTION,
        "ctx.save_for_backward(S, W, RSTD)",
        "ctx.save_for_backward(S.clone(), W, RSTD)",
        "an S that was overwritten is not noticed",
        "overwritten",
    ),
    _fault(33, OPS, "r, w, *settings, needs_rstd=False)", "r, w, *settings)", "RSTD that nobody needs", "nobody"),
    _fault(34, CHECKS, '    check_like_x("R", r, x)\n', "", "R may have any shape", "typed_line"),
    _fault(35, CHECKS, '    check_tensor("R", r)\n', "", "R may be anything", "typed_line"),
    _fault(
        36,
        OPS,
        "    check_residual(r, x)\n    return _add_and_normalize(x, r, w, *settings, needs_rstd=False)",
        "    return _add_and_normalize(x, r, w, *settings, needs_rstd=False)",
        "R is not checked where nobody needs a gradient",
        "typed_line",
    ),
    _fault(
        44,
        OPS,
        "_forward(x, r, w, *settings)\n    check_inputs(x, w)\n    check_residual(r, x)\n",
        "_forward(x, r, w, *settings)\n    check_inputs(x, w)\n",
        "R is not checked where somebody needs a gradient",
        "typed_line",
    ),
    _fault(
        37,
        TRANSFORMS,
        "_rounded(x.to(c_dtype) + r.to(c_dtype), x.dtype)",
        "x.to(c_dtype) + r.to(c_dtype)",
        "a transform normalizes the unrounded sum",
        "transform",
        PROGRAMS,
    ),
    _fault(
        38,
        TRANSFORMS,
        "vjp((dy,) if ds is None else (dy, ds))",
        "vjp((dy,) if ds is None else (dy, 0.0 * ds))",
        "vmap over the backward loses dS",
        "vmap_over",
        PROGRAMS,
    ),
    _fault(
        39, NESTED, "if t.shape != x.shape:", "if False:", "sequences of other lengths are added", "jagged", PROGRAMS
    ),
    _fault(40, MODULE, "in_place: bool = False", "in_place: bool = True", "the default of in_place", "the_module"),
)
