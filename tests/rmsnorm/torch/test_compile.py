"""Under torch.compile, torch.export and AOTInductor the results have the bits of an eager call."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import rmsnorm
from rmsnorm import LigerRMSNorm, liger_rms_norm, ops

H = 33
MODES = ("llama", "gemma", "none")
LAYOUTS = ("contiguous", "transposed", "row_strided", "column_strided", "expanded")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_compiler"),
    # The compiler stack warns of torch's own older parts.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Block(nn.Module):
    """Two norms, one without weight, around an operation that no compiler rounds differently."""

    def __init__(self, casting_mode: str = "llama", **settings: Any) -> None:
        super().__init__()
        self.norm = LigerRMSNorm(H, 1e-3, 0.5, casting_mode, **settings)
        self.last = LigerRMSNorm(H, 1e-3, 0.5, casting_mode, elementwise_affine=False, **settings)
        nn.init.normal_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(x).relu())


def gradients(function: Any, x: torch.Tensor, w: torch.Tensor | None, dy: torch.Tensor) -> list[torch.Tensor]:
    """y, dx and dw; dy is copied, because the backward may write over it."""
    inputs = [t.detach().requires_grad_() for t in (x, w) if t is not None]
    y = function(*inputs, None) if w is None else function(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, dy.clone())]


def assert_same_bits(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("casting_mode", MODES)
def test_values_and_gradients_are_eager_ones(device: str, casting_mode: str, offset: float, backend: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return liger_rms_norm(x, w, 1e-3, offset, casting_mode)

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)
    x, dy = (torch.randn(2, 5, H, device=device, dtype=torch.bfloat16) for _ in range(2))
    w = torch.randn(H, device=device)
    assert_same_bits(gradients(compiled, x, w, dy), gradients(function, x, w, dy))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("weighted", [True, False])
def test_every_dtype_compiles(device: str, dtype: torch.dtype, weighted: bool) -> None:
    # eps and offset are no float32 numbers: neither may become one in a float64 graph.
    def function(x: torch.Tensor, w: torch.Tensor | None) -> torch.Tensor:
        return liger_rms_norm(x, w, 0.1, 0.3)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)
    x, dy = (torch.randn(5, H, device=device, dtype=dtype) for _ in range(2))
    w = torch.randn(H, device=device, dtype=dtype) if weighted else None
    assert_same_bits(gradients(compiled, x, w, dy), gradients(function, x, w, dy))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_module_compiles_whole(device: str, in_place: bool, backend: str) -> None:
    block = Block(in_place=in_place).to(device)
    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=False)
    x, dy = (torch.randn(2, 5, H, device=device) for _ in range(2))
    results = []
    for module in (block, compiled):
        block.zero_grad()
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        y.backward(dy.clone())
        assert leaf.grad is not None and block.norm.weight.grad is not None
        results.append([y.detach(), leaf.grad, block.norm.weight.grad])
    assert_same_bits(*results)


def test_rows_marked_dynamic_compile_once(device: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(liger_rms_norm, backend=counter, fullgraph=True)
    w = torch.randn(H, device=device)
    for n_rows in (7, 2, 64, 33):
        x, dy = (torch.randn(n_rows, H, device=device) for _ in range(2))
        torch._dynamo.mark_dynamic(x, 0)
        leaf = w.clone().requires_grad_()
        y = compiled(x, leaf, 1e-3)
        (dw,) = torch.autograd.grad(y, leaf, dy)
        expected = gradients(lambda x, w: liger_rms_norm(x, w, 1e-3), x, w, dy)
        assert_same_bits([y.detach(), dw], [expected[0], expected[2]])
    assert counter.frame_count == 1


def test_another_number_of_rows_recompiles_once_at_most(device: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(LigerRMSNorm(H).to(device), backend=counter, fullgraph=True)
    for n_rows in (7, 2, 64, 33):  # the second shape makes the rows symbolic, no later one compiles anything
        assert compiled(torch.randn(3, n_rows, H, device=device)).shape == (3, n_rows, H)
    assert counter.frame_count == 2


def test_output_dtype_is_that_of_x_under_compile_and_autocast(device: str) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return liger_rms_norm(x, w, 1e-6)

    w = torch.randn(H, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(4, H, device=device, dtype=dtype)
        assert torch.compile(function, backend="aot_eager", fullgraph=True)(x, w).dtype == dtype


def place(values: torch.Tensor, layout: str) -> torch.Tensor:
    """(a, b, H) values in other memory; "expanded" repeats the first row."""
    a, b, n_cols = values.shape
    if layout == "transposed":
        return values.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "row_strided":
        return values.new_zeros(a, b, n_cols + 3)[..., :n_cols].copy_(values)
    if layout == "column_strided":
        return values.new_zeros(a, b, 2 * n_cols)[..., ::2].copy_(values)
    if layout == "expanded":
        return values[:1, :1].clone().expand(a, b, n_cols)
    return values.clone()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operator", ["forward", "backward", "backward_", "add_forward", "add_backward"])
def test_opcheck(device: str, operator: str, layout: str) -> None:
    x = place(torch.randn(2, 3, H, device=device, dtype=torch.bfloat16), layout)
    dy = torch.randn(2, 3, H, device=device, dtype=torch.bfloat16)
    for w in (torch.randn(H, device=device), None):
        _, rstd = ops.rms_norm_forward(x, w, 1e-3, 0.5, "llama", None)
        shared = (x, w, rstd, 1e-3, 0.5, "llama", None)
        if operator == "forward":
            torch.library.opcheck(ops.rms_norm_forward, (x, w, 1e-3, 0.5, "llama", None))
        elif operator == "add_forward":
            torch.library.opcheck(ops.add_rms_norm_forward, (x, place(dy, layout), w, 1e-3, 0.5, "llama", None))
        elif operator == "add_backward":
            for needs_dw in (True, False):
                torch.library.opcheck(
                    ops.add_rms_norm_backward, (dy, *shared[:3], place(dy, layout), *shared[3:], needs_dw)
                )
        elif operator == "backward_":  # only contiguous dy is written
            torch.library.opcheck(ops.rms_norm_backward_, (dy.clone(), *shared, True))
        else:
            for needs in itertools.product((True, False), repeat=2):
                torch.library.opcheck(ops.rms_norm_backward, (place(dy, layout), *shared, *needs))


def test_the_shape_function_refuses_what_the_operator_refuses(device: str) -> None:
    compiled = torch.compile(liger_rms_norm, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="as many elements as X has columns, got 32 and 33"):
        compiled(torch.randn(2, H, device=device), torch.randn(H - 1, device=device), 1e-6)


def test_export_with_dynamic_rows(device: str) -> None:
    block = Block().to(device).eval()
    rows = torch.export.Dim("rows", min=2, max=1024)
    exported = torch.export.export(
        block, (torch.randn(4, 3, H, device=device),), dynamic_shapes={"x": {0: rows}}, strict=False
    )
    for n_rows in (4, 2, 9):
        x = torch.randn(n_rows, 3, H, device=device)
        assert_same_bits([exported.module()(x)], [block(x)])


LOADS_A_PACKAGE = """
import sys
import torch
package, inputs, outputs = sys.argv[1:]
loaded = torch._inductor.aoti_load_package(package)
torch.save([loaded(x) for x in torch.load(inputs)], outputs)
assert "rmsnorm" not in sys.modules
"""


def packaged(module: nn.Module, inputs: list[torch.Tensor], tmp_path: Path) -> list[torch.Tensor]:
    """What an AOTInductor package of the module gives in a process that does not import this package."""
    rows = torch.export.Dim("rows", min=2, max=1024)
    exported = torch.export.export(module, (inputs[0],), dynamic_shapes=({0: rows},))
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "module.pt2"))
    torch.save(inputs, tmp_path / "inputs")
    arguments = [package, str(tmp_path / "inputs"), str(tmp_path / "outputs")]
    subprocess.run([sys.executable, "-c", LOADS_A_PACKAGE, *arguments], check=True, cwd=tmp_path, timeout=120)
    return torch.load(tmp_path / "outputs")


@pytest.mark.slow
def test_aot_inductor_package(device: str, tmp_path: Path) -> None:
    block = Block().to(device).eval()
    inputs = [torch.randn(n_rows, 3, H, device=device) for n_rows in (4, 9)]
    if device == "cuda":  # the package holds the kernels
        try:
            packaged(nn.RMSNorm(H, device=device), inputs, tmp_path)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"AOTInductor loads no package of torch.nn.RMSNorm here either: {error}")
        outputs = packaged(block, inputs, tmp_path)
    else:  # on a CPU it holds the operators, which this package registers
        rows = torch.export.Dim("rows", min=2, max=1024)
        exported = torch.export.export(block, (inputs[0],), dynamic_shapes={"x": {0: rows}})
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "block.pt2"))
        loaded = torch._inductor.aoti_load_package(package)
        outputs = [loaded(x) for x in inputs]
    assert_same_bits(outputs, [block(x) for x in inputs])


TRACES = """
import torch, triton
from types import SimpleNamespace
from triton.backends.compiler import GPUTarget
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
from rmsnorm import ops
from rmsnorm.fused import plans
from rmsnorm.fused.tiles import Processors

target = GPUTarget("cuda", 90, 32)
triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0))
plans.processors = lambda device: Processors(132, 227 * 1024, cooperative=True)
graphs = []


def keep(graph, inputs):
    graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
    return graph


def trace(function, *tensors):
    try:
        aot_function(function, fw_compiler=keep, bw_compiler=keep)(*tensors)
    except RuntimeError as error:  # the graph is made; there is no GPU to run it
        assert "cuda" in str(error), error


for n_rows, n_cols in ((64, 128), (256, 128), (64, 65536)):
    for device in ("cuda", "cpu"):
        with FakeTensorMode(), torch.no_grad():
            x = torch.empty(n_rows, n_cols, device=device, dtype=torch.bfloat16)
            w, rstd = torch.empty(n_cols, device=device), torch.empty(n_rows, device=device)
            trace(lambda x, w: ops.rms_norm_forward(x, w, 1e-6, 0.0, "llama", None), x, w)
            settings = (1e-6, 0.0, "llama", None, True, True)
            trace(lambda x, w, rstd: ops.rms_norm_backward(x, x, w, rstd, *settings), x, w, rstd)
            trace(lambda x, w: ops.add_rms_norm_forward(x, x, w, 1e-6, 0.0, "llama", None), x, w)
            trace(lambda x, w, rstd: ops.add_rms_norm_backward(x, x, w, rstd, x, *settings[:5]), x, w, rstd)
for graph in graphs:
    print(sum("triton_kernel_wrapper" in node for node in graph), sum("rmsnorm" in node for node in graph))
"""


def test_the_compiler_sees_the_launches() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-W", "ignore", "-c", TRACES]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    graphs = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    on_cpu = ((0, 1), (0, 1))
    # Launches and operators, forward and backward: few rows on a GPU and on a CPU, many rows, rows that are split.
    wanted = [((1, 0), (1, 0)), on_cpu, ((1, 0), (2, 0)), on_cpu, ((1, 0), (0, 1)), on_cpu]
    assert graphs == [graph for pair in wanted for graph in (*pair, *pair)], "the norm, and with a residual"


@pytest.mark.gpu
@pytest.mark.parametrize("casting_mode", MODES)
def test_generated_code_calls_no_operator_of_ours(casting_mode: str) -> None:
    torch.compiler.reset()
    x, dy = (torch.randn(64, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    w = torch.randn(256, device="cuda")

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return liger_rms_norm(x, w, 1e-6, 0.5, casting_mode)

    compiled = torch.compile(function, fullgraph=True)
    got, codes = torch._inductor.utils.run_and_get_code(gradients, compiled, x, w, dy)
    assert_same_bits(got, gradients(function, x, w, dy))
    assert len(codes) == 2
    assert all("rms_norm" in code and "torch.ops.rmsnorm" not in code for code in codes)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # torch's own, of its pool's first graph
@pytest.mark.parametrize("casting_mode", MODES)
def test_cuda_graphs(casting_mode: str) -> None:
    torch.compiler.reset()
    x, dy = (torch.randn(64, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    w = torch.randn(256, device="cuda")

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return liger_rms_norm(x, w, 1e-6, 0.5, casting_mode)

    compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True)
    wanted = gradients(function, x, w, dy)
    for _ in range(4):  # warm-up, recording, replays
        torch.compiler.cudagraph_mark_step_begin()
        assert_same_bits([t.clone() for t in gradients(compiled, x, w, dy)], wanted)


def test_operators_are_public_names() -> None:
    assert rmsnorm.ops.rms_norm_forward is torch.ops.rmsnorm.rms_norm_forward.default
