"""Programs around the fused addition and norm: compiled, exported, traced, transformed, nested; each beside `x + r`."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import func, nn

from references import arrays
from references.bounds import tolerances
from rmsnorm import (
    LigerFusedAddRMSNorm,
    LigerFusedAddRMSNormFunction,
    LigerRMSNorm,
    liger_fused_add_rms_norm,
    liger_rms_norm,
)
from rmsnorm.fused import launch
from tests.rmsnorm.torch.dispatch import Passing
from tests.rmsnorm.torch.test_programs import TRANSFORMS, assert_close, assert_same, gradients

H, EPS, OFFSET = 16, 1e-3, 0.5
MODES = ("llama", "gemma", "none")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of prototypes
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def assert_within_bounds(
    found: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor], s: torch.Tensor, w: torch.Tensor, mode: str
) -> None:
    """dX, dR and dW of dY and dS."""
    dy, ds, s, w = (arrays.to_numpy(t.detach()) for t in (*upstream, s, w))
    bounds = tolerances.backward_bounds(dy, s, w, eps=EPS, offset=OFFSET, casting_mode=mode, ds=ds)
    for name, gradient in zip(("dx", "dr", "dw"), found, strict=True):
        assert (bounds[name].ratio(arrays.to_numpy(gradient)) <= 1).all(), name


@pytest.fixture(autouse=True)
def eager_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "INTERPRETED", False)
    torch.manual_seed(0)
    torch.compiler.reset()


class Block(nn.Module):
    """Two layers on a residual stream, fused or not: the same computation."""

    def __init__(self, fused: bool, **settings: Any) -> None:
        super().__init__()
        kind = LigerFusedAddRMSNorm if fused else LigerRMSNorm
        self.norm, self.last = (kind(H, EPS, OFFSET, **settings) for _ in range(2))
        self.first, self.second = nn.Linear(H, H), nn.Linear(H, H)

    def add(self, norm: nn.Module, x: torch.Tensor, r: torch.Tensor) -> Any:
        if isinstance(norm, LigerFusedAddRMSNorm):
            return norm(x, r)
        s = x + r
        return norm(s), s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, s = self.add(self.norm, self.first(x), x)
        y, s = self.add(self.last, self.second(y), s)
        return y * s


def blocks(**settings: Any) -> tuple[Block, Block]:
    fused, plain = Block(True, **settings), Block(False, **settings)
    nn.init.normal_(fused.norm.weight)
    plain.load_state_dict(fused.state_dict())
    return fused, plain


def call(norm: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    w = torch.randn(H, generator=torch.Generator().manual_seed(1))

    def run(x: torch.Tensor) -> torch.Tensor:
        y, s = norm(x.sin(), x.cos(), w, EPS, OFFSET)
        return y * s

    return run


def unfused(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor | None, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    s = x + r
    return liger_rms_norm(s, w, *rest), s


DOORS = {"function": liger_fused_add_rms_norm, "apply": LigerFusedAddRMSNormFunction.apply}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_block_is_the_eager_one(mode: str, dynamic: bool) -> None:
    fused, plain = blocks(casting_mode=mode)
    for block in (fused, plain):
        run = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for n_rows in (3, 5):
            x = torch.randn(n_rows, H)
            assert_same(gradients(run, x), gradients(plain, x))
        with torch.no_grad():
            assert_same(run(x), plain(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("uses", ["y", "s", "both"])
def test_a_compiled_call_keeps_the_gradients_of_what_is_used(uses: str, door: str, backend: str) -> None:
    def loss(norm: Any, x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y, s = norm(x, r, w, EPS, OFFSET)
        return {"y": y.sin(), "s": s.sin() + 0.0 * w, "both": (y * s).sin()}[uses].sum()

    leaves = [torch.randn(*shape).requires_grad_() for shape in ((3, H), (3, H), (H,))]
    compiled = torch.compile(lambda *t: loss(DOORS[door], *t), backend=backend, fullgraph=True)
    got = torch.autograd.grad(compiled(*leaves), leaves)
    assert_same(got, torch.autograd.grad(loss(unfused, *leaves), leaves))


def test_inductor_compiles_a_block() -> None:
    fused, plain = blocks()
    x = torch.randn(3, H)
    assert_close(gradients(torch.compile(fused, backend="inductor"), x), gradients(plain, x))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_transform_is_that_of_addition_and_norm(transform: str, compiles: bool, door: str) -> None:
    program, wanted = (TRANSFORMS[transform](call(norm)) for norm in (DOORS[door], unfused))
    x = torch.randn(2, H)
    if compiles:
        program = torch.compile(program, backend="aot_eager")
    assert_same(program(x), wanted(x))
    assert wanted(x).abs().max() > 1e-3, "the case shows nothing"


@pytest.mark.parametrize("mode", MODES)
def test_a_transform_has_the_bits_of_the_function_and_gradients_within_bounds(mode: str) -> None:
    x, r, dy, ds = (torch.randn(3, H).bfloat16() for _ in range(4))
    w = torch.randn(H).bfloat16()
    norm = lambda *t: liger_fused_add_rms_norm(*t, EPS, OFFSET, mode)  # noqa: E731
    (y, s), back = func.vjp(norm, x, r, w)
    leaves = [t.clone().requires_grad_() for t in (x, r, w)]
    results = norm(*leaves)
    assert torch.equal(s, x + r) and torch.equal(s, results[1]) and torch.equal(y, results[0])
    assert_within_bounds(back((dy, ds)), (dy, ds), s, w, mode)
    (tangent,) = (func.jvp(norm, (x, r, w), (dy, ds, torch.zeros_like(w)))[1][1],)
    assert torch.equal(tangent, dy + ds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_vmap_over_the_backward(dtype: torch.dtype) -> None:
    leaves = [torch.randn(*shape).to(dtype).requires_grad_() for shape in ((3, H), (3, H), (H,))]
    results = liger_fused_add_rms_norm(*leaves, EPS, OFFSET)
    batch = [torch.randn(2, 3, H).to(dtype) for _ in range(2)]

    def gradient(*upstream: torch.Tensor) -> Any:
        return torch.autograd.grad(results, leaves, upstream, retain_graph=True)

    got = func.vmap(gradient)(*batch)
    legacy = torch.autograd.grad(results, leaves, batch, retain_graph=True, is_grads_batched=True)
    for i in range(2):
        for found in (got, legacy):
            assert_within_bounds([t[i] for t in found], [b[i] for b in batch], results[1], leaves[2], "llama")


def test_per_sample_gradients() -> None:
    fused, plain = blocks()
    parameters = {name: p.detach() for name, p in fused.named_parameters()}
    x = torch.randn(3, H)
    found = []
    for module in (fused, plain):
        loss = lambda p, x, m=module: func.functional_call(m, p, (x,)).sin().sum()  # noqa: E731
        found.append(func.vmap(func.grad(loss), in_dims=(None, 0))(parameters, x))
    assert_same(*found)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_trains(strict: bool) -> None:
    fused, plain = blocks()
    x = torch.randn(3, H)
    exported = torch.export.export(fused, (x,), strict=strict)
    assert "rmsnorm.add_rms_norm_forward" in str(exported.graph)
    program = exported.module()
    assert_same(program(x), plain(x))
    assert_same(gradients(program, x), gradients(plain, x))
    found = []
    for module in (program, plain):
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(module(leaf).sin().sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), leaf)[0])
    assert_same(*found)


def test_a_traced_program_holds_no_operator_of_ours_and_trains() -> None:
    fused, plain = blocks()
    traced = torch.jit.trace(fused, (torch.randn(3, H),))
    assert "rmsnorm::" not in str(traced.inlined_graph)
    other = torch.randn(5, H)
    assert_close(gradients(traced, other), gradients(plain, other))


def test_fx_records_one_call() -> None:
    fused, plain = blocks()
    traced, x = torch.fx.symbolic_trace(fused), torch.randn(3, H)
    calls = [node for node in traced.graph.nodes if node.target is liger_fused_add_rms_norm]
    assert len(calls) == 2
    assert_same(gradients(traced, x), gradients(plain, x))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dynamo", [False, True])
def test_an_onnx_model_has_the_same_numbers(dynamo: bool, mode: str) -> None:
    pytest.importorskip("onnx", reason="needs onnx, of the dependency group onnx")
    if dynamo and importlib.util.find_spec("onnxscript") is None:
        pytest.skip("needs onnxscript, of the dependency group onnx")
    import onnx
    from onnx.reference import ReferenceEvaluator

    fused, plain = (block.eval() for block in blocks(casting_mode=mode))
    x = torch.randn(3, H)
    if dynamo:
        proto = torch.onnx.export(fused, (x,), dynamo=True, verbose=False).model_proto
    else:
        buffer = io.BytesIO()
        torch.onnx.export(fused, (x,), buffer, dynamo=False)
        proto = onnx.load_from_string(buffer.getvalue())
    (got,) = ReferenceEvaluator(proto).run(None, {proto.graph.input[0].name: x.numpy()})
    assert_close(torch.from_numpy(got), plain(x).detach())


def nested(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(n, H) for n in lengths], layout=torch.jagged)


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_jagged_tensors_are_added_and_normalized_row_by_row(way: str) -> None:
    ours = LigerFusedAddRMSNorm(H, EPS)
    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if way == "compiled" else ours
    x = nested((2, 5, 1))
    r = torch.nested.nested_tensor_from_jagged(torch.randn(8, H), x.offsets())
    found = []
    for norm in (run, lambda x, r: unfused(x, r, None, EPS)):
        leaves = [t.detach().clone().requires_grad_() for t in (x, r)]
        y, s = norm(*leaves)
        assert torch.equal(y.offsets(), x.offsets()) and s.shape == x.shape
        (y.values().sin() + s.values().cos()).sum().backward()
        found.append((y.values().detach(), s.values().detach(), *(leaf.grad.values() for leaf in leaves)))
    assert_same(*found)


def test_jagged_tensors_of_other_lengths_are_one_typed_line() -> None:
    for r, error in ((nested((5, 2, 1)), ValueError), (torch.randn(8, H), TypeError)):
        with pytest.raises(error, match="R must") as caught:
            liger_fused_add_rms_norm(nested((2, 5, 1)), r, None, EPS)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("interpreted", [False, pytest.param(True, marks=pytest.mark.interpret)])
def test_a_dispatch_mode_sees_an_operator_for_forward_and_backward(
    interpreted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "INTERPRETED", interpreted)
    leaves = [torch.randn(*shape, requires_grad=True) for shape in ((144, H), (144, H), (H,))]
    wanted = torch.autograd.grad(sum(t.sin().sum() for t in liger_fused_add_rms_norm(*leaves, EPS)), leaves)
    with Passing() as mode:  # in place is permitted, and no operator does so
        got = torch.autograd.grad(sum(t.sin().sum() for t in liger_fused_add_rms_norm(*leaves, EPS)), leaves)
    assert [name for name in mode.seen if name.startswith("rmsnorm")] == [
        "rmsnorm.add_rms_norm_forward.default",
        "rmsnorm.add_rms_norm_backward.default",
    ]
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
