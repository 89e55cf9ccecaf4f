"""After PyTorch's transformations the results are still the table's, in every element: in the exact world.

A second derivative is compared with what autograd makes of the formula itself, in float32, where nothing rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from references import arrays, torch_reference  # noqa: E402
from references.exact import draw, table, torch_world  # noqa: E402
from references.exact.field import Field  # noqa: E402
from references.exact.program import differing  # noqa: E402
from rmsnorm import liger_rms_norm  # noqa: E402
from rmsnorm.fused import launch  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.interpret,
    # torch.func scripts decompositions when it is first used, and torch.jit warns of itself.
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
EPS, OFFSET = 0.3, -0.7
SETTINGS = [
    ("llama", "bfloat16"),
    ("gemma", "float16"),
    ("none", "bfloat16"),
    ("llama", "float32"),
    ("none", "float64"),
]


class Setting:
    def __init__(self, mode: str, dtype: str) -> None:
        self.mode, self.field, formula = mode, Field(seed=7, splits=dtype == "float64"), table.formula(mode)
        about = {"eps": EPS, "offset": OFFSET, "formulas": [formula], "seed": 7}
        self.problem = draw.draw(self.field, (4, 7), dtype, dtype, **about)
        self.wanted = table.evaluate(self.field, self.problem, formula)
        given = ((self.problem.x, dtype), (self.problem.w, dtype), (self.problem.dy, dtype))
        self.x, self.w, self.dy = (torch_world.to_tensor(*one) for one in given)
        self.x.requires_grad_()
        self.w.requires_grad_()

    def norm(self, x: Any, w: Any) -> Any:
        return liger_rms_norm(x, w, EPS, OFFSET, self.mode, False)

    def assert_equal(self, **tensors: Any) -> None:
        got = {name: (torch_world.to_patterns(t), arrays.dtype_name(t)) for name, t in tensors.items()}
        assert differing(self.field, self.problem, self.wanted, got) == {}


@pytest.fixture(params=SETTINGS, ids="-".join)
def setting(request: pytest.FixtureRequest) -> Setting:
    return Setting(*request.param)


def test_eager_operators(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on a CPU, and for rows that no kernel takes."""
    monkeypatch.setattr(launch, "INTERPRETED", False)
    with torch_world.world(setting.field):
        y = setting.norm(setting.x, setting.w)
        dx, dw = torch.autograd.grad(y, (setting.x, setting.w), setting.dy)
    setting.assert_equal(y=y, dx=dx, dw=dw)


def test_create_graph(setting: Setting) -> None:
    with torch_world.world(setting.field):
        y = setting.norm(setting.x, setting.w)
        dx, dw = torch.autograd.grad(y, (setting.x, setting.w), setting.dy, create_graph=True)
    setting.assert_equal(y=y, dx=dx, dw=dw)


def test_vmap_and_its_gradient(setting: Setting) -> None:
    with torch_world.world(setting.field):
        y = torch.func.vmap(setting.norm, in_dims=(0, None))(setting.x, setting.w)
        dx, dw = torch.autograd.grad(y, (setting.x, setting.w), setting.dy)
    setting.assert_equal(y=y, dx=dx, dw=dw)


def test_gradients_of_each_row_alone(setting: Setting) -> None:
    def pull(x: Any, dy: Any) -> Any:
        return torch.func.vjp(setting.norm, x, setting.w.detach())[1](dy)[0]

    with torch_world.world(setting.field):
        dx = torch.func.vmap(pull)(setting.x.detach(), setting.dy)
    setting.assert_equal(dx=dx)


def test_vmap_over_a_backward(setting: Setting) -> None:
    other = draw.patterns(setting.field, np.random.default_rng(2), (4, 7), setting.problem.dtype)
    both = torch.stack((setting.dy, torch_world.to_tensor(other, setting.problem.dtype)))
    with torch_world.world(setting.field):
        y = setting.norm(setting.x, setting.w)
        dx, dw = torch.func.vmap(lambda dy: torch.autograd.grad(y, (setting.x, setting.w), dy, retain_graph=True))(both)
    setting.assert_equal(dx=dx[0], dw=dw[0])
    setting.problem = replace(setting.problem, dy=other)
    setting.wanted = table.evaluate(setting.field, setting.problem, table.formula(setting.mode))
    setting.assert_equal(dx=dx[1], dw=dw[1])


@pytest.mark.parametrize("mode", ["llama", "gemma", "none"])
def test_second_derivatives_are_those_of_the_formula(mode: str) -> None:
    """Differentiated once by the closed form, then by autograd, against autograd twice through the formula."""
    it = Setting(mode, "float32")
    field = it.field
    direction = torch_world.to_tensor(draw.patterns(field, np.random.default_rng(1), (4, 7), "float32"), "float32")

    def formula(x: Any, w: Any) -> Any:
        return torch_reference._rms_norm(x, w, x.dtype, EPS, OFFSET, "gemma")[0]

    second = []
    for norm in (it.norm, formula):
        dy = it.dy.detach().clone().requires_grad_()
        with torch_world.world(field):
            (dx,) = torch.autograd.grad(norm(it.x, it.w), it.x, dy, create_graph=True)
            second.append(torch.autograd.grad(dx, (it.x, it.w, dy), direction))
    for own, wanted in zip(*second, strict=True):
        assert (torch_world.to_patterns(own) == torch_world.to_patterns(wanted)).all()


def test_derivatives_of_rstd_are_those_of_the_formula() -> None:
    """The operator's second result is differentiable too, alone and beside Y."""
    it = Setting("gemma", "float32")
    drstd = torch_world.to_tensor(draw.patterns(it.field, np.random.default_rng(3), (4,), "float32"), "float32")

    def operator(x: Any, w: Any) -> Any:
        return torch.ops.rmsnorm.rms_norm_forward(x, w, EPS, OFFSET, "gemma", None)

    def formula(x: Any, w: Any) -> Any:
        return torch_reference._rms_norm(x, w, x.dtype, EPS, OFFSET, "gemma")

    found = []
    for norm in (operator, formula):
        with torch_world.world(it.field):
            (alone,) = torch.autograd.grad(norm(it.x, it.w)[1], it.x, drstd)
            beside = torch.autograd.grad(norm(it.x, it.w), (it.x, it.w), (it.dy, drstd))
        found.append([torch_world.to_patterns(t) for t in (alone, *beside)])
    for own, wanted in zip(*found, strict=True):
        assert (own == wanted).all()


def test_compiled_graphs(setting: Setting) -> None:
    """torch.compile traces and differentiates; what it made of the program, `aot_eager`'s, runs in the exact world."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def in_the_world(graph: Any, example: Any) -> Any:
        def run(*arguments: Any) -> Any:
            with torch_world.world(setting.field):
                return graph(*arguments)

        graphs.append(graph)
        return make_boxed_func(run)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=in_the_world, bw_compiler=in_the_world)
    compiled = torch.compile(setting.norm, backend=backend, fullgraph=True)
    y = compiled(setting.x, setting.w)
    dx, dw = torch.autograd.grad(y, (setting.x, setting.w), setting.dy)
    assert len(graphs) == 2
    setting.assert_equal(y=y, dx=dx, dw=dw)


@pytest.fixture
def mesh(tmp_path: Any) -> Iterator[Any]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("dim", [0, 1], ids=["rows", "columns"])
def test_dtensors(setting: Setting, mesh: Any, dim: int) -> None:
    """The kernels behind DTensor's dispatch, on one rank; several ranks are test_distributed's."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    def placed(t: Any, placement: Any) -> Any:
        return DTensor.from_local(t.detach(), mesh, [placement], run_check=False).requires_grad_()

    x, dy = (placed(t, Shard(dim)) for t in (setting.x, setting.dy))
    w = placed(setting.w, Replicate())
    with torch_world.world(setting.field):
        y = setting.norm(x, w)
        dx, dw = torch.autograd.grad(y, (x, w), dy.detach())
        local = {name: t.to_local() for name, t in (("y", y), ("dx", dx), ("dw", dw))}
    setting.assert_equal(**local)
