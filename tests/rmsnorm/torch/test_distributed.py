"""On torch.distributed the results are those of one process: DTensor, FSDP2, SequenceParallel, sharded columns.

One launch of processes runs all bodies below, and each test looks at the outcome of one. The bodies are the same for
gloo on a CPU and for NCCL on GPUs, a process a GPU. A body that fails on every rank does not keep the others from
running; one that ends differently on two ranks ends the launch, for then they no longer agree on what they exchange.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

H, EPS, OFFSET = 8, 1e-3, 0.5
MODES = ("llama", "gemma", "none")
BODIES: dict[str, Callable[[str], None]] = {}

pytestmark = pytest.mark.torch


def body(function: Callable[[str], None]) -> Callable[[str], None]:
    """Run by every rank, with the device type. A body asserts on all ranks."""
    BODIES[function.__name__] = function
    return function


def random(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) * 100 + shape[0])).to(device, dtype)


def single(
    x: torch.Tensor, w: torch.Tensor | None, dy: torch.Tensor, casting_mode: str = "llama"
) -> list[torch.Tensor]:
    """y, dx and dw of one process."""
    from rmsnorm import liger_rms_norm

    inputs = [t.detach().clone().requires_grad_() for t in (x, w) if t is not None]
    y = liger_rms_norm(inputs[0], inputs[1] if w is not None else None, EPS, OFFSET, casting_mode)
    return [y.detach(), *torch.autograd.grad(y, inputs, dy.clone())]


def assert_within_bounds(
    got: dict[str, torch.Tensor], x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, mode: str
) -> None:
    from references import arrays
    from references.bounds import tolerances

    values = [arrays.to_numpy(t) for t in (dy, x, w)]
    settings: dict[str, Any] = {"eps": EPS, "offset": OFFSET, "casting_mode": mode}
    bounds = tolerances.forward_bounds(*values[1:], **settings) | tolerances.backward_bounds(*values, **settings)
    for name, value in got.items():
        ratio = bounds[name].ratio(arrays.to_numpy(value))
        assert (ratio <= 1).all(), f"{name} misses its bound by {ratio.max()}"


@body
def dtensor_placements_and_values(device: str) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    from rmsnorm import liger_rms_norm

    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    # 3 and 5 rows are uneven over the ranks, and 1 row leaves ranks with none.
    for shape, mode in itertools.product(((4, 5, H), (3, 1, H)), MODES):
        x, dy, w = (
            random(*shape, device=device),
            random(*shape[1:], device=device).expand(shape),
            random(H, device=device),
        )
        dy = dy + x.flip(0)
        wanted = single(x, w, dy, mode)
        for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
            # DTensor itself gathers fewer rows than ranks.
            local = placement != Shard(2) and (placement == Replicate() or shape[placement.dim] >= mesh.size())
            x_d = distribute_tensor(x, mesh, [placement]).requires_grad_()
            w_d = distribute_tensor(w, mesh, [Replicate()]).requires_grad_()
            y = liger_rms_norm(x_d, w_d, EPS, OFFSET, mode)
            dx, dw = torch.autograd.grad(y, (x_d, w_d), distribute_tensor(dy, mesh, [placement]))
            assert isinstance(y, DTensor) and isinstance(dx, DTensor) and isinstance(dw, DTensor)
            if local:  # no rank needs another's rows
                assert y.placements == dx.placements == (placement,)
                assert dw.placements == (Replicate() if placement == Replicate() else Partial(),)
            assert torch.equal(y.full_tensor(), wanted[0]) and torch.equal(dx.full_tensor(), wanted[1])
            assert_within_bounds({"dw": dw.full_tensor()}, x, w, dy, mode)


@body
def dtensor_with_one_gradient(device: str) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from rmsnorm import liger_rms_norm

    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    x, w = random(4, H, device=device), random(H, device=device)
    wanted = single(x, w, x.flip(0))
    x_d, w_d = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(w, mesh, [Replicate()])
    dy = distribute_tensor(x.flip(0), mesh, [Shard(0)])
    leaf = x_d.clone().requires_grad_()
    (dx,) = torch.autograd.grad(liger_rms_norm(leaf, w_d, EPS, OFFSET), leaf, dy)
    assert torch.equal(dx.full_tensor(), wanted[1])
    leaf = w_d.clone().requires_grad_()
    (dw,) = torch.autograd.grad(liger_rms_norm(x_d, leaf, EPS, OFFSET), leaf, dy)
    assert_within_bounds({"dw": dw.full_tensor()}, x, w, x.flip(0), "llama")
    leaf = x_d.clone().requires_grad_()
    (dx,) = torch.autograd.grad(liger_rms_norm(leaf, None, EPS), leaf, dy)
    assert torch.equal(dx.full_tensor(), single(x, None, x.flip(0))[1])


@body
def dtensor_on_a_two_dimensional_mesh(device: str) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from rmsnorm import liger_rms_norm

    x, w, dy = random(4, 3, H, device=device), random(H, device=device), random(4, 3, H, device=device).flip(0)
    wanted = single(x, w, dy)
    outer = dist.get_world_size() // 2
    meshes = [dist.init_device_mesh(device, shape) for shape in {(outer, 2), (2, outer)}]
    every = itertools.product((Shard(0), Shard(1), Shard(2), Replicate()), repeat=2)
    for mesh, placements in itertools.product(meshes, every):
        x_d = distribute_tensor(x, mesh, placements).requires_grad_()
        w_d = distribute_tensor(w, mesh, [Replicate(), Replicate()]).requires_grad_()
        y = liger_rms_norm(x_d, w_d, EPS, OFFSET)
        dx, dw = torch.autograd.grad(y, (x_d, w_d), distribute_tensor(dy, mesh, placements))
        assert torch.equal(y.full_tensor(), wanted[0]) and torch.equal(dx.full_tensor(), wanted[1]), placements
        assert_within_bounds({"dw": dw.full_tensor()}, x, w, dy, "llama")


@body
def dtensor_under_compile(device: str) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    from rmsnorm import LigerRMSNorm

    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    x, dy = random(4, 4, H, device=device), random(4, 4, H, device=device).flip(0)
    norm = LigerRMSNorm(H, EPS, OFFSET, device=device)
    wanted = single(x, norm.weight, dy)
    norm.weight = nn.Parameter(distribute_tensor(norm.weight.detach(), mesh, [Replicate()]))
    x_d = distribute_tensor(x, mesh, [Shard(1)]).requires_grad_()
    y = torch.compile(norm, backend="aot_eager", fullgraph=True)(x_d)
    dx, dw = torch.autograd.grad(y, (x_d, norm.weight), distribute_tensor(dy, mesh, [Shard(1)]))
    assert torch.equal(y.full_tensor(), wanted[0]) and torch.equal(dx.full_tensor(), wanted[1])
    assert dw.placements == (Partial(),)


class Layer(nn.Module):
    """A Llama block of one head: norm, causal attention, norm, gated MLP, both on residual branches."""

    def __init__(self) -> None:
        super().__init__()
        from rmsnorm import LigerRMSNorm

        self.input_norm, self.post_attention_norm = LigerRMSNorm(H, EPS), LigerRMSNorm(H, EPS)
        self.qkv, self.out = nn.Linear(H, 3 * H, bias=False), nn.Linear(H, H, bias=False)
        self.gate, self.up = nn.Linear(H, 2 * H, bias=False), nn.Linear(H, 2 * H, bias=False)
        self.down = nn.Linear(2 * H, H, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.input_norm(x)).chunk(3, -1)
        future = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).triu(1)
        # Plain matrix products: a fused attention's gradients need not repeat their bits.
        x = x + self.out((q @ k.mT / H**0.5).masked_fill(future, -torch.inf).softmax(-1) @ v)
        h = self.post_attention_norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


@body
def fsdp_trains_as_one_process_does(device: str) -> None:
    """20 steps of AdamW on a small Llama. The one process takes each rank's part of the batch in turn: then the
    additions are the same, and so must the bits be."""
    from torch.distributed.fsdp import fully_shard

    from rmsnorm import LigerRMSNorm

    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    alone = nn.Sequential(Layer(), Layer(), LigerRMSNorm(H, EPS), nn.Linear(H, H, bias=False)).to(device)
    model = copy.deepcopy(alone)
    for layer in model[:2]:
        fully_shard(layer)
    fully_shard(model)
    # The default takes other kernels for plain tensors than for DTensors.
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=False) for m in (alone, model)]
    for step in range(20):
        x, target = (
            torch.randn(world, 3, H, generator=torch.Generator().manual_seed(2 * step + i)).to(device) for i in (0, 1)
        )
        losses = []
        for part in range(world):
            loss = (alone(x[part]) - target[part]).square().mean()
            (loss / world).backward()
            losses.append(loss.detach())
        loss = (model(x[rank]) - target[rank]).square().mean()
        loss.backward()
        assert torch.equal(loss.detach(), losses[rank]), (step, loss, losses[rank])
        for (name, one), other in zip(model.named_parameters(), alone.parameters(), strict=True):
            got = one.grad.full_tensor()
            if world == 2:  # more summands have more orders
                assert torch.equal(got, other.grad), f"step {step}, {name}: {got - other.grad} of {other.grad}"
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if world > 2:
            break


@body
def sequence_parallel_trains_as_one_process_does(device: str) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    from rmsnorm import LigerRMSNorm

    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)
    alone = LigerRMSNorm(H, EPS).to(device)
    model = nn.Sequential(copy.deepcopy(alone))
    parallelize_module(model, mesh, {"0": SequenceParallel()})
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, foreach=False) for m in (alone, model)]
    for step in range(20):
        x = torch.randn(2, 5, H, generator=torch.Generator().manual_seed(step)).to(device)  # 5 rows: uneven shards
        before = alone.weight.detach().clone()
        y = model(distribute_tensor(x, mesh, [Shard(1)]))
        assert y.placements == (Shard(1),)
        y.backward(distribute_tensor(x.flip(0), mesh, [Shard(1)]))
        alone(x).backward(x.flip(0))
        got = model[0].weight.grad.full_tensor()
        assert_within_bounds({"dw": got}, x, before, x.flip(0), "llama")
        alone.weight.grad.copy_(got)  # judge each step by itself: the same weights from here on
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(model[0].weight.full_tensor(), alone.weight)


@body
def dtensors_in_the_exact_world(device: str) -> None:
    """Without a tolerance: rows are the table's wherever they lie, and dw of all ranks adds up to the table's.

    Field elements are NumPy's, so the ranks meet on the CPU here, whatever the device; no collective may add them.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    from references.exact import draw, table, torch_world
    from references.exact.field import Field, NotAlgebraic
    from rmsnorm import liger_rms_norm

    group = dist.new_group(backend="gloo")
    mesh = DeviceMesh.from_group(group, "cpu")
    ranks, rank = mesh.size(), dist.get_rank()
    for mode, dtype in (("llama", "bfloat16"), ("none", "float16"), ("gemma", "float32")):
        field, formula = Field(seed=11), table.formula(mode)
        shape = (3 * ranks, 2 * ranks)
        problem = draw.draw(field, shape, dtype, dtype, eps=EPS, offset=OFFSET, formulas=[formula], seed=11)
        wanted = table.evaluate(field, problem, formula)
        x, w, dy = (torch_world.to_tensor(patterns, dtype) for patterns in (problem.x, problem.w, problem.dy))
        for dim in (0, 1):
            local = [t.chunk(ranks, dim)[rank].contiguous() for t in (x, dy)]
            x_d, dy_d = (DTensor.from_local(t, mesh, [Shard(dim)], run_check=False) for t in local)
            w_d = DTensor.from_local(w, mesh, [Replicate()], run_check=False).requires_grad_()
            x_d.requires_grad_()
            with torch_world.world(field):
                y = liger_rms_norm(x_d, w_d, EPS, OFFSET, mode)
                dx, dw = torch.autograd.grad(y, (x_d, w_d), dy_d)
                if dim == 0:
                    assert dw.placements == (Partial(),)
                    with pytest.raises(NotAlgebraic, match=r"all_reduce.* adds patterns"):
                        dw.full_tensor()
                got = {"y": y.full_tensor(), "dx": dx.full_tensor()}
            for name, tensor in got.items():
                assert (torch_world.to_patterns(tensor) == wanted[name]).all(), f"{name} of {mode}, {dtype}, {dim}"
            parts: list[Any] = [None] * ranks
            dist.all_gather_object(parts, torch_world.to_patterns(dw.to_local()), group)
            if dw.placements == (Replicate(),):
                assert all((part == wanted["dw"]).all() for part in parts)
            elif dtype == "float32":  # where nothing rounds
                assert (field.sum(field.decode(np.stack(parts), dtype), axis=0) == wanted["dw"]).all()


@body
def sharded_columns_all_reduce_one_number_a_row(device: str) -> None:
    from rmsnorm.tensor_parallel import hidden_sharded_rms_norm

    rank, world = dist.get_rank(), dist.get_world_size()
    reduced: list[int] = []
    all_reduce = dist.all_reduce

    def counted(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        reduced.append(t.numel())
        return all_reduce(t, *args, **kwargs)

    dist.all_reduce = counted
    try:
        dtypes = (torch.float32, torch.bfloat16, torch.float64)
        # Not divisible by the number of ranks, and fewer than ranks: the last one has none.
        for mode, dtype, columns in itertools.product(MODES, dtypes, (3 * world + 2, world - 1)):
            mine = torch.arange(columns).tensor_split(world)[rank].to(device)
            x, dy = random(2, 5, columns, device=device, dtype=dtype), random(5, 2, columns, device=device, dtype=dtype)
            dy, w = dy.transpose(0, 1).contiguous(), random(columns, device=device)
            leaves = x[..., mine].clone().requires_grad_(), w[mine].clone().requires_grad_()
            reduced.clear()
            y = hidden_sharded_rms_norm(*leaves, columns, EPS, OFFSET, mode)
            gradients = torch.autograd.grad(y, leaves, dy[..., mine])
            assert reduced == [10, 10]  # a number a row, forward and backward
            got = {"y": y.detach(), "dx": gradients[0], "dw": gradients[1]}
            whole = {}
            for name, part in got.items():
                parts = [None] * world
                dist.all_gather_object(parts, part.cpu())
                whole[name] = torch.cat(parts, -1)
            assert_within_bounds(whole, x.cpu(), w.cpu(), dy.cpu(), mode)
    finally:
        dist.all_reduce = all_reduce


@body
def sharded_columns_of_a_subgroup(device: str) -> None:
    """Each rank is a group of its own: what another group holds is not in the sum."""
    from rmsnorm.tensor_parallel import hidden_sharded_rms_norm

    rank = dist.get_rank()
    groups = [dist.new_group([other]) for other in range(dist.get_world_size())]
    x, w = random(3, H, device=device) * (rank + 1), random(H, device=device)
    dy = x.flip(0)
    for mode in MODES:
        leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = hidden_sharded_rms_norm(*leaves, H, EPS, OFFSET, mode, groups[rank])
        dx, dw = torch.autograd.grad(y, leaves, dy)
        got = {"y": y.detach().cpu(), "dx": dx.cpu(), "dw": dw.cpu()}
        assert_within_bounds(got, x.cpu(), w.cpu(), dy.cpu(), mode)


@body
def residual_blocks_in_ddp_and_fsdp(device: str) -> None:
    """h + norm(h) @ m, three times: the gradients of one process, whoever wraps the blocks."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from rmsnorm import LigerRMSNorm

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = LigerRMSNorm(H, EPS), nn.Linear(H, H, bias=False)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return h + self.linear(self.norm(h))

    torch.manual_seed(0)
    plain = nn.Sequential(Block(), Block(), Block()).to(device)
    x, dy = random(4, H, device=device), random(4, H, device=device).flip(0)
    (plain(x) * dy).sum().backward()
    wanted = {name: p.grad.clone() for name, p in plain.named_parameters()}
    plain.zero_grad()
    for kind in ("ddp", "fsdp"):
        model = copy.deepcopy(plain)
        if kind == "ddp":
            wrapped: nn.Module = DistributedDataParallel(model)
        else:
            mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
            for block in model:
                fully_shard(block, mesh=mesh)
            wrapped = fully_shard(model, mesh=mesh)
        for _ in range(2):  # buckets are made anew after the first
            wrapped.zero_grad()
            (wrapped(x) * dy).sum().backward()
            for name, parameter in model.named_parameters():
                gradient = parameter.grad
                assert gradient is not None, f"{kind}: {name}"
                whole = gradient.full_tensor() if kind == "fsdp" else gradient
                # A mean of equal gradients over 2 or 4 ranks is exact.
                assert torch.equal(whole, wanted[name]), f"{kind}: {name}"


@body
def residual_stream_of_dtensors(device: str) -> None:
    """x + r and its norm: rows stay where they are, dw is a partial sum, and columns are gathered."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    from rmsnorm import liger_fused_add_rms_norm

    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    x, w = random(4, 6, H, device=device), random(H, device=device)
    r, dy, ds = x.flip(0), x.flip(1), x.flip(2)
    for placement, mode in itertools.product((Shard(0), Shard(1), Shard(2), Replicate()), MODES):
        leaves = [t.detach().clone().requires_grad_() for t in (x, r, w)]
        wanted = liger_fused_add_rms_norm(*leaves, EPS, OFFSET, mode)
        gradients = torch.autograd.grad(wanted, leaves, (dy, ds))
        shares = [distribute_tensor(t.detach(), mesh, [placement]).requires_grad_() for t in leaves[:2]]
        shares.append(distribute_tensor(w, mesh, [Replicate()]).requires_grad_())
        y, s = liger_fused_add_rms_norm(*shares, EPS, OFFSET, mode)
        upstream = [distribute_tensor(t, mesh, [placement]) for t in (dy, ds)]
        dx, dr, dw = torch.autograd.grad((y, s), shares, upstream)
        if placement != Shard(2):  # no rank needs another's rows
            assert y.placements == s.placements == dx.placements == dr.placements == (placement,)
            assert dw.placements == (Replicate() if placement == Replicate() else Partial(),)
        pairs = zip((y, s, dx, dr), (*wanted, *gradients[:2]), strict=True)
        assert all(torch.equal(got.full_tensor(), value) for got, value in pairs)
        assert_within_bounds({"dw": dw.full_tensor()}, wanted[1].detach(), w, dy, mode)
        (alone,) = torch.autograd.grad(liger_fused_add_rms_norm(*shares, EPS)[1], shares[1], upstream[1])
        assert torch.equal(alone.full_tensor(), ds)


@body
def residual_stream_in_fsdp(device: str) -> None:
    """A stream through two fused norms in each of two blocks: the gradients of one process."""
    from torch.distributed.fsdp import fully_shard

    from rmsnorm import LigerFusedAddRMSNorm

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = LigerFusedAddRMSNorm(H, EPS, in_place=True), nn.Linear(H, H, bias=False)

        def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            y, s = self.norm(*pair)
            return self.linear(y), s

    torch.manual_seed(0)
    plain = nn.Sequential(Block(), Block()).to(device)
    x = random(4, H, device=device)
    (plain((x, x.flip(0)))[0].sin() + plain((x, x))[1]).sum().backward()
    wanted = {name: p.grad.clone() for name, p in plain.named_parameters()}
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    model = copy.deepcopy(plain)
    model.zero_grad()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    (model((x, x.flip(0)))[0].sin() + model((x, x))[1]).sum().backward()
    for name, parameter in model.named_parameters():
        # A mean of equal gradients over 2 or 4 ranks is exact.
        assert torch.equal(parameter.grad.full_tensor(), wanted[name]), name


@body
def sharded_columns_refuse_what_cannot_be_computed(device: str) -> None:
    from rmsnorm.tensor_parallel import hidden_sharded_rms_norm

    x, w = random(2, H, device=device), random(H, device=device)
    with pytest.raises(ValueError, match="columns of all ranks, got 7 and 8"):
        hidden_sharded_rms_norm(x, w, H - 1, EPS)
    with pytest.raises(ValueError, match="columns of all ranks, got 0 and 0"):
        hidden_sharded_rms_norm(x[:, :0], w[:0], 0, EPS)
    with pytest.raises(ValueError, match="as many elements as X has columns, got 7 and 8"):
        hidden_sharded_rms_norm(x, w[1:], 2 * H, EPS)
    leaf = x.clone().requires_grad_()
    y = hidden_sharded_rms_norm(leaf, w, H * dist.get_world_size(), EPS)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(y, leaf, x, create_graph=True)


def main(device: str, rank: int, world: int, folder: Path) -> None:
    limit = timedelta(seconds=60)
    store = dist.FileStore(str(folder / "meeting"), world)
    store.set_timeout(limit)
    arguments: dict[str, Any] = {"store": store, "rank": rank, "world_size": world, "timeout": limit}
    if device == "cuda":
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank), **arguments)
    else:
        dist.init_process_group("gloo", **arguments)
    outcomes = {}
    for name, function in BODIES.items():
        start = time.perf_counter()
        ending = "well"
        outcomes[name] = ""
        try:
            function(device)
        except Exception as error:
            ending = type(error).__name__
            outcomes[name] = traceback.format_exc()
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
        (folder / f"rank{rank}.json").write_text(json.dumps(outcomes))
        store.set(f"{name} on {rank}", ending)
        endings = [store.get(f"{name} on {other}") for other in range(world)]
        if len(set(endings)) > 1:
            raise RuntimeError(f"{name} ended differently on the ranks: {endings}")
    dist.destroy_process_group()


LAUNCHES = [
    pytest.param(("cpu", 2), id="gloo-2"),
    pytest.param(("cpu", 4), id="gloo-4", marks=pytest.mark.slow),
    pytest.param(("cuda", 2), id="nccl-2", marks=pytest.mark.multigpu),
]


@pytest.fixture(scope="module", params=LAUNCHES)
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What every rank reports: body → traceback, empty where all is well. Under "" what it printed."""
    device, world = request.param
    folder = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_INTERPRET": "0",
        "OMP_NUM_THREADS": "1",
    }
    logs = [folder / f"rank{rank}.log" for rank in range(world)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("w") as output:
            command = [sys.executable, __file__, device, str(rank), str(world), str(folder)]
            ranks.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))
    deadline = time.monotonic() + 300
    while any(process.poll() is None for process in ranks) and time.monotonic() < deadline:
        if any(process.poll() for process in ranks):  # one has failed: what do the others wait for?
            deadline = min(deadline, time.monotonic() + 10)
        time.sleep(0.1)
    for process in ranks:
        process.kill()
        process.wait()
    reports = []
    for rank, log in enumerate(logs):
        file = folder / f"rank{rank}.json"
        reports.append({"": log.read_text(), **(json.loads(file.read_text()) if file.exists() else {})})
    print(reports[0][""])
    return reports


@pytest.mark.parametrize("name", BODIES)
def test_ranks_agree_with_one_process(outcomes: list[dict[str, str]], name: str) -> None:
    for rank, outcome in enumerate(outcomes):
        assert outcome.get(name, "was not reached") == "", f"rank {rank}: {outcome.get(name, outcome[''])}"


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    except Exception:
        traceback.print_exc()
        os._exit(1)  # an ordinary exit would wait for the other ranks
