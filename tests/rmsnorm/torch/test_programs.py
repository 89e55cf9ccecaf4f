"""Programs around the norm: compiled torch.func transforms, exported, traced and split programs, ONNX, containers."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import func, nn
from torch.masked import masked_tensor

from rmsnorm import LigerRMSNorm, LigerRMSNormFunction, liger_rms_norm
from rmsnorm.convert import convert_model

H = 16
pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("eager_operators", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of prototypes
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def model(**settings: Any) -> nn.Module:
    norm = LigerRMSNorm(H, 1e-3, **settings)
    nn.init.normal_(norm.weight)
    return nn.Sequential(nn.Linear(H, H), norm, nn.Linear(H, 4))


def gradients(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Of every parameter and of x. KeyError-like None is an assertion: a gradient that is lost is None."""
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    module(leaf).sin().sum().backward()
    found = [leaf.grad, *[p.grad for _, p in sorted(module.named_parameters())]]
    assert all(g is not None for g in found), "a gradient was lost"
    return [g.clone() for g in found]


def assert_same(got: Any, wanted: Any) -> None:
    """Bit for bit: the same operations in the same order."""
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def assert_close(got: Any, wanted: Any) -> None:
    """For programs whose operations somebody else orders: Inductor, ONNX's evaluator, a trace, jagged rows."""
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


# torch.compile over torch.func


def calls() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    norm = LigerRMSNorm(H, 1e-3, 0.5)
    nn.init.normal_(norm.weight)
    w = norm.weight.detach().clone()
    return {
        "module": lambda x: norm(x).sin(),
        "function": lambda x: liger_rms_norm(x, w, 1e-3, 0.5).sin(),
        "apply": lambda x: LigerRMSNormFunction.apply(x, w, 1e-3, 0.5).sin(),
    }


def total(f: Any) -> Any:
    return lambda x: f(x).sum()


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: func.grad(total(f)),
    "grad_and_value": lambda f: lambda x: func.grad_and_value(total(f))(x)[0],
    "vjp": lambda f: lambda x: func.vjp(f, x)[1](x)[0],
    "jvp": lambda f: lambda x: func.jvp(f, (x,), (x,))[1],
    "vmap": lambda f: func.vmap(f),
    "jacrev": lambda f: func.jacrev(f),
    "jacfwd": lambda f: func.jacfwd(f),
    "hessian": lambda f: func.hessian(total(f)),
    "vmap of grad": lambda f: func.vmap(func.grad(total(f))),
    "grad of grad": lambda f: func.grad(lambda x: func.grad(total(f))(x).sin().sum()),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("call", ["module", "function", "apply"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_compiled_transform_is_the_eager_one(transform: str, call: str, backend: str) -> None:
    program = TRANSFORMS[transform](calls()[call])
    x = torch.randn(2, H)
    wanted = program(x)
    assert wanted.abs().max() > 1e-3, "the case shows nothing"
    assert_same(torch.compile(program, backend=backend)(x), wanted)


@pytest.mark.parametrize("transform", ["grad", "vmap of grad", "hessian"])
def test_inductor_compiles_transforms(transform: str) -> None:
    program = TRANSFORMS[transform](calls()["function"])
    x = torch.randn(2, H)
    assert_close(torch.compile(program, backend="inductor")(x), program(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_per_sample_gradients(backend: str) -> None:
    module = model()
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
        return func.functional_call(module, parameters, (x,)).sin().sum()

    per_sample = func.vmap(func.grad(loss), in_dims=(None, 0))
    x = torch.randn(3, H)
    wanted = per_sample(parameters, x)
    got = torch.compile(per_sample, backend=backend)(parameters, x)
    for name, gradient in wanted.items():
        assert_same(got[name], gradient)


# Exported, traced and split programs


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_trains(strict: bool) -> None:
    module, x = model(), torch.randn(3, H)
    exported = torch.export.export(module, (x,), strict=strict).module()
    assert_same(exported(x), module(x))
    got, wanted = gradients(exported, x), gradients(module, x)
    assert len(got) == len(wanted) == 6
    for one, other in zip(got, wanted, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_has_second_derivatives(strict: bool) -> None:
    module, x = model(), torch.randn(3, H)
    exported = torch.export.export(module, (x,), strict=strict).module()
    found = []
    for program in (exported, module):
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(program(leaf).sin().sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), leaf)[0])
    assert_same(*found)


def test_a_split_pipeline_keeps_every_gradient() -> None:
    from torch.distributed.pipelining import SplitPoint, pipeline

    module = nn.Sequential(model(), nn.Linear(4, H), model())
    x = torch.randn(3, H)
    pipe = pipeline(module, (x,), split_spec={"2": SplitPoint.BEGINNING})
    assert pipe.num_stages == 2
    y = x.clone().requires_grad_()
    leaf = y
    for stage in range(2):
        y = pipe.get_stage_module(stage)(y)
    assert_same(y, module(x))
    y.sin().sum().backward()
    received = {}
    for stage in range(2):  # a stage may share its parameters with the module, whose gradients are asked below
        parameters = dict(pipe.get_stage_module(stage).named_parameters())
        assert all(p.grad is not None for p in parameters.values()), "a gradient was lost"
        received |= {name: p.grad.clone() for name, p in parameters.items()}
    wanted = gradients(module, x)
    assert_same(leaf.grad, wanted[0])
    names = sorted(name for name, _ in module.named_parameters())
    for name, gradient in zip(names, wanted[1:], strict=True):
        assert_same(received[name], gradient)


def test_a_traced_program_holds_no_operator_of_ours_and_trains() -> None:
    module, x = model(), torch.randn(3, H)
    traced = torch.jit.trace(module, (x,))
    assert "rmsnorm::" not in str(traced.inlined_graph)
    other = torch.randn(5, H)
    assert_close(traced(other), module(other))
    for one, wanted in zip(gradients(traced, x), gradients(module, x), strict=True):
        assert_close(one, wanted)
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    buffer.seek(0)
    assert_close(torch.jit.load(buffer)(other), module(other))


@pytest.mark.parametrize("way", ["dynamo", "from an exported program", "legacy"])
@pytest.mark.parametrize("casting_mode", ["llama", "gemma", "none"])
def test_an_onnx_model_has_the_same_numbers(casting_mode: str, way: str) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx, of the dependency group onnx")
    if way != "legacy" and importlib.util.find_spec("onnxscript") is None:
        pytest.skip("needs onnxscript, of the dependency group onnx")
    from onnx.reference import ReferenceEvaluator

    module, x = model(offset=0.5, casting_mode=casting_mode).eval(), torch.randn(3, H)
    if way == "legacy":
        buffer = io.BytesIO()
        torch.onnx.export(module, (x,), buffer, dynamo=False)
        proto = onnx.load_from_string(buffer.getvalue())
    else:
        given = (module, (x,)) if way == "dynamo" else (torch.export.export(module, (x,)),)
        proto = torch.onnx.export(*given, dynamo=True).model_proto
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    (got,) = ReferenceEvaluator(proto).run(None, {proto.graph.input[0].name: x.numpy()})
    assert_close(torch.from_numpy(got), module(x).detach())


@pytest.mark.parametrize("affine", [True, False])
def test_fx_traces_a_converted_model(affine: bool) -> None:
    module = nn.Sequential(nn.Linear(H, H), nn.RMSNorm(H, eps=1e-6, elementwise_affine=affine))
    convert_model(module)
    assert isinstance(module[1], LigerRMSNorm)
    traced, x = torch.fx.symbolic_trace(module), torch.randn(3, H)
    assert torch.equal(traced(x), module(x))
    assert_same(gradients(traced, x), gradients(module, x))
    assert torch.equal(torch.compile(traced, backend="aot_eager", fullgraph=True)(x), module(x))


# Containers


def nested(*lengths: int, **options: Any) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(n, H) for n in lengths], layout=torch.jagged, **options)


@pytest.mark.parametrize("way", ["eager", "compiled"])
@pytest.mark.parametrize("affine", [True, False])
def test_a_jagged_tensor_is_normalised_row_by_row(affine: bool, way: str) -> None:
    ours, theirs = (kind(H, eps=1e-3, elementwise_affine=affine) for kind in (LigerRMSNorm, nn.RMSNorm))
    x = nested(2, 5, 1)
    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if way == "compiled" else ours
    found = []
    for norm in (run, theirs):
        leaf = x.detach().clone().requires_grad_()
        y = norm(leaf)
        assert torch.equal(y.offsets(), x.offsets()) and y.shape == x.shape
        (y + leaf).values().sin().sum().backward()
        found.append((y.values().detach(), leaf.grad.values()))
    assert_close(*found)
    if affine:
        assert_close(ours.weight.grad, theirs.weight.grad)


@pytest.mark.parametrize("way", ["eager", "compiled"])
@pytest.mark.parametrize("settings", [(0.7, 0.5, "gemma"), (1e-3, 0.0, "llama"), (0.7, 1.0, "none")], ids=str)
def test_every_setting_holds_for_the_rows_of_a_jagged_tensor(settings: tuple[float, float, str], way: str) -> None:
    x, w = nested(2, 5, 1, dtype=torch.bfloat16), torch.randn(H)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return liger_rms_norm(x, w, *settings, False, True)

    run = torch.compile(norm, backend="aot_eager", fullgraph=True) if way == "compiled" else norm
    assert torch.equal(run(x).values(), norm(x.values()))


def test_a_jagged_tensor_keeps_its_holes() -> None:
    """Lengths shorter than the distance of offsets leave rows between the sequences that belong to none."""
    values, offsets, lengths = torch.randn(9, H), torch.tensor([0, 4, 9]), torch.tensor([2, 5])
    x = torch.nested.nested_tensor_from_jagged(values, offsets, lengths, min_seqlen=2, max_seqlen=5)
    y = liger_rms_norm(x, None, 1e-6)
    assert [part.shape[0] for part in y.unbind()] == [2, 5]
    for got, part in zip(y.unbind(), x.unbind(), strict=True):
        assert torch.equal(got, liger_rms_norm(part, None, 1e-6))
    assert torch.equal(y.offsets(), offsets) and torch.equal(y.lengths(), lengths)
    assert (y._maybe_min_seqlen, y._maybe_max_seqlen) == (2, 5)


def test_a_last_dimension_of_several_lengths_is_one_typed_line() -> None:
    x = nested(2, 3).transpose(1, 2)
    with pytest.raises(ValueError, match="last dimension of one length") as error:
        liger_rms_norm(x, None, 1e-6)
    assert "\n" not in str(error.value)


NOT_DENSE = {
    "sparse": lambda x: x.to_sparse(),
    "sparse_csr": lambda x: x.to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "strided nested": lambda x: torch.nested.nested_tensor([x, x[:1]]),
}
DOORS = {
    "function": lambda x: liger_rms_norm(x, None, 1e-6),
    "apply": lambda x: LigerRMSNormFunction.apply(x, None, 1e-6),
    "module": lambda x: LigerRMSNorm(H)(x),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", NOT_DENSE)
def test_what_is_not_dense_is_one_typed_line(kind: str, door: str) -> None:
    with pytest.raises(TypeError, match="X must be a dense tensor, got a") as error:
        DOORS[door](NOT_DENSE[kind](torch.randn(2, H)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("mask", ["all", "rows", "elements"])
def test_a_masked_tensor_works_where_torchs_norm_works(mask: str, affine: bool) -> None:
    kept = {"all": torch.ones(3, H), "rows": torch.ones(3, H), "elements": torch.rand(3, H).round()}[mask].bool()
    if mask == "rows":
        kept[1] = False
    x = masked_tensor(torch.randn(3, H), kept)
    ours, theirs = (kind(H, eps=1e-3, elementwise_affine=affine) for kind in (LigerRMSNorm, nn.RMSNorm))
    try:
        wanted = theirs(x)
    except Exception as error:
        with pytest.raises(type(error)):
            ours(x)
        return
    got = ours(x)
    assert torch.equal(got.get_mask(), wanted.get_mask())
    assert_same(got.to_tensor(0.0), wanted.to_tensor(0.0))
