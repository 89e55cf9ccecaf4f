"""in_place=True is never seen: dX is written over dY only where nobody else can see dY.

Each pattern is a program in which the norm's dY is, or may be, in other hands too. It is run with torch.nn.RMSNorm,
whose backward never writes over anything, and with LigerRMSNorm, in place on and off: gradients agree with torch's, the
two settings agree bit for bit, and whoever observed dY finds it as it was.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from rmsnorm import LigerRMSNorm, liger_rms_norm, ops, ownership  # noqa: E402
from tests.support import DEVICES  # noqa: E402

ROWS, COLS = 144, 24  # more rows than an H200 has processors: fewer are not written over
EPS = 1e-3


class Upstream(torch.autograd.Function):
    """The identity. Its backward gives a dense gradient of its own, and remembers where it lies and what it was."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, seen: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
        ctx.seen = seen
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        dy = grads[0] * 1.5
        ctx.seen.append((dy.data_ptr(), dy.clone()))
        return dy, None


class Downstream(torch.autograd.Function):
    """The identity. Its backward remembers where its gradient lies."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seen: list[int]) -> torch.Tensor:
        ctx.seen = seen
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.seen.append(grads[0].data_ptr())
        return grads[0].clone(), None


class Program:
    """A norm, an input and a cotangent; a pattern differentiates and returns gradients and what observers hold."""

    def __init__(self, device: str, make: Callable[[], nn.Module]) -> None:
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, generator=generator).to(device)  # noqa: E731
        self.norms = [make().to(device) for _ in range(3)]
        for norm in self.norms:
            norm.weight.data.copy_(draw(COLS))
        self.norm = self.norms[0]
        self.x = draw(ROWS, COLS).requires_grad_()
        self.c = draw(ROWS, COLS)
        self.matrix = draw(COLS, COLS).requires_grad_()
        self.held: list[torch.Tensor] = []  # what observers keep

    def parameters(self) -> list[torch.Tensor]:
        return [self.x, self.matrix, *[norm.weight for norm in self.norms]]

    def backward(self, loss: torch.Tensor, **arguments: Any) -> None:
        loss.backward(**arguments)

    def loss(self, y: torch.Tensor) -> torch.Tensor:
        return (y * self.c).sum()

    def keep(self, gradient: torch.Tensor) -> None:
        self.held.append(gradient)


PATTERNS: dict[str, Callable[[Program], None]] = {}


def pattern(function: Callable[[Program], None]) -> Callable[[Program], None]:
    PATTERNS[function.__name__] = function
    return function


@pattern
def residual(p: Program) -> None:
    h = p.x * 1.0
    p.backward(p.loss(h + p.norm(h)))


@pattern
def residual_of_a_leaf(p: Program) -> None:
    p.backward(p.loss(p.x + p.norm(p.x)))


@pattern
def residual_first(p: Program) -> None:
    p.backward(p.loss(p.norm(p.x) + p.x))


@pattern
def pre_norm_blocks(p: Program) -> None:
    h = p.x
    for norm in p.norms:
        h = h + norm(h) @ p.matrix
    p.backward(p.loss(h))


@pattern
def post_norm_blocks(p: Program) -> None:
    h = p.x
    for norm in p.norms:
        h = norm(h + h @ p.matrix)
    p.backward(p.loss(h))


@pattern
def sandwich_blocks(p: Program) -> None:
    h = p.x
    for norm in p.norms:
        h = h + p.norm(norm(h) @ p.matrix)
    p.backward(p.loss(h))


@pattern
def parallel_branches(p: Program) -> None:
    h = p.x * 1.0
    p.backward(p.loss(p.norms[0](h) + p.norms[1](h) + p.norms[2](h)))


@pattern
def one_output_used_twice(p: Program) -> None:
    y = p.norm(p.x)
    p.backward(p.loss(y + y * 2.0))


@pattern
def subtraction(p: Program) -> None:
    p.backward(p.loss(p.norm(p.x) - p.x))


@pattern
def norm_of_norm(p: Program) -> None:
    y = p.norms[0](p.x)
    p.backward(p.loss(y + p.norms[1](y)))


@pattern
def tensor_hook_keeps(p: Program) -> None:
    y = p.norm(p.x)
    y.register_hook(p.keep)
    p.backward(p.loss(y))


@pattern
def tensor_hook_keeps_an_alias(p: Program) -> None:
    y = p.norm(p.x)
    y.register_hook(lambda g: p.keep(g.detach()))
    p.backward(p.loss(y))


@pattern
def tensor_hook_keeps_a_view(p: Program) -> None:
    y = p.norm(p.x)
    y.register_hook(lambda g: p.keep(g[1:3]))
    p.backward(p.loss(y))


@pattern
def tensor_hook_keeps_a_numpy_array(p: Program) -> None:
    y = p.norm(p.x)
    if p.x.is_cuda:
        y.register_hook(lambda g: p.keep(torch.from_dlpack(g.detach())))
    else:
        y.register_hook(lambda g: p.keep(torch.from_numpy(g.numpy())))
    p.backward(p.loss(y))


@pattern
def tensor_hook_keeps_the_storage(p: Program) -> None:
    y = p.norm(p.x)
    kept: list[Any] = []
    y.register_hook(lambda g: kept.append((g.untyped_storage(), g.shape)))
    p.backward(p.loss(y))
    p.keep(torch.empty(0, device=p.x.device).set_(kept[0][0]).view(kept[0][1]))


@pattern
def hook_on_a_view_of_the_output(p: Program) -> None:
    y = p.norm(p.x).view(2, -1)
    y.register_hook(p.keep)
    p.backward(p.loss(y.view(ROWS, COLS)))


@pattern
def hook_of_the_consumer(p: Program) -> None:
    y = p.norm(p.x)
    z = y.view(ROWS, COLS)
    z.grad_fn.register_hook(lambda grad_inputs, grad_outputs: p.keep(grad_inputs[0]))
    p.backward(p.loss(z))


@pattern
def prehook_of_the_node(p: Program) -> None:
    y = p.norm(p.x)
    y.grad_fn.register_prehook(lambda grad_outputs: p.keep(grad_outputs[0]))
    p.backward(p.loss(y))


@pattern
def hook_of_the_node(p: Program) -> None:
    y = p.norm(p.x)
    y.grad_fn.register_hook(lambda grad_inputs, grad_outputs: p.keep(grad_outputs[0]))
    p.backward(p.loss(y))


@pattern
def module_backward_hook(p: Program) -> None:
    handle = p.norm.register_full_backward_hook(lambda module, grad_input, grad_output: p.keep(grad_output[0]))
    p.backward(p.loss(p.norm(p.x * 1.0)))
    handle.remove()


@pattern
def module_backward_pre_hook(p: Program) -> None:
    handle = p.norm.register_full_backward_pre_hook(lambda module, grad_output: p.keep(grad_output[0]))
    p.backward(p.loss(p.norm(p.x * 1.0)))
    handle.remove()


@pattern
def global_module_hooks(p: Program) -> None:
    handles = [
        nn.modules.module.register_module_full_backward_hook(
            lambda module, grad_input, grad_output: p.keep(grad_output[0])
        ),
        nn.modules.module.register_module_full_backward_pre_hook(lambda module, grad_output: p.keep(grad_output[0])),
    ]
    p.backward(p.loss(p.norm(p.x * 1.0)))
    for handle in handles:
        handle.remove()


@pattern
def retain_grad(p: Program) -> None:
    y = p.norm(p.x)
    y.retain_grad()
    p.backward(p.loss(y))
    p.keep(y.grad)


@pattern
def gradient_of_the_output_too(p: Program) -> None:
    y = p.norm(p.x)
    gy, gx = torch.autograd.grad(p.loss(y), [y, p.x])
    p.keep(gy)
    p.x.grad = gx


@pattern
def retain_graph(p: Program) -> None:
    y = p.norm(p.x)
    loss = p.loss(y)
    p.backward(loss, retain_graph=True)
    p.backward(loss)


@pattern
def a_cotangent_of_the_caller(p: Program) -> None:
    p.keep(p.c)
    p.x.grad = torch.autograd.grad(p.norm(p.x), p.x, p.c)[0]


@pattern
def one_cotangent_for_two_backwards(p: Program) -> None:
    y, z = p.norms[0](p.x), p.norms[1](p.x)
    p.keep(p.c)
    torch.autograd.backward([y, z], [p.c, p.c])


@pattern
def a_cotangent_used_again(p: Program) -> None:
    y = p.norm(p.x)
    y.backward(p.c, retain_graph=True)
    y.backward(p.c)
    p.keep(p.c)


@pattern
def checkpointing(p: Program) -> None:
    for reentrant in (False, True):
        h = p.x * 1.0
        p.backward(p.loss(h + checkpoint(p.norm, h, use_reentrant=reentrant)))


@pattern
def concatenation(p: Program) -> None:
    h = p.x * 1.0
    both = torch.cat([p.norms[0](h), p.norms[1](h)]) + torch.cat([h, h])
    p.backward((both * torch.cat([p.c, p.c])).sum())


@pattern
def stacking_with_a_leaf(p: Program) -> None:
    both = torch.stack([p.norm(p.x), p.x]) * 1.0 + torch.stack([p.x, p.x])
    p.backward((both * p.c).sum())


@pattern
def split_and_chunk(p: Program) -> None:
    y = p.norm(p.x)
    first, second = y.split(ROWS // 2)
    third, fourth = y.chunk(2, dim=1)
    p.backward((torch.cat([first, second]) * p.c).sum() + (torch.cat([third, fourth], dim=1) * p.c).sum())


@pattern
def reshapes_and_slices(p: Program) -> None:
    y = p.norm(p.x).view(2, ROWS // 2, COLS)
    p.backward((y * p.c.view_as(y)).sum() + y[1].sum() + y.transpose(0, 1).sum())


@pattern
def expanded_gradient(p: Program) -> None:
    p.backward(p.norm(p.x).sum() + p.norm(p.x).mean())


@pattern
def batched_gradients(p: Program) -> None:
    y = p.norm(p.x)
    batch = torch.stack([p.c, p.c * 2.0])
    (gx,) = torch.autograd.grad(y, p.x, batch, is_grads_batched=True)
    p.keep(batch)
    p.x.grad = gx.sum(0)


@pattern
def anomaly_mode(p: Program) -> None:
    with torch.autograd.detect_anomaly(check_nan=False):
        h = p.x * 1.0
        p.backward(p.loss(h + p.norm(h)))


@pattern
def per_sample_gradients_by_hooks(p: Program) -> None:
    """As opacus does it: activations in a forward hook, dY in a backward hook, multiplied after the backward."""
    kept: dict[str, torch.Tensor] = {}
    handles = [
        p.norm.register_forward_hook(lambda module, inputs, output: kept.update(x=inputs[0].detach())),
        p.norm.register_full_backward_hook(lambda module, grad_input, grad_output: kept.update(dy=grad_output[0])),
    ]
    p.backward(p.loss(p.norm(p.x * 1.0)))
    p.keep(kept["dy"] * kept["x"])
    for handle in handles:
        handle.remove()


@pattern
def a_function_that_returns_what_it_saved(p: Program) -> None:
    class Saved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(c * 1.0)
            return y.sum()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return ctx.saved_tensors[0], None

    loss = Saved.apply(p.norm(p.x), p.c)
    p.backward(loss, retain_graph=True)
    p.backward(loss)


@pattern
def a_function_that_keeps_its_gradient_in_ctx(p: Program) -> None:
    kept = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
            kept.append(ctx)
            return y.view_as(y)

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            ctx.dy = grads[0]
            return grads[0]

    p.backward(p.loss(Keeps.apply(p.norm(p.x))))
    p.keep(kept[0].dy)


@pattern
def after_compile(p: Program) -> None:
    compiled = torch.compile(nn.Linear(4, 4), backend="eager")
    compiled(torch.ones(2, 4)).sum().backward()
    residual(p)


@pattern
def in_a_thread(p: Program) -> None:
    thread = threading.Thread(target=residual, args=(p,))
    thread.start()
    thread.join()


@pattern
def nested_backward(p: Program) -> None:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
            return y.view_as(y)

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            with torch.enable_grad():
                h = p.x.detach().requires_grad_() * 1.0
                (h + p.norms[1](h)).mul(grads[0]).sum().backward()
            return grads[0]

    p.backward(p.loss(Inner.apply(p.x + p.norm(p.x))))


@pattern
def saved_tensor_hooks(p: Program) -> None:
    with torch.autograd.graph.save_on_cpu():
        h = p.x * 1.0
        p.backward(p.loss(h + p.norm(h)))


@pattern
def a_side_stream(p: Program) -> None:
    if not p.x.is_cuda:
        residual(p)
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        residual(p)
    torch.cuda.current_stream().wait_stream(stream)


def run(device: str, make: Callable[[], nn.Module], name: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The gradients and what observers hold at the end."""
    program = Program(device, make)
    PATTERNS[name](program)
    gc.collect()
    gradients = [t.grad for t in program.parameters() if t.grad is not None]
    return [g.clone() for g in gradients], [h.clone() for h in program.held]


# torch.nn.RMSNorm adds in another order, and the chains above have six norms and products of 24 terms one after the
# other: roundings in number, of the largest value. What a visible dY does is an error of the size of the gradient.
CHAIN_ROUNDINGS = 2**10


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
@pytest.mark.filterwarnings("ignore:.*use_reentrant.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_nobody_can_tell(device: str, name: str) -> None:
    torch_gradients, torch_held = run(device, lambda: nn.RMSNorm(COLS, EPS), name)
    off_gradients, off_held = run(device, lambda: LigerRMSNorm(COLS, EPS, in_place=False), name)
    on_gradients, on_held = run(device, lambda: LigerRMSNorm(COLS, EPS, in_place=True), name)
    assert torch_gradients, "the pattern differentiates nothing"
    assert len(on_held) == len(off_held) == len(torch_held)
    for on, off in zip(on_gradients + on_held, off_gradients + off_held, strict=True):
        assert torch.equal(on, off), "in_place can be seen"
    for ours, theirs in zip(on_gradients + on_held, torch_gradients + torch_held, strict=True):
        distance = (ours - theirs).abs().max().item()
        assert distance <= CHAIN_ROUNDINGS * torch.finfo(torch.float32).eps * theirs.abs().max().item()


def backward(device: str, in_place: bool, consume: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether dX lies where an exclusive dY lay. `consume`: from the norm's output to a scalar."""
    norm, dy, dx = LigerRMSNorm(COLS, in_place=in_place).to(device), [], []
    x = torch.randn(ROWS, COLS, device=device, requires_grad=True)
    consume(Upstream.apply(norm(Downstream.apply(x, dx)), dy)).backward()
    return dy[0][0] == dx[0]


@pytest.mark.parametrize("device", DEVICES)
def test_an_exclusive_dy_is_written_over(device: str) -> None:
    # The memory that in_place saves: were the proof never found, nothing else would show it.
    consume = lambda y: (y * 2.0).sum()  # noqa: E731
    assert backward(device, True, consume)
    assert not backward(device, False, consume)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("biased", [True, False])
def test_a_view_that_only_the_engine_holds_is_written_over(device: str, biased: bool) -> None:
    # The gradient that a matrix product of three-dimensional input hands back is a view of a matrix.
    norm, dx = LigerRMSNorm(COLS).to(device), []
    linear = nn.Linear(COLS, 8, biased).to(device)
    x = torch.randn(2, ROWS // 2, COLS, device=device, requires_grad=True)
    where: list[int] = []
    y = norm(Downstream.apply(x, dx))
    y.register_hook(lambda g: where.append(g.data_ptr()))
    linear(y).square().sum().backward()
    assert where == dx


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["expanded", "column_strided", "row_strided", "transposed", "numpy", "inference"])
def test_a_dy_that_is_not_dense_memory_of_its_own_stays(device: str, kind: str) -> None:
    dense = torch.randn(ROWS, ROWS)
    with torch.inference_mode():
        inference = dense.to(device).clone()
    make = {
        "expanded": lambda: dense.to(device)[:1].expand(ROWS, ROWS),
        "column_strided": lambda: dense.to(device).repeat(1, 2)[:, ::2],
        "row_strided": lambda: dense.to(device).repeat(1, 2)[:, :ROWS],
        "transposed": lambda: dense.to(device).t(),
        "numpy": lambda: torch.from_dlpack(dense.to(device)) if device == "cuda" else torch.from_numpy(dense.numpy()),
        "inference": lambda: inference,
    }[kind]
    pointers: list[int] = []

    class Gives(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
            return y.sum()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            dy = make()
            pointers.append(dy.data_ptr())
            return dy

    x, seen = torch.randn(ROWS, ROWS, device=device, requires_grad=True), []
    Gives.apply(liger_rms_norm(Downstream.apply(x, seen), None, EPS)).backward()
    assert seen[0] != pointers[0]


@pytest.mark.interpret
@pytest.mark.parametrize("hold", ["weak reference", "object", "storage", "alias", "view"])
def test_every_kind_of_reference_is_counted(hold: str) -> None:
    # One by one, so that a count that is not asked is not covered by another.
    keep: dict[str, Callable[[torch.Tensor], Any]] = {
        "weak reference": weakref.ref,
        "object": lambda g: g,
        "storage": lambda g: g.untyped_storage(),
        "alias": lambda g: g.detach(),
        "view": lambda g: g.view(-1),
    }
    x, seen, where, kept = torch.randn(ROWS, COLS, requires_grad=True), [], [], []
    y = liger_rms_norm(Downstream.apply(x, seen), None, EPS)
    y.register_hook(lambda g: where.append(g.data_ptr()))
    y.register_hook(lambda g: kept.append(keep[hold](g)))
    (y * 2.0 * torch.ones_like(y)).sum().backward()
    assert seen[0] != where[0]


@pytest.mark.interpret
def test_where_the_probe_cannot_tell_nothing_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    ownership._exclusive_counts.cache_clear()
    monkeypatch.setattr(ownership, "_count", lambda grads: (1, 2, 3))  # the same for shared and exclusive
    try:
        assert not backward("cpu", True, lambda y: (y * 2.0).sum())
        assert not ownership._exclusive_counts()
    finally:
        ownership._exclusive_counts.cache_clear()


@pytest.mark.interpret
def test_the_probe_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    ownership._exclusive_counts.cache_clear()
    state = torch.get_rng_state()
    with Recorder():
        assert ownership._exclusive_counts()
    assert seen == []
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


@pytest.mark.interpret
@pytest.mark.parametrize("with_ds", [False, True])
def test_writing_over_dy_counts_as_a_new_version(with_ds: bool) -> None:
    # More rows than are few: those get a dX of their own, and PyTorch counts the copy into dY.
    x, w, dy = torch.randn(ROWS, COLS), torch.randn(COLS), torch.randn(ROWS, COLS)
    assert ops.overwrites(x, w)
    _, rstd = ops.forward(x, w, EPS, 0.0, "llama", None)
    version = dy._version
    ops.backward_(dy, x, w, rstd, EPS, 0.0, "llama", None, True, ds=torch.ones_like(x) if with_ds else None)
    assert dy._version > version, "a graph that saved dY would not notice"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("frozen", ["x", "w"])
def test_an_unneeded_gradient_is_none_and_the_other_keeps_its_bits(device: str, frozen: str) -> None:
    torch.manual_seed(0)
    x, w, dy = (torch.randn(*shape, device=device) for shape in ((ROWS, COLS), (COLS,), (ROWS, COLS)))
    leaves = {"x": x.requires_grad_(), "w": w.requires_grad_()}
    wanted = dict(zip("xw", torch.autograd.grad(liger_rms_norm(x, w, EPS), (x, w), dy), strict=True))
    leaves[frozen].requires_grad_(False)
    (liger_rms_norm(x, w, EPS) * dy).sum().backward()
    (needed,) = set("xw") - {frozen}
    assert leaves[frozen].grad is None
    assert torch.equal(leaves[needed].grad, wanted[needed])
