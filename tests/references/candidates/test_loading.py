"""The door to candidates: every kind is called right, in every layout, and its side effects are seen."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from references import arrays
from references.bounds import tolerances
from references.candidates.loading import LoadError, load
from references.candidates.memory import Arguments, place
from references.candidates.outputs import Outputs
from references.candidates.repetition import Behaviour
from references.candidates.signatures import Signature
from references.cells.cell import LAYOUT_CODES, Case, make_inputs
from references.judge.verdict import check

CASE = Case("gemma", 1.0, "float32", "same", True, (2, 3, 8), 1e-5)


@pytest.fixture
def candidate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Put objects into a module and load one of them through the door."""

    def load_object(found: Any, **options: Any) -> Any:
        module = types.ModuleType("a_candidate")
        module.it = found
        monkeypatch.setitem(sys.modules, "a_candidate", module)
        return load("a_candidate:it", **options)

    return load_object


def run(implementation: Any, case: Case = CASE) -> Outputs:
    outputs = implementation.run(case, make_inputs(case))
    assert outputs.error is None, outputs.error
    return outputs


# Layouts


@pytest.mark.parametrize("layout", LAYOUT_CODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_placed_array_is_itself_inside_of_poison(layout: str, dtype: str) -> None:
    values = np.arange(24.0).reshape(2, 3, 4).astype(arrays.numpy_dtype(dtype))
    if layout == "expanded":
        values = np.broadcast_to(values[:1, :1], values.shape)
    placed = place(values, layout)
    np.testing.assert_array_equal(placed.view(), values)
    distinct = np.unique(values).size
    assert np.isnan(placed.storage).sum() == placed.storage.size - distinct
    assert placed.dense == (layout in ("contiguous", "misaligned", "transposed", "heads"))


@pytest.mark.torch
@pytest.mark.parametrize("layout", LAYOUT_CODES)
def test_torch_sees_the_layout_and_the_guard_sees_writes(layout: str) -> None:
    values = np.ones((2, 3, 4), dtype=np.float32)
    placed = place(values, layout)
    before = arrays.bits(placed.storage).copy()
    storage, view = placed.realise("torch", "cpu")
    np.testing.assert_array_equal(arrays.to_numpy(view), values)
    assert placed.changed(before, arrays.bits(arrays.to_numpy(storage))) == (False, False)
    view[0, 0, 0] = 2
    assert placed.changed(before, arrays.bits(arrays.to_numpy(storage))) == (True, False)
    storage[0] = 2  # the guard band
    assert placed.changed(before, arrays.bits(arrays.to_numpy(storage))) == (True, True)


def test_the_dimensions_lie_as_their_names_say() -> None:
    values = np.zeros((2, 3, 5, 4), dtype=np.float32)
    assert place(values, "transposed").strides[-2:] == (1, 5)
    assert place(values, "heads").strides == (60, 4, 12, 1)
    assert place(values, "column_strided").strides == (120, 40, 8, 2)
    assert place(values, "row_strided").strides[-2] > 4
    assert place(values, "misaligned").offset % 2 == 1
    assert place(values, "expanded").strides == (0, 0, 0, 1)


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (5,), (2, 0, 3)])
def test_a_single_row_or_none_is_dense_in_every_layout_it_can_have(shape: tuple[int, ...]) -> None:
    assert place(np.ones(shape, dtype=np.float32), "contiguous").dense
    if 1 in shape or 0 in shape:
        assert place(np.ones(shape, dtype=np.float32), "row_strided").dense


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="no layout 'diagonal'"):
        place(np.ones(3), "diagonal")


# Signatures


def test_arguments_are_matched_by_meaning() -> None:
    def function(Input, gamma=7, *, Epsilon, IN_PLACE=False, weight):
        raise AssertionError

    signature = Signature(function)
    assert signature.meanings == {"x", "eps", "in_place", "w"}
    assert signature.bind({"x": 1, "w": 2, "eps": 3}) == (
        [1, 7],
        {"Epsilon": 3, "IN_PLACE": False, "weight": 2},
    )


@pytest.mark.parametrize(
    ("function", "first", "meanings"),
    [
        (lambda x, gamma, epsilon: x, "x", ["x", "w", "eps"]),
        (lambda inp, scale, norm_eps: inp, "x", ["x", "w", "eps"]),
        (lambda a, g, eps: a, "x", ["x", "w", "eps"]),  # whatever the input is called, it comes first
        (lambda temperature=1.0, x=None: x, "x", [None, "x"]),
        (lambda dim, eps: dim, "hidden_size", ["hidden_size", "eps"]),
        (lambda width, eps: width, "hidden_size", ["hidden_size", "eps"]),
        (lambda d_model, dtype=None: d_model, "hidden_size", ["hidden_size", "dtype"]),
        (lambda normalized_shape, eps: eps, "", ["normalized_shape", "eps"]),
    ],
)
def test_arguments_as_kernel_authors_call_them(function: Callable, first: str, meanings: list[str | None]) -> None:
    signature = Signature(function, first=first)
    values = {meaning: meaning for meaning in meanings if meaning}
    default = [None if meaning else 1.0 for meaning in meanings]
    assert signature.bind(values)[0] == [m or d for m, d in zip(meanings, default, strict=True)]
    assert signature.meanings == set(values)


def test_a_needed_argument_without_meaning_is_named() -> None:
    with pytest.raises(ValueError, match="'temperature' means nothing"):
        Signature(lambda x, temperature: x)
    with pytest.raises(ValueError, match="no value for its argument 'rstd'"):
        Signature(lambda x, rstd: x).bind({"x": 1})


# The kinds of candidates


@pytest.mark.parametrize(
    "target",
    [
        "references.numpy_reference",
        pytest.param("references.torch_reference", marks=pytest.mark.torch),
        pytest.param("references.jax_reference", marks=pytest.mark.jax),
    ],
)
@pytest.mark.parametrize("weight", ["same", "float32", "none"])
def test_pairs_of_forward_and_backward_in_three_libraries(target: str, weight: str) -> None:
    case = Case("llama", 0.5, "bfloat16", weight, False, (2, 3, 8), 1e-5, dy_layout="column_strided")
    implementation = load(target)
    outputs = run(implementation, case)
    assert implementation.ignored == ("in_place", "row_mode")
    assert outputs.y is not None and outputs.rstd is not None and outputs.dx is not None
    assert (arrays.dtype_name(outputs.y), arrays.dtype_name(outputs.rstd)) == ("bfloat16", "float32")
    assert outputs.rstd.shape == (2, 3)
    assert (outputs.dw is None) == (weight == "none")
    assert outputs.contract is not None and outputs.contract.changed == () and not outputs.contract.dy_dense


@pytest.mark.torch
def test_all_torch_kinds_give_the_same(candidate: Callable[..., Any]) -> None:
    import torch

    def function(x, weight, eps, offset=0.0, casting_mode="llama"):
        assert casting_mode == "gemma"
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight + offset, eps)

    class Norm(torch.nn.Module):
        def __init__(self, hidden_size, eps, offset=0.0, casting_mode="llama"):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(hidden_size))
            self.settings = eps, offset, casting_mode

        def forward(self, x):
            return function(x, self.weight, *self.settings)

    class Gains(torch.nn.Module):  # a parameter and a size under names of its own
        def __init__(self, width, eps, offset=0.0, casting_mode="llama"):
            super().__init__()
            self.gain = torch.nn.Parameter(torch.ones(width))
            self.settings = eps, offset, casting_mode

        def forward(self, x):
            return function(x, self.gain, *self.settings)

    class OwnFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx, X, W, eps, offset, casting_mode):
            rstd = (X.square().mean(-1) + eps).rsqrt()
            ctx.save_for_backward(X, W, rstd)
            ctx.settings = eps, offset, casting_mode
            return function(X, W, eps, offset, casting_mode)

        @staticmethod
        def backward(ctx, dy):
            x, w, _ = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            with torch.enable_grad():
                return *torch.autograd.grad(function(x, w, *ctx.settings), (x, w), dy), None, None, None

    class Separate(torch.autograd.Function):
        @staticmethod
        def forward(X, W, eps, offset, casting_mode):
            return function(X, W, eps, offset, casting_mode)

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, w, *ctx.settings = inputs
            ctx.save_for_backward(x, w)

        @staticmethod
        def backward(ctx, dy):
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            with torch.enable_grad():
                return *torch.autograd.grad(function(x, w, *ctx.settings), (x, w), dy), None, None, None

    expected = run(candidate(function))
    assert expected.rstd is None and expected.dx is not None and expected.dw is not None
    for kind in (Norm, Gains, OwnFunction, Separate):
        outputs = run(candidate(kind))
        for name in ("y", "dx", "dw"):
            np.testing.assert_array_equal(getattr(outputs, name), getattr(expected, name))
        if kind is OwnFunction:
            about = {"eps": CASE.eps, "offset": CASE.offset, "casting_mode": str(CASE.casting_mode)}
            inputs = make_inputs(CASE)
            bound = tolerances.forward_bounds(inputs.x, inputs.w, **about)["rstd"]
            assert (bound.ratio(outputs.rstd) <= 1).all()
        else:
            assert outputs.rstd is None


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(8, 8), (5, 1)])
def test_copies_of_x_and_w_are_not_taken_for_rstd(candidate: Callable[..., Any], shape: tuple) -> None:
    import torch

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, eps, offset, casting_mode):
            ctx.save_for_backward(x.clone(), w.clone())
            return x * 1

        @staticmethod
        def backward(ctx, dy):
            return dy, dy.sum(0), None, None, None

    case = Case("gemma", 0.0, "float32", "same", True, shape, 1e-5)
    assert run(candidate(Saves), case).rstd is None


# What a signature cannot express


@pytest.mark.torch
def test_what_cannot_be_expressed_is_unsupported_with_its_reason(candidate: Callable[..., Any]) -> None:
    import torch

    inputs = make_inputs(CASE)
    modeless = candidate(torch.nn.functional.rms_norm)
    assert modeless.run(CASE, inputs).unsupported == "no casting_mode argument"
    fixed = candidate(torch.nn.functional.rms_norm, fixed_mode="gemma")
    assert fixed.run(CASE, inputs).unsupported == "no offset argument"
    assert candidate(lambda x, w, casting_mode: x).run(CASE, inputs).unsupported == "no eps argument"
    assert candidate(lambda x, eps, offset, casting_mode: x).run(CASE, inputs).unsupported == "no weight argument"
    llama = Case("llama", 0.0, "float32", "none", True, (2, 8), 1e-5)
    assert "computes gemma" in fixed.run(llama, make_inputs(llama)).unsupported

    class Norm(torch.nn.Module):
        def __init__(self, hidden_size, eps, offset, casting_mode):
            super().__init__()

    assert candidate(Norm).run(llama, make_inputs(llama)).unsupported == "no elementwise_affine argument"


@pytest.mark.torch
def test_a_mode_fixed_by_the_caller_makes_torch_judgeable() -> None:
    case = Case("gemma", 0.0, "float32", "same", True, (2, 3, 8), 1e-5)
    outputs = run(load("torch.nn.functional:rms_norm", fixed_mode="gemma"), case)
    assert outputs.y is not None and outputs.dx is not None and outputs.dw is not None


@pytest.mark.torch
def test_exceptions_are_reported_not_raised(candidate: Callable[..., Any]) -> None:
    def fails(x, w, eps, offset, casting_mode):
        raise RuntimeError("out of registers")

    outputs = candidate(fails).run(CASE, make_inputs(CASE))
    assert outputs.error == "RuntimeError: out of registers" and outputs.contract is None


# What a run does to its arguments


@pytest.mark.torch
@pytest.mark.parametrize("layout", LAYOUT_CODES)
def test_memory_that_was_freed_and_taken_again_is_not_taken_for_the_lent_one(layout: str) -> None:
    import torch

    # Two rows of 128 columns: a dense result would be as long as one expanded row with its guard bands.
    case = Case("llama", 0.0, "float32", "same", True, (1, 2, 1, 128), 1e-5, dy_layout=layout)
    arguments = Arguments(case, make_inputs(case), "torch", "cpu")
    lent = arguments.lend("dy")
    assert lent.untyped_storage().nbytes() > torch.zeros(case.shape).untyped_storage().nbytes()
    assert arguments.observe({}, {"dx": lent}).shares_storage == (("dx", "dy"),)


@pytest.mark.torch
def test_writes_and_shared_storage_are_observed(candidate: Callable[..., Any]) -> None:
    import torch

    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, eps, offset, casting_mode):
            ctx.x = x.detach()
            return x.detach().clone()

        @staticmethod
        def backward(ctx, dy):
            ctx.x[0, 0, 0] += 1
            dy.as_strided((1,), (1,), dy.storage_offset() - 1).fill_(0)
            return dy.mul_(2), dy.sum((0, 1)), None, None, None

    contract = run(candidate(Writes)).contract
    assert contract is not None
    assert set(contract.changed) == {"x", "dy"}
    assert contract.changed_outside == ("dy",)
    assert contract.shares_storage == (("dx", "dy"),)


def test_numpy_candidates_are_observed_too(candidate: Callable[..., Any]) -> None:
    class Pair:
        @staticmethod
        def forward(x, w, eps, offset, casting_mode):
            return x[:]

        @staticmethod
        def backward(dy, x, w):
            x[...] = 0
            return dy, None

    contract = run(candidate(Pair)).contract
    assert contract is not None
    assert set(contract.changed) == {"x", "y"}
    assert set(contract.shares_storage) == {("y", "x"), ("dx", "dy")}


# Targets that cannot be loaded


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module:f", "No module named"),
        ("math:no_such_name", "no attribute"),
        ("references.spec", "neither a callable nor a pair"),
        ("references.spec:DTYPES", "neither a callable nor a pair"),
        ("gc:isenabled", "no argument for the input"),
        ("shutil:copyfile", "means nothing here"),
        ("", "Empty module name"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_line(target: str, reason: str) -> None:
    with pytest.raises(LoadError, match=reason) as raised:
        load(target)
    assert "\n" not in str(raised.value)


@pytest.mark.interpret
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(LoadError, match="no GPU"):
        load("references.torch_reference", device="cuda")


def test_layout_and_dtype_of_every_pair_reach_a_numpy_candidate(candidate: Callable[..., Any]) -> None:
    seen = []

    class Pair:
        @staticmethod
        def forward(x, w, eps, offset, casting_mode):
            seen.append(x.strides)
            return x * 1

        @staticmethod
        def backward(dy, x, w):
            seen.append(dy.strides)
            return dy * 1, w * 1

    implementation = candidate(Pair)
    for x_layout, dy_layout in itertools.product(LAYOUT_CODES, repeat=2):
        case = Case("llama", 0, "float32", "same", True, (2, 3, 4), 1, x_layout=x_layout, dy_layout=dy_layout)
        run(implementation, case)
        assert seen[-2:] == [
            tuple(4 * s for s in place(np.ones(case.shape), layout).strides) for layout in (x_layout, dy_layout)
        ]


# With a residual

STREAM = Case("gemma", 1.0, "float32", "same", False, (2, 3, 8), 1e-5, residual=True)


@pytest.mark.torch
@pytest.mark.parametrize("library", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.jax)])
def test_a_pair_with_a_residual_is_judged_in_every_library(library: str) -> None:
    implementation = load(f"references.{library}_reference:FusedAdd")
    assert implementation.arrays == library and implementation.residual == (True,)
    verdict = check(implementation, STREAM, repeat=True)
    assert verdict.status == "pass", verdict.findings
    assert set(verdict.measures) == {"y", "s", "rstd", "dx", "dr", "dw"} and verdict.behaviour == Behaviour()
    refused = check(implementation, CASE)
    assert (refused.status, refused.reason) == ("unsupported", "needs a residual")


@pytest.mark.jax
def test_a_function_in_jax_with_a_residual_is_judged(candidate: Callable[..., Any]) -> None:
    import jax
    import jax.numpy as jnp

    def fused(x: Any, residual: Any, w: Any, eps: float, offset: float) -> Any:
        s = x + residual
        return s * jax.lax.rsqrt(jnp.square(s).mean(-1, keepdims=True) + eps) * (w + offset), s

    verdict = check(candidate(fused, fixed_mode="gemma"), STREAM)
    assert verdict.status == "pass" and set(verdict.measures) == {"y", "s", "dx", "dr", "dw"}, verdict.findings


def test_a_function_in_numpy_with_a_residual_is_judged(candidate: Callable[..., Any]) -> None:
    def fused(x: Any, r: Any, w: Any, eps: float, offset: float) -> Any:
        s = x + r
        return s / np.sqrt(np.square(s).mean(-1, keepdims=True) + np.float32(eps)) * (w + np.float32(offset)), s

    verdict = check(candidate(fused, fixed_mode="gemma"), STREAM)
    assert verdict.status == "pass" and set(verdict.measures) == {"y", "s"}, verdict.findings


def test_who_takes_no_residual_is_not_asked_for_one(candidate: Callable[..., Any]) -> None:
    implementation = candidate(lambda x, w, eps: x)
    assert implementation.residual == (False,)
    assert implementation.with_mode("gemma").run(STREAM, make_inputs(STREAM)).unsupported == "no offset argument"
    plain = dataclasses.replace(STREAM, offset=0.0)
    assert implementation.with_mode("gemma").run(plain, make_inputs(plain)).unsupported == "no residual argument"


@pytest.mark.torch
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("written", ["x", "r", "dy", "ds"])
def test_what_a_fused_norm_writes_is_seen(written: str, in_place: bool, candidate: Callable[..., Any]) -> None:
    import torch

    from tests.references.candidates.strangers.residual import Fused

    class Writes(Fused):
        @classmethod
        def forward(cls, ctx: Any, x: Any, r: Any, w: Any, eps: float, offset: float) -> Any:
            cls.given = {"x": x.detach(), "r": r.detach()}
            return super().forward(ctx, x, r, w + offset, eps)

        @classmethod
        def backward(cls, ctx: Any, dy: Any, ds: Any) -> Any:
            given = cls.given | {"dy": dy, "ds": ds}
            dx, _, dw, _ = super().backward(ctx, dy, ds)
            dx = given[written].copy_(dx) if written in ("dy", "ds") else dx
            given[written].add_(written in ("x", "r"))
            return dx, dx, dw, None, None

    implementation = candidate(Writes, fixed_mode="gemma")
    outputs = run(implementation, dataclasses.replace(STREAM, in_place=in_place))
    assert outputs.contract is not None and outputs.contract.changed == (written,)
    verdict = check(implementation, dataclasses.replace(STREAM, in_place=in_place))
    permitted = written == "dy" and in_place
    assert ({f.check for f in verdict.findings} == set()) == permitted, verdict.findings
    assert permitted or {f.check for f in verdict.findings} == {"contract"}
    assert torch.is_grad_enabled()


@pytest.mark.torch
def test_a_module_is_called_with_both_by_name(candidate: Callable[..., Any]) -> None:
    import torch

    from tests.references.candidates.strangers.residual import Fused

    class Swapped(torch.nn.Module):
        def __init__(self, hidden_size: int, eps: float) -> None:
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(hidden_size)), eps

        def forward(self, residual: Any, hidden_states: Any) -> Any:
            return Fused.apply(hidden_states, residual, self.weight, self.eps)

    plain = dataclasses.replace(STREAM, offset=0.0, x_layout="transposed", r_layout="row_strided")
    assert check(candidate(Swapped, fixed_mode="gemma"), plain).status == "pass"


@pytest.mark.torch
def test_the_layout_of_r_and_ds_reaches_a_candidate(candidate: Callable[..., Any]) -> None:
    from tests.references.candidates.strangers.residual import Fused

    seen: dict[str, tuple[int, ...]] = {}

    class Looks(Fused):
        @classmethod
        def forward(cls, ctx: Any, x: Any, r: Any, w: Any, eps: float) -> Any:
            seen["r"] = r.stride()
            return super().forward(ctx, x, r, w, eps)

        @classmethod
        def backward(cls, ctx: Any, dy: Any, ds: Any) -> Any:
            seen["ds"] = ds.stride()
            return super().backward(ctx, dy, ds)

    plain = dataclasses.replace(STREAM, offset=0.0)
    for r_layout, ds_layout in itertools.permutations(("contiguous", "transposed", "expanded"), 2):
        run(candidate(Looks, fixed_mode="gemma"), dataclasses.replace(plain, r_layout=r_layout, ds_layout=ds_layout))
        values = np.broadcast_to(np.float32(1), STREAM.shape)
        assert seen == {"r": place(values, r_layout).strides, "ds": place(values, ds_layout).strides}


def test_a_pair_without_an_s_is_told_so(candidate: Callable[..., Any]) -> None:
    from references import numpy_reference

    def forward(x: Any, r: Any, w: Any, eps: float, offset: float, casting_mode: str) -> Any:
        about = {"eps": eps, "offset": offset, "casting_mode": casting_mode}
        return numpy_reference.FusedAdd.forward(x, r, w, **about)[0], None

    pair = types.SimpleNamespace(forward=forward, backward=lambda dy, x: (dy, dy[0, 0]))
    findings = check(candidate(pair, array_library="numpy"), STREAM).findings
    assert [str(f) for f in findings if f.check == "run"] == ["run: s: nothing was returned"]
